"""The values of a kernel: their C++ names, where they live, and how constants and indices are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sympy import Expr

from ...ir.contracts.source import Unsupported, Writer
from ...ir.loops import Axis, Kernel, Op, indirect_names
from ..expressions import C, print_index
from ..nest import Nest, Plan, Tuning, in_one_pass, plan, simplify
from ..operands import Value
from .reserved import RESERVED
from .scalar_ops import literal
from .unit import Unit
from .vectors.parts import REGISTER


@dataclass(slots=True)
class BodyLoop:
    """A loop of a phase: its axis, C++ variable, bounds, and whether it steps by vectors. Bounds inside of the axis are
    multiples of ``quantum``."""

    axis: Axis
    lo: str
    hi: str
    vector: bool
    quantum: int = 1


@dataclass(slots=True)
class Slot:
    """Where a value lives: its text, dtype, the loop level that defines it, and whether lanes differ."""

    value: Value
    level: int
    varying: bool


class ValueWriter:
    """Prints values of one kernel into ``out``."""

    def __init__(self, unit: Unit, kernel: Kernel, out: Writer) -> None:
        self.unit, self.source, self.out = unit, kernel, out
        self.nest: Nest = simplify(in_one_pass(kernel, unit.same_memory), unit.graph)
        self.kernel = self.nest.kernel
        self.tuning = unit.tunings.get(kernel.name, Tuning())
        self.plan: Plan = plan(self.nest, self.tuning.layout)
        self.wide = self.plan.wide or unit.isa.register == 0
        self.fast = unit.isa.fast
        self.width = self._lanes()
        self.wide |= self.width < unit.isa.lanes(False)  # a unit has one kind of mask for each number of lanes
        self.slots: dict[str, Slot] = {}
        self.names: dict[str, str] = {}
        self.checks = False
        self.left = str(self.width)
        self.looping = False
        self.across = 1  # vectors side by side that a unit of a columns kernel computes, at most
        self.strip: tuple[Expr, str] | None = (
            None  # where their number is only known when it runs: columns, and their end
        )

    def _lanes(self) -> int:
        """Lanes of a vector: fewer than a register has, down to four, where the axis that vectors run along is that short."""
        lanes = self.unit.isa.lanes(self.wide)
        size = self.nest.size(self.plan.vector) if self.plan.vector else None
        while size is not None and size.is_Integer and 1 < int(size) <= lanes // 2 and lanes > 4:
            lanes //= 2
        return lanes

    # --- the emitter interface of scalar_ops ---

    def need(self, *parts: str) -> None:
        self.checks |= any(p.startswith(("int_division", "bound")) for p in parts)
        self.unit.need(self.width, self.wide, parts)

    def vector(self, register: str) -> str:
        return f"{register}x{self.width}"

    def claim(self, name: str, suffix: str = "") -> str:
        """A C++ identifier for an IR name."""
        text = re.sub(r"\W", "_", name) + suffix
        if text in RESERVED or not text[0].isalpha():
            text = f"v_{text}"
        while text in self.names.values() and self.names.get(name) != text:
            text += "_"
        self.names[name + suffix] = text
        return text

    # --- vectors side by side, and lanes of the last one ---

    def _open_across(self) -> None:
        """The loop over the vectors that lie side by side; if they are few, the compiler unrolls it and keeps arrays in
        registers."""
        name = self.names[self.plan.vector]
        if not self.strip:
            self.out.put(f"#pragma GCC unroll {self.across}")
        self.out.open(f"{self._each_across()} {{")
        self.out.put(f"const long {name} = {name}_first + u * {self.width};")
        if self.strip:
            self._left(self.strip[0], name, self.strip[1])

    def _each_across(self) -> str:
        return f"for (long u = 0; u < {'count' if self.strip else self.across}; ++u)"

    def _left(self, size: Expr, name: str, hi: str) -> None:
        """Declares how many lanes exist from here on; constant where every vector is full."""
        if self.width == 1 or (size.is_Integer and int(size) % self.width == 0):
            self.left = str(self.width)
        else:
            self.left = "left"
            self.out.put(f"const long left = {hi} - {name};")

    # --- names and texts ---

    def _text(self, name: str) -> str:
        return self.slots[name].value.text

    def _index(self, expression: Expr) -> str:
        """An index expression as a scalar; gathered indices that are the same in every lane are read from lane 0."""
        names = dict(self.names)
        for indirect in indirect_names(expression):
            names["%" + indirect] = f"{self._text(indirect)}[0]"
        return print_index(expression, names, C)

    def _define(self, op: Op, text: str) -> None:
        register = REGISTER[op.dtype]
        name = self.claim(op.name)
        if self.across > 1 and not self.looping:
            self.out.put(f"{name}[u] = {text};", op.spans)  # later phases use it
            name = f"{name}[u]"
        else:
            self.out.put(f"const {self.vector(register)} {name} = {text};", op.spans)
        self.slots[op.name].value = Value(name, op.dtype)

    def _splat(self, register: str, text: str) -> str:
        self.need(f"splat.{register}")
        return f"splat({self.vector(register)}{{}}, {text})"

    def _number(self, number: object, op: Op) -> Value:
        if isinstance(number, (int, float)):
            text = literal(number, op.dtype)
            return Value(self._splat(REGISTER[op.dtype], text), op.dtype, number, text)
        raise Unsupported(f"operand {number!r} of {op.op}")

    def _constant(self, op: Op) -> None:
        number = op.args[0]
        if isinstance(number, complex) or not isinstance(number, (int, float)):
            raise Unsupported(f"constant {number!r}")
        text = literal(number, op.dtype)
        register = REGISTER[op.dtype]
        splat = f"({self.vector('mask')}{{}} + ({text}))" if register == "mask" else self._splat(register, text)
        self.slots[op.name].value = Value(splat, op.dtype, number, "" if register == "mask" else _signed(text))


def _signed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def lane_zero(value: Value) -> str:
    return f"({value.text})[0]" if "(" in value.text else f"{value.text}[0]"
