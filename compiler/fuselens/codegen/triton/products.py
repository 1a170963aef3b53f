"""Products of matrices as Triton: a tile of sums by ``tl.dot``, then what follows for each element of the tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from ...ir.loops import Axis, Op, Phase, indirect_names
from ..cpu.scalar_ops import Value
from ..expressions import names_in
from ..nest import index_of
from ..source import Unsupported
from .operations import Slot
from .rows import Rows
from .tiles import Tiles

_HALVES = ("f16", "bf16")


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
        program, row, column = (self._claim(f"tile {n}") for n in ("program", "row", "column"))
        out.put(f"{program} = {self._program()}")
        if batches:
            batch = self._claim("tile batch")
            out.put(f"{batch} = {program} // {down * across}")
            self._decode(batches, batch)
            out.put(f"{program} = {program} % {down * across}")
        first, height = self._claim("tile first"), self._claim("tile height")
        out.put(f"{first} = {program} // (GROUP * {across}) * GROUP  # tiles next to each other share what they read")
        out.put(f"{height} = tl.minimum({down} - {first}, GROUP)")
        out.put(f"{row} = {first} + {program} % (GROUP * {across}) % {height}")
        out.put(f"{row} = ({row} * YBLOCK + tl.arange(0, YBLOCK))[:, None]")
        out.put(f"{column} = {program} % (GROUP * {across}) // {height}")
        out.put(f"{column} = ({column} * XBLOCK + tl.arange(0, XBLOCK))[None, :]")
        self._decode(rows, row)
        self._decode(columns, column)
        if int(high) % tiles.rows:
            self.masks |= dict.fromkeys((a.name for a in rows), f"({row} < {high})")
        if int(wide) % tiles.columns:
            self.masks |= dict.fromkeys((a.name for a in columns), f"({column} < {wide})")
        self.mask = " & ".join(dict.fromkeys(self.masks.values()))
        self.shape_names = frozenset(a.name for a in (*rows, *columns))
        self._sum(phase.axes[0], total, left, right, tiles)
        self.mask = " & ".join(dict.fromkeys(self.masks.values()))
        self.spread = "tl.zeros([YBLOCK, XBLOCK], tl.int32)"
        self._straight(rest)
        return sympy.Integer(down * across) * sympy.Mul(*(a.size for a in batches)), tiles.warps

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
            self._straight([o for o in before[k] if o.name != factor.value.name or value is factor.value])
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
