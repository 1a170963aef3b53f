"""Products of matrices as Triton: a tile of sums by ``tl.dot``, then what follows for each element of the tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from ...ir.loops import ITEMSIZE, Axis, Op, Phase, indirect_names
from ..cpu.scalar_ops import Value
from ..expressions import linear, names_in
from ..nest import index_of
from ..source import Unsupported
from .operations import Slot
from .rows import Rows
from .tiles import Tiles

_HALVES = ("f16", "bf16")
DESCRIPTORS = 256  # bytes of a program's


def descriptors_of(kernel: str) -> str:
    """The buffer in which the programs of ``kernel`` describe the tiles that the card copies, if the graph has one. Triton's
    kernels take its address after all that they are declared with."""
    return f"{kernel}_descriptors"


@dataclass(frozen=True, slots=True)
class _Factor:
    """One factor: its op, all that it is computed from, and the axes of the kernel that it depends on."""

    value: Op
    ops: tuple[Op, ...]
    axes: frozenset[str]


class Products(Rows):
    """Writes a program that computes a tile of a product. The kernel's first phase adds up products of two factors, one
    of which depends on some of the kernel's axes (rows), the other on others (columns), and both on the rest (batches)."""

    def _product(self, tiles: Tiles) -> tuple[Expr, int]:
        kernel, out = self.kernel, self.out
        phase, rest = self._phases()
        total, left, right = self._factors(phase)
        where = {a.name: (a.name in left.axes, a.name in right.axes) for a in kernel.axes}
        batches, rows, columns, neither = (tuple(a for a in kernel.axes if where[a.name] == which) for which in (
            (True, True), (True, False), (False, True), (False, False)))  # fmt: skip
        high, wide = (sympy.Mul(*(a.size for a in axes)) for axes in (rows, columns))
        if neither or not (high.is_Integer and wide.is_Integer and phase.axes[0].size.is_Integer):
            raise Unsupported("a product of other axes")
        self.rank, self.stages = 2, tiles.stages
        self.blocks |= {"YBLOCK": tiles.rows, "XBLOCK": tiles.columns, "DEPTH": tiles.depth, "GROUP": tiles.group}
        down, across = -(-int(high) // tiles.rows), -(-int(wide) // tiles.columns)
        self.shape_names = frozenset(a.name for a in (*rows, *columns))
        if tiles.programs and batches:
            raise Unsupported("batches in turn")
        if tiles.programs and descriptors_of(kernel.name) in self.unit.graph.buffers:
            for name, factor, place in (("left", left, rows), ("right", right, columns)):
                self._describe(name, factor, phase.axes[0], place, high if name == "left" else wide, tiles)
        program, row, column = (self._claim(f"tile {n}") for n in ("program", "row", "column"))
        programs = min(tiles.programs, down * across)
        if programs:
            out.open(f"for {program} in tl.range({self._program()}, {down * across}, {programs}, flatten=True):")
        else:
            out.put(f"{program} = {self._program()}")
        if batches:
            batch = self._claim("tile batch")
            out.put(f"{batch} = {program} // {down * across}")
            self._decode(batches, batch)
            out.put(f"{program} = {program} % {down * across}")
        first, height = self._claim("tile first"), self._claim("tile height")
        self.corner = (self._claim("tile top"), self._claim("tile left"))
        top, side = self.corner
        out.put(f"{first} = {program} // (GROUP * {across}) * GROUP  # tiles next to each other share what they read")
        out.put(f"{height} = tl.minimum({down} - {first}, GROUP)")
        out.put(f"{top} = ({first} + {program} % (GROUP * {across}) % {height}) * YBLOCK")
        out.put(f"{side} = {program} % (GROUP * {across}) // {height} * XBLOCK")
        out.put(f"{row} = ({top} + tl.arange(0, YBLOCK))[:, None]")
        self._decode(rows, row)
        if int(high) % tiles.rows:
            self.masks |= dict.fromkeys((a.name for a in rows), f"({row} < {high})")

        def across_from(start: str, count: str) -> None:
            out.put(f"{column} = ({start} + tl.arange(0, {count}))[None, :]")
            self._decode(columns, column)

        if int(wide) % tiles.columns:
            self.masks |= dict.fromkeys((a.name for a in columns), f"({column} < {wide})")
        across_from(side, "XBLOCK")
        self.mask = " & ".join(dict.fromkeys(self.masks.values()))
        self._sum(phase.axes[0], total, left, right, tiles)
        self.mask = " & ".join(dict.fromkeys(self.masks.values()))
        if not programs:
            self.spread = "tl.zeros([YBLOCK, XBLOCK], tl.int32)"
            self._straight(rest)
            return sympy.Integer(down * across) * sympy.Mul(*(a.size for a in batches)), tiles.warps
        # half of the columns after the other: what follows needs room beside the tiles that are on their way
        name = self.slots[total.name].value.text
        halves = f"{name}_0, {name}_1"
        out.put(f"{halves} = tl.split(tl.permute(tl.reshape({name}, [YBLOCK, 2, XBLOCK // 2]), [0, 2, 1]))")
        self.spread = "tl.zeros([YBLOCK, XBLOCK // 2], tl.int32)"
        for half in range(2):
            across_from(f"{side} + XBLOCK // 2" if half else side, "XBLOCK // 2")
            self.slots[total.name] = Slot(Value(f"{name}_{half}", "f32"), True)
            self._straight(rest)
        out.close("")
        return sympy.Integer(programs), tiles.warps

    def _describe(
        self, name: str, factor: _Factor, axis: Axis, place: tuple[Axis, ...], size: Expr, tiles: Tiles
    ) -> None:
        """Lets the card copy an operand's tiles, where memory holds a plain matrix of them."""
        load = self._dot_operand(factor)
        if load.op != "load" or len(place) != 1:
            return
        buffer = self.unit.graph.buffers[load.args[0]]
        form = linear(sympy.sympify(load.args[1]), frozenset((axis.name, place[0].name)))
        steps = {n: form.coefficients.get(n, sympy.S.Zero) for n in (axis.name, place[0].name)}
        width = ITEMSIZE[buffer.dtype]
        inner, outer = sorted(steps, key=lambda n: steps[n] != 1)
        numbers = (*steps.values(), form.rest)
        if form.tangled or not all(n.is_Integer for n in numbers) or steps[inner] != 1 or steps[outer] <= 1:
            return
        if int(steps[outer]) * width % 16 or int(form.rest) * width % 16:
            return
        extents = {axis.name: (axis.size, "DEPTH"), place[0].name: (size, "YBLOCK" if name == "left" else "XBLOCK")}
        tile = self._claim(f"tile of {name}")
        shape, block = (", ".join(str(extents[n][k]) for n in (outer, inner)) for k in (0, 1))
        start = f" + {form.rest}" if form.rest != 0 else ""
        self.blocks["ALIGNED"] = 1
        self.out.open("if ALIGNED:")
        self.out.put(
            f"{tile} = tl.make_tensor_descriptor({self.names[load.args[0]]}{start}, [{shape}], [{steps[outer]}, 1], [{block}])"
        )
        self.out.close("")
        self.copied[load.name] = (tile, outer == axis.name)

    def _phases(self) -> tuple[Phase, tuple[Op, ...]]:
        first, *others = self.kernel.phases
        if len(first.axes) != 1 or any(p.axes for p in others):
            raise Unsupported("a product in other phases")
        return first, tuple(o for p in others for o in p.body)

    def _factors(self, phase: Phase) -> tuple[Op, _Factor, _Factor]:
        """The sum, and its factors: rows depend on the first, the kernel's innermost axis on the second."""
        by_name = {o.name: o for o in phase.body}
        (total,) = (o for o in phase.body if o.op == "reduce")
        product = by_name.get(total.args[1])
        if total.args[0] != "sum" or product is None or product.op != "mul" or product.dtype != "f32":
            raise Unsupported("a sum of other things than products")
        names = [a for a in product.args if isinstance(a, str)]
        if len(names) != 2:
            raise Unsupported("a product with a number")
        left, right = (self._factor(phase, by_name[n]) for n in names)
        if self.kernel.axes and self.kernel.axes[-1].name in left.axes - right.axes:
            left, right = right, left
        if any(o.op == "store" for o in phase.body):
            raise Unsupported("a product that stores its terms")
        return total, left, right

    def _factor(self, phase: Phase, value: Op) -> _Factor:
        by_name = {o.name: o for o in phase.body}
        wanted = [value.name]
        found: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name in by_name and name not in found:
                found.add(name)
                wanted += by_name[name].operands()
        ops = tuple(o for o in phase.body if o.name in found)
        axes = {n for o in ops if (e := index_of(o)) is not None for n in names_in(e)}
        return _Factor(value, ops, frozenset(axes & {a.name for a in self.kernel.axes}))

    def _sum(self, axis: Axis, total: Op, left: _Factor, right: _Factor, tiles: Tiles) -> None:
        out = self.out
        exact = int(axis.size) % tiles.depth == 0
        name = self._claim(total.name)
        before: dict[int, tuple[Op, ...]] = {}
        for k, factor in enumerate((left, right)):
            inside = _depending(factor.ops, axis.name)
            self._straight([o for o in factor.ops if o.name not in inside])
            before[k] = tuple(o for o in factor.ops if o.name in inside)
        out.put(f"{name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)", total.spans)
        start = self._claim("tile start")
        out.open(f"for {start} in range(0, {axis.size}, DEPTH):")
        values = []
        self.shape_names |= {axis.name}
        for k, (factor, side) in enumerate(((left, "[None, :]"), (right, "[:, None]"))):
            place = self._claim(f"tile {'along' if k else 'down'} {axis.name}")
            wide = ".to(tl.int64)" if self.wide else ""
            out.put(f"{place} = ({start} + tl.arange(0, DEPTH)){wide}{side}")
            self.names[axis.name] = place
            mask = "" if exact else f"({place} < {axis.size})"
            self.masks |= {axis.name: mask} if mask else {}
            self.mask = " & ".join(dict.fromkeys(self.masks.values()))
            value = self._dot_operand(factor)
            needed = [o for o in before[k] if o.name != factor.value.name or value is factor.value]
            if value.name in self.copied:
                self._copy(value, needed, start, self.corner[k], turned=bool(k))
            else:
                self._straight(needed)
            text = self.slots[value.name].value.text
            if mask and value.op != "load":
                text = f"tl.where({mask}, {text}, 0)"
            sizes = "[YBLOCK, DEPTH]" if not k else "[DEPTH, XBLOCK]"
            values.append((f"tl.broadcast_to({text}, {sizes})", value.dtype))
        (a, a_dtype), (b, b_dtype) = values
        if a_dtype != b_dtype:
            a, b = (v if d == "f32" else f"{v}.to(tl.float32)" for v, d in values)
        precision = "" if a_dtype == b_dtype != "f32" else f', input_precision="{"tf32" if tiles.tf32 else "ieee"}"'
        out.put(f"{name} = tl.dot({a}, {b}, {name}{precision})", total.spans)
        out.close("")
        self.masks.pop(axis.name, None)
        self.shape_names -= {axis.name}
        self.slots[total.name] = Slot(Value(name, "f32"), True)

    def _copy(self, load: Op, needed: list[Op], start: str, corner: str, *, turned: bool) -> None:
        """The tile of a matrix, which the card copies where memory is aligned."""
        tile, deep = self.copied[load.name]
        out = self.out
        out.open("if ALIGNED:")
        place = f"[{start}, {corner}]" if deep else f"[{corner}, {start}]"
        name = self._claim(load.name)
        out.put(f"{name} = {tile}.load({place}){'.T' if deep != turned else ''}", load.spans)
        out.close("")
        out.open("else:")
        self._straight(needed)
        out.close("")

    def _dot_operand(self, factor: _Factor) -> Op:
        """What is multiplied: the value before it was made wider, where that loses nothing."""
        by_name = {o.name: o for o in factor.ops}
        if factor.value.op == "cast" and factor.value.args[0] in by_name:
            inner = by_name[factor.value.args[0]]
            if inner.dtype in _HALVES:
                return inner
        return factor.value

    def _mask_of(self, index: Any) -> str:
        if not self.stages:
            return super()._mask_of(index)
        if indirect_names(index):
            return self.mask
        return " & ".join(dict.fromkeys(self.masks[n] for n in sorted(names_in(index)) if n in self.masks))


def _depending(ops: tuple[Op, ...], axis: str) -> set[str]:
    """Names of the ops that change along ``axis``."""
    found: set[str] = set()
    for op in ops:
        index = index_of(op)
        if (index is not None and axis in names_in(index)) or not found.isdisjoint(op.operands()):
            found.add(op.name)
    return found
