"""The single operations of a kernel as Triton: values, positions, loads and stores of whatever block a program computes.

Writers of each form of kernel hold :class:`Operations`, and say with a :class:`~.place.Place` where an operation is written.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import sympy
from sympy import Expr

from ...ir.contracts.source import Unsupported, Writer
from ...ir.loops import Axis, Graph, Kernel, Op, element, indirect_names
from ..expressions import TRITON, names_in, print_factor, print_index
from ..nest import index_of
from ..operands import Value
from .guarded import Guarded, guarded
from .place import Needs, Place, Slot
from .scalar_ops import FUNCTIONS, TABLE, TYPES, bitcast, cast, literal

ATOMIC = frozenset(
    {("sum", d) for d in ("f64", "f32", "f16", "i64", "i32")} | {(k, d) for k in ("max", "min") for d in ("i64", "i32")}
)
"""Updates that points of one program, and programs, may do at the same time."""
_RESERVED = frozenset(
    (*"tl triton libdevice float part x xmask y ymask program range start rest zero".split(), *FUNCTIONS)
)
FOLDING = tuple(f"_{word}" for word in "all at best better carry far most new now run sum".split())
"""How the names of what folds keep end: no value of the program has such a name."""
_ZERO = sympy.Symbol("%zero", integer=True, nonnegative=True)
_DIVISIONS = ("FloorDiv", "CleanDiv", "Mod", "PythonMod", "ModularIndexing")
_NONE: Mapping[Expr, str] = MappingProxyType({})


class Operations:
    """Writes operations one after the other to ``out``, and keeps what their values are called."""

    def __init__(self, graph: Graph, kernel: Kernel, wide: bool) -> None:
        self.graph, self.kernel = graph, kernel
        self.wide = wide  # whether indices have 64 bits
        self.out = Writer("#", "    ")
        self.out.open("pass")  # only for the indentation
        self.names: dict[str, str] = {}
        self.slots: dict[str, Slot] = {}
        self.needs = Needs()

    def need(self, *functions: str) -> None:
        self.needs.functions.update(functions)

    def claim(self, name: str) -> str:
        """A variable for ``name``."""
        text = re.sub(r"\W", "_", name)
        if text in _RESERVED or keyword.iskeyword(text) or not text[0].isalpha():
            text = f"v_{text}"
        if text.endswith(FOLDING):
            text += "_"
        while text in self.names.values() and self.names.get(name) != text:
            text += "_"
        self.names[name] = text
        return text

    def program(self) -> str:
        return "tl.program_id(0).to(tl.int64)" if self.wide else "tl.program_id(0)"

    def size(self, size: Expr) -> str:
        return print_factor(size, self.names, TRITON)

    def decode(self, axes: tuple[Axis, ...], flat: str) -> None:
        rest = flat
        for k, axis in enumerate(reversed(axes)):
            size = self.size(axis.size)
            last = k == len(axes) - 1
            self.out.put(f"{self.names[axis.name]} = {rest}" if last else f"{self.names[axis.name]} = {rest} % {size}")
            rest = f"({rest}) // {size}" if k else f"{rest} // {size}"

    def straight(self, body: Iterable[Op], place: Place) -> None:
        ops = list(body)
        under = guarded(ops, self.kernel, self.graph, lambda index: self._may_be_masked(index, place))
        late = {op.name for g in under.values() for op in (g.load, *g.casts)}
        for op in ops:
            if op.name in under:
                self._guarded(op, under[op.name], place)
            elif op.name not in late:
                self.op(op, place)

    def _may_be_masked(self, index: Expr, place: Place) -> bool:
        """Whether a load has the block's shape, as masks may."""
        return (len(place.shape) == 1 and self._varies(index, place)) or place.fills(names_in(index))

    def _guarded(self, choice: Op, under: Guarded, place: Place) -> None:
        """The load and what is made of it, instead of the choice between that and a number."""
        other = literal(under.other, under.load.dtype)
        self._load(under.load, place, self.text(under.condition), other)
        for cast_ in under.casts:
            self.op(cast_, place)
        self.slots[choice.name] = self.slots[(under.load, *under.casts)[-1].name]

    def define(self, op: Op, text: str, varies: bool = True) -> None:
        name = self.claim(op.name)
        self.out.put(f"{name} = {text}", op.spans)
        self._keep(op, name, varies)

    def _keep(self, op: Op, name: str, varies: bool) -> None:
        """What ``op`` computes is in the variable ``name``."""
        self.slots[op.name] = Slot(Value(name, op.dtype), varies)

    def _differs(self, op: Op, place: Place) -> bool:
        """Whether the op's value differs between elements of the block."""
        index = index_of(op)
        return any(self.slots[n].varies for n in op.operands()) or (index is not None and self._varies(index, place))

    def _varies(self, index: Any, place: Place) -> bool:
        return place.varies(names_in(index)) or any(self.slots[n].varies for n in indirect_names(index))

    def text(self, name: str) -> str:
        """The variable of a value."""
        return self.slots[name].value.text

    def index(self, expression: Expr, held: Mapping[Expr, str] = _NONE) -> str:
        """An index; ``held`` are those that variables hold."""
        if expression in held:
            return held[expression]
        names = dict(self.names)
        for indirect in indirect_names(expression):
            names["%" + indirect] = self.text(indirect)
        return print_index(self._unbounded(expression, names), names, TRITON)

    def _unbounded(self, expression: Any, names: dict[str, str]) -> Expr:
        """``expression`` whose dividends have no bounds that a compiler could know.

        LLVM divides numbers that it knows to be small in pairs of 16 bits, and ptxas (12.8 to 13.1, for sm_90) loses
        the constant of an ``add.s16x2`` of which only one half is used.
        """

        def divides_sum(e: Any) -> bool:
            return type(e).__name__ in _DIVISIONS and any(a.is_Integer for a in sympy.Add.make_args(e.args[0]))

        if not any(map(divides_sum, sympy.preorder_traversal(expression))):
            return expression
        self.needs.divided.append(expression)
        names[_ZERO.name] = "zero"
        return expression.replace(divides_sum, lambda e: e.func(e.args[0] + _ZERO, *e.args[1:]))

    def op(self, op: Op, place: Place) -> None:
        if op.op == "load":
            self._load(op, place)
        elif op.op == "store":
            self._store(op, place)
        elif op.op == "const":
            number = op.args[0]
            if not isinstance(number, (int, float)):
                raise Unsupported(f"constant {number!r}")
            text = literal(number, op.dtype)
            infix = "" if op.dtype == "bool" or not text[0].isdigit() or op.dtype == "f64" else text
            self.slots[op.name] = Slot(Value(_full(text, op.dtype, place), op.dtype, number, infix), False)
        elif op.op == "bounds":
            self._bounds(op, place)
        else:
            self.define(op, self._computed(op, place), self._differs(op, place))

    def _computed(self, op: Op, place: Place) -> str:
        if op.op == "index":
            return self._position(sympy.sympify(op.args[0]), place, op.dtype)
        if op.op == "random":
            self.need("random_word")
            keys = ", ".join(self.text(k) for k in op.args[:2])
            return f"random_word({keys}, {op.args[2]}, {self._position(sympy.sympify(op.args[3]), place)})"
        values = [self.slots[a].value if isinstance(a, str) else _number(a, op, place) for a in op.args]
        if op.op == "cast":
            return cast(self, op, values[0])
        if op.op == "bitcast":
            return bitcast(self, op, values[0])
        if op.op in TABLE:
            return TABLE[op.op](self, op, values)
        raise Unsupported(f"operation {op.op}")

    def _bounds(self, op: Op, place: Place) -> None:
        """A checked position. A program stops where it is out of range, as eager's kernels do."""
        value, size, wrap = op.args
        at, n = self.text(value), self.size(size)
        name = self.claim(op.name)
        self.out.put(f"{name} = {f'tl.where({at} < 0, {at} + {n}, {at})' if wrap else at}", op.spans)
        inside = f"({name} >= 0) & ({name} < {n})"
        condition = f"({inside}) | ~({place.mask})" if place.mask else inside
        self.out.put(f"tl.device_assert({condition}, 'index out of range')")
        self.out.put(f"{name} = tl.where({inside}, {name}, 0)")
        self._keep(op, name, self._differs(op, place))
        self.needs.checked.append(op)

    def _position(self, expression: Expr, place: Place, dtype: str = "i64") -> str:
        """The value of an index expression."""
        text = self.index(expression, place.held)
        if expression.is_Integer:
            return _full(text, dtype, place)
        if not place.varies(names_in(expression)) and not indirect_names(expression):
            return f"({text}) + {_full('0', dtype, place)}"
        return f"({text}).to({TYPES[dtype]})"

    def _mask_of(self, index: Any, place: Place) -> str:
        """Which elements of a block may be loaded; "" where all may."""
        if not place.limits and not place.beside:
            return place.mask if self._varies(index, place) else ""
        axes = sorted(names_in(index) & place.limits.keys())
        masks = [place.mask] if indirect_names(index) else [place.limits[a] for a in axes]
        return " & ".join(m for m in dict.fromkeys((*masks, place.beside)) if m)

    def _load(self, op: Op, place: Place, condition: str = "", other: str = "0") -> None:
        """``other`` is what there is where ``condition`` fails."""
        storage, index = op.args[0], sympy.sympify(op.args[1])
        dtype = element(self.graph.buffers[storage].dtype)
        if dtype not in TYPES:
            raise Unsupported(f"load of {dtype}")
        pointer = self.names[storage]
        offset = self.index(index, place.held)
        address = pointer if index == 0 else f"{pointer} + ({offset})" if " - " in offset else f"{pointer} + {offset}"
        mask = " & ".join(m for m in (self._mask_of(index, place), condition) if m)
        mask = f", {mask}, other={other}" if mask else ""
        policy = place.policies.get(storage, "") if names_in(index) & place.axes[-1] else ""
        hint = f', eviction_policy="{policy}"' if policy else ""
        text = f"tl.load({address}{mask}{hint})"
        if dtype == "bool":
            text += ".to(tl.int1)"
        self.define(op, text, self._differs(op, place))

    def _store(self, op: Op, place: Place) -> None:
        storage, index = op.args[0], sympy.sympify(op.args[1])
        value = self.text(op.args[2])
        text = self.index(index, place.held)
        full = not indirect_names(index) and place.fills(names_in(index))
        offset = place.zeros if index == 0 else text if full else f"({text}) + {place.zeros}"
        mask = f", {place.mask}" if place.mask else ""
        if op.dtype == "bool" and op.update in ("max", "min"):  # points that change an element write the same
            changes = f"(({value}) {'!=' if op.update == 'max' else '=='} 0)"
            mask = f", {' & '.join(m for m in (place.mask, changes) if m)}"
        elif op.update not in ("", "last"):
            if (op.update, op.dtype) not in ATOMIC:
                raise Unsupported(f"update {op.update} of {op.dtype}")
            name = f"tl.atomic_{'add' if op.update == 'sum' else op.update}"
            value = f"({value}) + tl.zeros_like({place.zeros})"
            self.out.put(f'{name}({self.names[storage]} + {offset}, {value}{mask}, sem="relaxed")', op.spans)
            return
        first = place.stores_first and names_in(index) & place.axes[-1] and storage not in self.kernel.reads()
        hint = ', eviction_policy="evict_first"' if first else ""
        self.out.put(f"tl.store({self.names[storage]} + {offset}, {value}{mask}{hint})", op.spans)


def _full(text: str, dtype: str, place: Place) -> str:
    """A number for each element of a block."""
    return f"tl.full([{', '.join('1' for _ in place.shape)}], {text}, {TYPES[dtype]})"


def _number(number: object, op: Op, place: Place) -> Value:
    if isinstance(number, (int, float)):
        return Value(_full(literal(number, op.dtype), op.dtype, place), op.dtype, number)
    raise Unsupported(f"operand {number!r} of {op.op}")
