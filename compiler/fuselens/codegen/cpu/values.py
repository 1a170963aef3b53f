"""The values of a kernel: their C++ names, where they live, and how constants and indices are written."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from sympy import Expr

from ...ir.contracts.source import Unsupported, Writer
from ...ir.loops import Axis, Op, indirect_names
from ..expressions import C, print_factor, print_index
from ..operands import Value
from .choices.kernel_plan import KernelPlan
from .places import Place
from .reserved import RESERVED
from .scalar_ops import literal
from .translation_unit import TranslationUnit
from .vectors.parts import REGISTER


@dataclass(frozen=True, slots=True)
class Slot:
    """A value: its text ("" before it is printed) and dtype, and whether lanes differ."""

    value: Value
    varying: bool


class ValueWriter:
    """Prints values of one kernel into ``out``, and collects what is learned on the way: names, slots, and ``checks``."""

    def __init__(self, unit: TranslationUnit, plan: KernelPlan, out: Writer) -> None:
        self.unit, self.plan, self.out = unit, plan, out
        self.width, self.wide, self.fast = plan.width, plan.wide, unit.isa.fast
        self.names: dict[str, str] = {}
        self.slots: dict[str, Slot] = {}
        self.checks: set[str] = set()  # parts in use that look at values

    # --- the emitter interface of scalar_ops ---

    def need(self, *parts: str) -> None:
        self.checks.update(p for p in parts if p.startswith(("int_division", "bound")))
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

    def open_across(self, at: Place) -> Place:
        """The loop over the vectors that lie side by side; if they are few, the compiler unrolls it and keeps arrays in
        registers."""
        name = self.names[self.plan.vector]
        if not at.strip:
            self.out.put(f"#pragma GCC unroll {at.across}")
        self.out.open(f"{at.each_vector} {{")
        self.out.put(f"const long {name} = {name}_first + u * {self.width};")
        return self.left(at, at.strip[0], name, at.strip[1]) if at.strip else at

    def left(self, at: Place, size: Expr, name: str, hi: str) -> Place:
        """Declares how many lanes exist from here on; constant where every vector is full."""
        if at.whole or self.width == 1 or (size.is_Integer and int(size) % self.width == 0):
            return dataclasses.replace(at, left=str(self.width))
        self.out.put(f"const long left = {hi} - {name};")
        return dataclasses.replace(at, left="left")

    # --- names and texts ---

    def text(self, name: str) -> str:
        return self.slots[name].value.text

    def index(self, expression: Expr) -> str:
        """An index expression as a scalar; gathered indices that are the same in every lane are read from lane 0."""
        names = dict(self.names)
        for indirect in indirect_names(expression):
            names["%" + indirect] = f"{self.text(indirect)}[0]"
        return print_index(expression, names, C)

    def size(self, axis: str) -> str:
        return print_factor(self.plan.nest.size(axis), self.names)

    def decode(self, outer: tuple[Axis, ...], unit: str) -> None:
        """Declares the points of the outer axes that a unit's number stands for."""
        rest = unit
        for k, axis in enumerate(reversed(outer)):
            name = self.names[axis.name]
            last = k == len(outer) - 1
            size = print_factor(axis.size, self.names)
            self.out.put(f"const long {name} = {rest};" if last else f"const long {name} = {rest} % {size};")
            rest = f"({rest}) / {size}" if k else f"{rest} / {size}"

    def differs(self, name: str) -> bool:
        """Whether lanes of a value differ, as far as it is known."""
        return name in self.slots and self.slots[name].varying

    def expect(self, op: Op, *, varying: bool) -> None:
        """Says of a value that is not printed yet what others ask before."""
        self.slots[op.name] = Slot(Value("", op.dtype), varying)

    def define(self, op: Op, text: str, at: Place) -> None:
        register = REGISTER[op.dtype]
        name = self.claim(op.name)
        if at.across > 1 and not at.looping:
            self.out.put(f"{name}[u] = {text};", op.spans)  # later phases use it
            name = f"{name}[u]"
        else:
            self.out.put(f"const {self.vector(register)} {name} = {text};", op.spans)
        self._is(op, Value(name, op.dtype))

    def _is(self, op: Op, value: Value) -> None:
        self.slots[op.name] = Slot(value, self.slots[op.name].varying)

    def splat(self, register: str, text: str) -> str:
        self.need(f"splat.{register}")
        return f"splat({self.vector(register)}{{}}, {text})"

    def number(self, number: object, op: Op) -> Value:
        if isinstance(number, (int, float)):
            text = literal(number, op.dtype)
            return Value(self.splat(REGISTER[op.dtype], text), op.dtype, number, text)
        raise Unsupported(f"operand {number!r} of {op.op}")

    def constant(self, op: Op) -> None:
        number = op.args[0]
        if isinstance(number, complex) or not isinstance(number, (int, float)):
            raise Unsupported(f"constant {number!r}")
        text = literal(number, op.dtype)
        register = REGISTER[op.dtype]
        splat = f"({self.vector('mask')}{{}} + ({text}))" if register == "mask" else self.splat(register, text)
        self._is(op, Value(splat, op.dtype, number, "" if register == "mask" else _signed(text)))


def _signed(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def lane_zero(value: Value) -> str:
    return f"({value.text})[0]" if "(" in value.text else f"{value.text}[0]"
