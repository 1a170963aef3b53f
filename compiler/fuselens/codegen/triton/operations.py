"""The single operations of a kernel as Triton: values, positions, loads and stores of whatever block a program computes."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import sympy
from sympy import Expr

from ...ir.contracts.source import Unsupported, Writer
from ...ir.loops import Axis, Graph, Kernel, Op, element, indirect_names
from ..expressions import TRITON, names_in, print_factor, print_index
from ..nest import Nest, index_of, simplify
from ..operands import Value
from .choices.attention_blocks import AttentionBlocks
from .choices.blocks import Blocks
from .choices.directions import spread
from .choices.tiles import Tiles
from .scalar_ops import FUNCTIONS, TABLE, TYPES, bitcast, cast, literal

ATOMIC = frozenset(
    {("sum", d) for d in ("f64", "f32", "f16", "i64", "i32")} | {(k, d) for k in ("max", "min") for d in ("i64", "i32")}
)
"""Updates that points of one program, and programs, may do at the same time."""
_RESERVED = frozenset(
    (*"tl triton libdevice float part x xmask y ymask program range start rest zero".split(), *FUNCTIONS)
)
_ZERO = sympy.Symbol("%zero", integer=True, nonnegative=True)
_DIVISIONS = ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing")


class Unit:
    def __init__(
        self, graph: Graph, tunings: Mapping[str, Blocks | Tiles | AttentionBlocks] = MappingProxyType({})
    ) -> None:
        self.graph = graph
        self.tunings = tunings  # by kernel, where measuring has chosen
        self.functions: set[str] = set()
        self.far = {b.owner for b in graph.buffers.values() if _is_wide(b.end()) or _is_wide(b.numel())}


@dataclass(slots=True)
class Slot:
    value: Value
    varies: bool  # between the block's points; if not, it may be a number, which loads with masks do not take


def _is_wide(count: Expr) -> bool:
    return not count.is_Integer or int(count) >= 2**31


class Operations:
    """Writes operations one after the other. ``mask`` and ``spread`` say which block they are of."""

    def __init__(self, unit: Unit, kernel: Kernel, out: Writer) -> None:
        self.unit, self.source, self.out = unit, kernel, out
        self.nest: Nest = simplify(spread(kernel, unit.graph), unit.graph)
        self.kernel = self.nest.kernel
        self.names: dict[str, str] = {}
        self.slots: dict[str, Slot] = {}
        tuning = unit.tunings.get(kernel.name)
        self.tuning = tuning if isinstance(tuning, Blocks) else None
        self.tiles = tuning if isinstance(tuning, Tiles) else None
        self.chosen = Blocks(1)
        self.stages = 0  # of a product's loads
        self.masks: dict[str, str] = {}  # of a product, by axis
        self.beside = ""  # a condition of the load that is written, besides masks
        self.copied: dict[str, tuple[str, bool]] = {}  # loads of a product that the card copies
        self.corner = ("", "")  # where a product's tile begins
        self.blocks: dict[str, int] = {}
        self.uses_libdevice = False
        self.checks = False
        self.divides_sums = False
        self.places: dict[Expr, str] = {}  # indices that variables hold
        self.parts = 1  # of a row, each another program's
        self.rank = 1
        self.mask = self.point_mask = self.fold_mask = ""
        self.spread = ""
        self.shape_names: frozenset[str] = frozenset()  # axes along which the block's points differ
        self.backward = False  # whether the phase walks its columns from their end
        self.stores_first = False  # whether stored elements are to leave the cache first
        self.policies: Mapping[str, str] = {}  # how loads of the phase's elements treat the cache
        self.columns: frozenset[str] = frozenset()  # the phase's axes
        self.peaks: dict[str, str] = {}  # sums of exponentials, and whose running maximum they share
        # 32-bit indices are faster; symbolic sizes may grow beyond them
        touched = {*kernel.reads(), *kernel.writes()}
        groups = (self.kernel.axes, *(p.axes for p in self.kernel.phases))
        counts = [sympy.Mul(*(a.size for a in axes)) for axes in groups]
        self.wide = not unit.far.isdisjoint(touched) or any(map(_is_wide, counts))

    def _widen_sizes(self, sizes: Iterable[str]) -> None:
        """Counts what sizes make by 64 bits: each may have 32, not their products."""
        for name in map(self.names.__getitem__, sizes) if self.wide else ():
            self.out.put(f"    {name} = {name}.to(tl.int64)", note=False)

    def need(self, *functions: str) -> None:
        self.unit.functions |= set(functions)
        self.uses_libdevice |= "libdevice" in functions

    def full(self, text: str, dtype: str) -> str:
        return f"tl.full([{', '.join(['1'] * self.rank)}], {text}, {TYPES[dtype]})"

    def _claim(self, name: str) -> str:
        text = re.sub(r"\W", "_", name)
        if text in _RESERVED or keyword.iskeyword(text) or not text[0].isalpha():
            text = f"v_{text}"
        while text in self.names.values() and self.names.get(name) != text:
            text += "_"
        self.names[name] = text
        return text

    def _program(self) -> str:
        return "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"

    def _decode(self, axes: tuple[Axis, ...], flat: str) -> None:
        rest = flat
        for k, axis in enumerate(reversed(axes)):
            size = print_factor(axis.size, self.names, TRITON)
            last = k == len(axes) - 1
            self.out.put(f"{self.names[axis.name]} = {rest}" if last else f"{self.names[axis.name]} = {rest} % {size}")
            rest = f"({rest}) // {size}" if k else f"{rest} // {size}"

    def _straight(self, body: list[Op] | tuple[Op, ...]) -> None:
        for op in body:
            self._op(op)

    def _define(self, op: Op, text: str) -> None:
        name = self._claim(op.name)
        self.out.put(f"{name} = {text}", op.spans)
        self._keep(op, name)

    def _keep(self, op: Op, name: str) -> None:
        """What ``op`` computes is in the variable ``name``."""
        varies = op.op in ("reduce", "scan") or any(self.slots[n].varies for n in op.operands())
        index = index_of(op)
        varies = varies or (index is not None and self._varies(index))
        self.slots[op.name] = Slot(Value(name, op.dtype), varies)

    def _index(self, expression: Expr) -> str:
        if expression in self.places:
            return self.places[expression]
        names = dict(self.names)
        for indirect in indirect_names(expression):
            names["%" + indirect] = self.slots[indirect].value.text
        return print_index(self._unbounded(expression, names), names, TRITON)

    def _unbounded(self, expression: Any, names: dict[str, str]) -> Expr:
        """``expression`` whose dividends have no bounds that a compiler could know.

        LLVM divides numbers that it knows to be small in pairs of 16 bits, and ptxas (12.8 to 13.1, for sm_90) loses
        the constant of an ``add.s16x2`` of which only one half is used.
        """

        def divides_sum(e: Any) -> bool:
            return type(e).__name__ in _DIVISIONS and any(a.is_Integer for a in sympy.Add.make_args(e.args[0]))

        found = {e for e in sympy.preorder_traversal(expression) if divides_sum(e)}
        if not found:
            return expression
        self.divides_sums, names[_ZERO.name] = True, "zero"
        return expression.replace(divides_sum, lambda e: e.func(e.args[0] + _ZERO, *e.args[1:]))

    def _op(self, op: Op) -> None:
        if op.op == "load":
            self._load(op)
        elif op.op == "store":
            self._store(op)
        elif op.op == "const":
            number = op.args[0]
            if not isinstance(number, (int, float)):
                raise Unsupported(f"constant {number!r}")
            text = literal(number, op.dtype)
            infix = "" if op.dtype == "bool" or not text[0].isdigit() or op.dtype == "f64" else text
            self.slots[op.name] = Slot(Value(self.full(text, op.dtype), op.dtype, number, infix), False)
        elif op.op == "index":
            self._define(op, self._position(sympy.sympify(op.args[0])))
        elif op.op == "random":
            self.need("random_word")
            keys = ", ".join(self.slots[k].value.text for k in op.args[:2])
            self._define(op, f"random_word({keys}, {op.args[2]}, {self._position(sympy.sympify(op.args[3]))})")
        elif op.op == "bounds":
            self._bounds(op)
        else:
            values = [self.slots[a].value if isinstance(a, str) else self._number(a, op) for a in op.args]
            if op.op == "cast":
                text = cast(self, op, values[0])
            elif op.op == "bitcast":
                text = bitcast(self, op, values[0])
            elif op.op in TABLE:
                text = TABLE[op.op](self, op, values)
            else:
                raise Unsupported(f"operation {op.op}")
            self._define(op, text)

    def _bounds(self, op: Op) -> None:
        """A checked position. A program stops where it is out of range, as eager's kernels do."""
        value, size, wrap = op.args
        at, n = self.slots[value].value.text, print_factor(size, self.names, TRITON)
        name = self._claim(op.name)
        self.out.put(f"{name} = {f'tl.where({at} < 0, {at} + {n}, {at})' if wrap else at}", op.spans)
        inside = f"({name} >= 0) & ({name} < {n})"
        self.out.put(
            f"tl.device_assert({f'({inside}) | ~({self.mask})' if self.mask else inside}, 'index out of range')"
        )
        self.out.put(f"{name} = tl.where({inside}, {name}, 0)")
        self._keep(op, name)
        self.checks = True

    def _position(self, expression: Expr) -> str:
        """The value of an index expression, as i64."""
        text = self._index(expression)
        if expression.is_Integer:
            return self.full(text, "i64")
        if not (names_in(expression) & self.shape_names) and not indirect_names(expression):
            return f"({text}) + {self.full('0', 'i64')}"
        return f"({text}).to(tl.int64)"

    def _number(self, number: object, op: Op) -> Value:
        if isinstance(number, (int, float)):
            text = literal(number, op.dtype)
            return Value(self.full(text, op.dtype), op.dtype, number)
        raise Unsupported(f"operand {number!r} of {op.op}")

    def _varies(self, index: Any) -> bool:
        return bool(names_in(index) & self.shape_names) or any(self.slots[n].varies for n in indirect_names(index))

    def _mask_of(self, index: Any) -> str:
        """Which elements of a block may be loaded; "" where all may."""
        return self.mask if self._varies(index) else ""

    def _load(self, op: Op) -> None:
        storage, index = op.args[0], sympy.sympify(op.args[1])
        dtype = element(self.unit.graph.buffers[storage].dtype)
        if dtype not in TYPES:
            raise Unsupported(f"load of {dtype}")
        pointer = self.names[storage]
        offset = self._index(index)
        address = pointer if index == 0 else f"{pointer} + ({offset})" if " - " in offset else f"{pointer} + {offset}"
        mask = self._mask_of(index)
        mask = f", {mask}, other=0" if mask else ""
        policy = self.policies.get(storage, "") if names_in(index) & self.columns else ""
        hint = f', eviction_policy="{policy}"' if policy else ""
        text = f"tl.load({address}{mask}{hint})"
        if dtype == "bool":
            text += ".to(tl.int1)"
        self._define(op, text)

    def _store(self, op: Op) -> None:
        storage, index = op.args[0], sympy.sympify(op.args[1])
        value = self.slots[op.args[2]].value.text
        text = self._index(index)
        offset = self.spread if index == 0 else f"({text}) + {self.spread}" if not self._full_shape(index) else text
        mask = f", {self.mask}" if self.mask else ""
        if op.dtype == "bool" and op.update in ("max", "min"):  # points that change an element write the same
            changes = f"(({value}) {'!=' if op.update == 'max' else '=='} 0)"
            mask = f", {' & '.join(m for m in (self.mask, changes) if m)}"
        elif op.update not in ("", "last"):
            if (op.update, op.dtype) not in ATOMIC:
                raise Unsupported(f"update {op.update} of {op.dtype}")
            name = f"tl.atomic_{'add' if op.update == 'sum' else op.update}"
            value = f"({value}) + tl.zeros_like({self.spread})"
            self.out.put(f'{name}({self.names[storage]} + {offset}, {value}{mask}, sem="relaxed")', op.spans)
            return
        first = self.stores_first and bool(names_in(index) & self.columns) and storage not in self.kernel.reads()
        hint = ', eviction_policy="evict_first"' if first else ""
        self.out.put(f"tl.store({self.names[storage]} + {offset}, {value}{mask}{hint})", op.spans)

    def _full_shape(self, index: Expr) -> bool:
        """True when the index's own shape is the block's."""
        if indirect_names(index):
            return False
        used = names_in(index)
        if self.rank == 1:
            return bool(used & self.shape_names)
        points = {a.name for a in self.kernel.axes}
        inner = self.shape_names - points
        if not inner:
            return self.shape_names <= used if self.spread.startswith("tl.zeros([Y") else bool(used & self.shape_names)
        return bool(used & inner) and bool(used & points or not points)
