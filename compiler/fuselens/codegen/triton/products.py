"""Products of matrices as Triton: a tile of sums by ``tl.dot``, then what follows for each element of the tile."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from ...ir.affine import within
from ...ir.loops import ITEMSIZE, Axis, Op, Phase, indirect_names
from ..expressions import TRITON, linear, names_in, print_index
from ..nest import index_of
from ..operands import Value
from ..source import Unsupported
from .blocks import blocks_of
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
        fixed = all(a.size.is_Integer for a in (*columns, *phase.axes))
        if neither or (tiles.programs and (batches or not fixed)):
            raise Unsupported("a product of other axes")
        self.rank, self.stages = 2, tiles.stages
        self.blocks |= {"YBLOCK": tiles.rows, "XBLOCK": tiles.columns, "DEPTH": tiles.depth, "GROUP": tiles.group}
        tall, broad = blocks_of(high, tiles.rows), blocks_of(wide, tiles.columns)
        self.shape_names = frozenset(a.name for a in (*rows, *columns))
        if tiles.programs and len(phase.axes) == 1 and descriptors_of(kernel.name) in self.unit.graph.buffers:
            for name, factor, place in (("left", left, rows), ("right", right, columns)):
                self._describe(name, factor, phase.axes[0], place, high if name == "left" else wide, tiles)
        program, row, column = (self._claim(f"tile {n}") for n in ("program", "row", "column"))
        down, across = self._number_of("tiles down", tall), self._number_of("tiles across", broad)
        several = tall * broad
        count = str(several) if several.is_Integer else f"({down} * {across})"
        programs = min(tiles.programs, int(several)) if several.is_Integer else tiles.programs
        if programs:
            out.open(f"for {program} in tl.range({self._program()}, {count}, {programs}, flatten=True):")
        else:
            out.put(f"{program} = {self._program()}")
        if batches:
            batch = self._claim("tile batch")
            out.put(f"{batch} = {program} // {count}")
            self._decode(batches, batch)
            out.put(f"{program} = {program} % {count}")
        first, height = self._claim("tile first"), self._claim("tile height")
        self.corner = (self._claim("tile top"), self._claim("tile left"))
        top, side = self.corner
        out.put(f"{first} = {program} // (GROUP * {across}) * GROUP  # tiles next to each other share what they read")
        out.put(f"{height} = tl.minimum({down} - {first}, GROUP)")
        out.put(f"{top} = ({first} + {program} % (GROUP * {across}) % {height}) * YBLOCK")
        out.put(f"{side} = {program} % (GROUP * {across}) // {height} * XBLOCK")
        out.put(f"{row} = ({top} + tl.arange(0, YBLOCK))[:, None]")
        self._decode(rows, row)
        if not _covers(high, tiles.rows):
            limit = self._number_of("tile rows", high)
            self.masks |= dict.fromkeys((a.name for a in rows), f"({row} < {limit})")

        def across_from(start: str, count: str) -> None:
            out.put(f"{column} = ({start} + tl.arange(0, {count}))[None, :]")
            self._decode(columns, column)

        if not _covers(wide, tiles.columns):
            limit = self._number_of("tile columns", wide)
            self.masks |= dict.fromkeys((a.name for a in columns), f"({column} < {limit})")
        across_from(side, "XBLOCK")
        self.mask = " & ".join(dict.fromkeys(self.masks.values()))
        self._sum(phase.axes, total, left, right, tiles)
        self.mask = " & ".join(dict.fromkeys(self.masks.values()))
        if not programs:
            self.spread = "tl.zeros([YBLOCK, XBLOCK], tl.int32)"
            self._straight(rest)
            return several * sympy.Mul(*(a.size for a in batches)), tiles.warps
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
        load, inside = _dot_operand(factor)
        if inside or load.op != "load" or len(place) != 1:
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
        extent = self._number_of("tile rows", size) + ("" if size.is_Integer else ".to(tl.int32)")
        extents = {axis.name: (axis.size, "DEPTH"), place[0].name: (extent, "YBLOCK" if name == "left" else "XBLOCK")}
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
        if not first.axes or any(p.axes for p in others):
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

    def _number_of(self, label: str, size: Expr) -> str:
        """A size as a number, or the variable that has it."""
        if size.is_Integer or label in self.names:
            return str(size) if size.is_Integer else self.names[label]
        name = self._claim(label)
        self.out.put(f"{name} = {print_index(size, self.names, TRITON)}")
        return name

    def _sum(self, axes: tuple[Axis, ...], total: Op, left: _Factor, right: _Factor, tiles: Tiles) -> None:
        out = self.out
        length = sympy.Mul(*(a.size for a in axes))
        name = self._claim(total.name)
        moving: dict[int, set[str]] = {}
        for k, factor in enumerate((left, right)):
            moving[k] = _depending(factor.ops, frozenset(a.name for a in axes))
            self._straight([o for o in factor.ops if o.name not in moving[k]])
        limit = "" if _covers(length, tiles.depth) else self._number_of("tile terms", length)
        out.put(f"{name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)", total.spans)
        start = self._claim("tile start")
        out.open(f"for {start} in range(0, {limit or length}, DEPTH):")
        *outer, inner = axes
        along, first = (
            bool(outer) and _covers(inner.size, tiles.depth),
            start,
        )  # a tile's terms differ along one axis only
        if along:
            tap, first = self._claim("tile tap"), self._claim("tile first term")
            out.put(f"{tap} = {start} // {inner.size}")
            self._decode(tuple(outer), tap)
            out.put(f"{first} = {start} - {tap} * {inner.size}")  # of a remainder Triton knows no multiples
        values = []
        self.shape_names |= {a.name for a in ((inner,) if along else axes)}
        for k, (factor, side) in enumerate(((left, "[None, :]"), (right, "[:, None]"))):
            place = self._claim(f"tile {'along' if k else 'down'} {inner.name}")
            wide = ".to(tl.int64)" if self.wide else ""
            out.put(f"{place} = ({first} + tl.arange(0, DEPTH)){wide}{side}")
            if along or not outer:
                self.names[inner.name] = place
            else:
                self._decode(axes, place)
            mask = f"({place} < {limit})" if limit else ""
            self.masks |= dict.fromkeys((a.name for a in axes), mask) if mask else {}
            self.mask = " & ".join(dict.fromkeys(self.masks.values()))
            text, dtype = self._operand(factor, moving[k], mask, start, turned=bool(k))
            values.append((f"tl.broadcast_to({text}, {'[DEPTH, XBLOCK]' if k else '[YBLOCK, DEPTH]'})", dtype))
        (a, a_dtype), (b, b_dtype) = values
        if a_dtype != b_dtype:
            a, b = (v if d == "f32" else f"{v}.to(tl.float32)" for v, d in values)
        precision = "" if a_dtype == b_dtype != "f32" else f', input_precision="{"tf32" if tiles.tf32 else "ieee"}"'
        out.put(f"{name} = tl.dot({a}, {b}, {name}{precision})", total.spans)
        out.close("")
        for axis in axes:
            self.masks.pop(axis.name, None)
        self.shape_names -= {a.name for a in axes}
        self.slots[total.name] = Slot(Value(name, "f32"), True)

    def _operand(self, factor: _Factor, moving: set[str], mask: str, start: str, *, turned: bool) -> tuple[str, str]:
        """A tile of a factor, 0 where ``mask`` does not hold, and its type."""
        value, inside = _dot_operand(factor)
        needed = [o for o in _needed(factor.ops, {value.name, inside}) if o.name in moving]
        if value.name in self.copied:
            self._copy(value, needed, start, self.corner[turned], turned=turned)
            return self.slots[value.name].value.text, value.dtype
        first = _needed(factor.ops, {inside})
        if inside and value.op == "load" and value in needed and value not in first:  # loaded where it is wanted only
            self._straight([o for o in needed if o is not value])
            self.beside = self.slots[inside].value.text
            self._straight([_without_limits(value, first, inside)])
            self.beside = inside = ""
        else:
            self._straight(needed)
        text = self.slots[value.name].value.text
        conditions = [mask if value.op != "load" else "", self.slots[inside].value.text if inside else ""]
        wanted = " & ".join(c for c in conditions if c)
        return f"tl.where({wanted}, {text}, 0)" if wanted else text, value.dtype

    def _copy(self, load: Op, needed: list[Op], start: str, corner: str, *, turned: bool) -> None:
        """The tile of a matrix, which the card copies where memory is aligned."""
        tile, deep = self.copied[load.name]
        out = self.out
        corner += ".to(tl.int32)" if self.wide else ""
        out.open("if ALIGNED:")
        place = f"[{start}, {corner}]" if deep else f"[{corner}, {start}]"
        name = self._claim(load.name)
        out.put(f"{name} = {tile}.load({place}){'.T' if deep != turned else ''}", load.spans)
        out.close("")
        out.open("else:")
        self._straight(needed)
        out.close("")

    def _mask_of(self, index: Any) -> str:
        if not self.masks and not self.beside:
            return super()._mask_of(index)
        masks = [self.masks[n] for n in sorted(names_in(index)) if n in self.masks]
        masks = [self.mask] if indirect_names(index) else masks
        return " & ".join(m for m in dict.fromkeys((*masks, self.beside)) if m)


def _depending(ops: tuple[Op, ...], axes: frozenset[str]) -> set[str]:
    """Names of the ops that change along ``axes``."""
    found: set[str] = set()
    for op in ops:
        index = index_of(op)
        if (index is not None and axes & names_in(index)) or not found.isdisjoint(op.operands()):
            found.add(op.name)
    return found


def _needed(ops: Iterable[Op], names: set[str]) -> list[Op]:
    """Those of ``ops`` that values of these names are computed from."""
    found: list[Op] = []
    for op in reversed(tuple(ops)):
        if op.name in names:
            names = names | {*op.operands()}
            found.append(op)
    return found[::-1]


def _dot_operand(factor: _Factor) -> tuple[Op, str]:
    """What is multiplied, as it was before it was made wider, where that loses nothing, and the condition without which it is
    0, "" where there is none."""
    by_name = {o.name: o for o in factor.ops}
    value, inside = factor.value, ""
    if value.op == "where" and by_name[value.args[2]].op == "const" and by_name[value.args[2]].args[0] == 0:
        inside, value = value.args[0], by_name[value.args[1]]
    if value.op == "cast" and value.args[0] in by_name:
        inner = by_name[value.args[0]]
        if inner.dtype in (*_HALVES, value.dtype):
            value = inner
    return value, inside


def _without_limits(load: Op, ops: Iterable[Op], inside: str) -> Op:
    """``load``, which happens where ``inside`` holds only, without what holds positions inside of memory that are there then."""
    by_name = {o.name: o for o in ops}
    low: set[Expr] = set()
    high: dict[Expr, Expr] = {}
    wanted = [by_name[inside]]

    def place(name: str) -> Expr | None:
        op = by_name[name]
        while op.op == "cast":
            op = by_name[op.args[0]]
        return sympy.sympify(op.args[0]) if op.op in ("index", "const") else None

    while wanted:
        op = wanted.pop()
        if op.op == "and":
            wanted += [by_name[a] for a in op.args]
        elif op.op in ("ge", "lt"):
            at, end = map(place, op.args)
            if at is not None and end is not None:
                low |= {at} if op.op == "ge" and end == 0 else set()
                high |= {at: end} if op.op == "lt" else {}
    limits = {within(at, end - 1): at for at, end in high.items() if at in low}
    index = sympy.expand(sympy.sympify(load.args[1]).xreplace(limits))
    return dataclasses.replace(load, args=(load.args[0], index))


def _covers(size: Expr, block: int) -> bool:
    """Whether blocks end where ``size`` does."""
    return bool(size.is_Integer) and int(size) % block == 0
