"""Building a loop's body: scalars that record the operations done on them.

A :class:`Body` collects ops; a :class:`Scalar` names the result of one and overloads Python's operators, so that the
rule of an ATen operation is its formula. A Python number next to a scalar becomes a constant of the scalar's dtype; a
size expression becomes an ``index`` op.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.loops import Op, value_symbol
from fuselens.ir.ops import OPS
from fuselens.lowering.complex_maths import FORMULAS
from fuselens.lowering.dtypes import FLOATS, PARTS
from fuselens.record.report import Span

Operand = Any  # Scalar, Python number, or size expression


class Scalar:
    """The value of one op of a body, at one point of its loop."""

    __slots__ = ("body", "dtype", "name")

    def __init__(self, body: Body, name: str, dtype: str) -> None:
        self.body = body
        self.name = name
        self.dtype = dtype

    def apply(self, op: str, *others: Operand) -> Scalar:
        """``op`` of this value and others; they are lifted to its dtype."""
        operands = [self, *(self.body.lift(o, self.dtype) for o in others)]
        dtype = "bool" if OPS[op].rule == "bool" else self.dtype
        return self.body.add(op, tuple(o.name for o in operands), dtype)

    def cast(self, dtype: str) -> Scalar:
        if dtype in PARTS:
            part = PARTS[dtype]
            return Complex(self.cast(part), self.body.const(0, part))
        return self if dtype == self.dtype else self.body.add("cast", (self.name,), dtype)

    def bitcast(self, dtype: str) -> Scalar:
        return self if dtype == self.dtype else self.body.add("bitcast", (self.name,), dtype)

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS

    def bounds(self, size: Expr, wrap: bool) -> Scalar:
        """This i64 as a position below ``size``; ``wrap``: negative ones count from the end."""
        return self.body.add("bounds", (self.name, size, wrap), "i64")

    @property
    def symbol(self) -> sympy.Symbol:
        """For index expressions that gather by this value (an i64)."""
        return value_symbol(self.name)

    def __add__(self, other: Operand) -> Scalar:
        return self.apply("or" if self.dtype == "bool" else "add", other)

    def __mul__(self, other: Operand) -> Scalar:
        return self.apply("and" if self.dtype == "bool" else "mul", other)

    def __sub__(self, other: Operand) -> Scalar:
        return self.apply("sub", other)

    def __truediv__(self, other: Operand) -> Scalar:
        return self.apply("div", other)

    def __radd__(self, other: Operand) -> Scalar:
        return self.body.lift(other, self.dtype) + self

    def __rmul__(self, other: Operand) -> Scalar:
        return self.body.lift(other, self.dtype) * self

    def __rsub__(self, other: Operand) -> Scalar:
        return self.body.lift(other, self.dtype) - self

    def __rtruediv__(self, other: Operand) -> Scalar:
        return self.body.lift(other, self.dtype) / self

    def __neg__(self) -> Scalar:
        return self.apply("neg")

    def __lt__(self, other: Operand) -> Scalar:
        return self.apply("lt", other)

    def __le__(self, other: Operand) -> Scalar:
        return self.apply("le", other)

    def __gt__(self, other: Operand) -> Scalar:
        return self.apply("gt", other)

    def __ge__(self, other: Operand) -> Scalar:
        return self.apply("ge", other)

    def __and__(self, other: Operand) -> Scalar:
        return self.apply("and", other)

    def __or__(self, other: Operand) -> Scalar:
        return self.apply("or", other)

    def __xor__(self, other: Operand) -> Scalar:
        return self.apply("xor", other)

    def __invert__(self) -> Scalar:
        return self.apply("not")

    def eq(self, other: Operand) -> Scalar:
        return self.apply("eq", other)

    def ne(self, other: Operand) -> Scalar:
        return self.apply("ne", other)

    def where(self, yes: Operand, no: Operand) -> Scalar:
        """This condition's choice between two values of one dtype (at least one of them is a scalar)."""
        dtype = (yes if isinstance(yes, Scalar) else no).dtype
        yes, no = self.body.lift(yes, dtype), self.body.lift(no, dtype)
        if isinstance(yes, Complex) and isinstance(no, Complex):
            return Complex(self.where(yes.re, no.re), self.where(yes.im, no.im))
        return self.body.add("where", (self.name, yes.name, no.name), dtype)


class Complex(Scalar):
    """A complex value: two real ones, and formulas of them (:mod:`.complex_maths`)."""

    __slots__ = ("im", "re")

    def __init__(self, re: Scalar, im: Scalar) -> None:
        super().__init__(re.body, "", {part: whole for whole, part in PARTS.items()}[re.dtype])
        self.re, self.im = re, im

    def of(self, re: Scalar, im: Scalar) -> Complex:
        return Complex(re, im)

    def apply(self, op: str, *others: Operand) -> Scalar:
        formula = FORMULAS.get(op)
        if formula is None:
            raise NotImplementedError(f"loops do not compute {op} of complex numbers")
        return formula(self, *(self.body.lift(o, self.dtype) for o in others))

    def cast(self, dtype: str) -> Scalar:
        if dtype in PARTS:
            return Complex(self.re.cast(PARTS[dtype]), self.im.cast(PARTS[dtype]))
        if dtype == "bool":
            return self.re.ne(0.0) | self.im.ne(0.0)
        return self.re.cast(dtype)

    def bitcast(self, dtype: str) -> Scalar:
        raise NotImplementedError("it reinterprets complex numbers")

    @property
    def floating(self) -> bool:
        return True


class Body:
    """The ops of one loop, in SSA form. Repeated ops are built once."""

    def __init__(self, spans: tuple[Span, ...] = ()) -> None:
        self.spans = spans
        self.ops: list[Op] = []
        self._known: dict[tuple[Any, ...], Scalar] = {}
        self._stores = 0

    def add(self, op: str, args: tuple[Any, ...], dtype: str) -> Scalar:
        # 1 == True == 1.0 and 0.0 == -0.0 as dict keys, so constants are told apart by their text
        key = (op, repr(args[0]), dtype) if op == "const" else (op, args, dtype)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Scalar(self, f"t{len(self._known)}", dtype)
            self.ops.append(Op(found.name, op, args, dtype, self.spans))
        return found

    def only(self, value: Scalar, *others: str) -> Body:
        """What it takes to compute ``value`` and others."""
        wanted = {value.name, *others}
        for op in reversed(self.ops):
            if op.name in wanted:
                wanted.update(op.operands())
        made = Body(self.spans)
        made.ops = [op for op in self.ops if op.name in wanted]
        return made

    def load(self, storage: str, index: Expr, dtype: str) -> Scalar:
        return self.add("load", (storage, index), dtype)

    def store(self, storage: str, index: Expr, value: Scalar, *update: str) -> None:
        args = (storage, index, value.name, *update)
        self.ops.append(Op(f"store{self._stores}", "store", args, value.dtype, self.spans))
        self._stores += 1

    def reduce(self, kind: str, value: Scalar) -> Scalar:
        if isinstance(value, Complex):
            if kind != "sum":
                raise NotImplementedError(f"loops do not fold complex numbers by {kind}")
            return Complex(self.reduce(kind, value.re), self.reduce(kind, value.im))
        return self.add("reduce", (kind, value.name), "i64" if kind in ("argmax", "argmin") else value.dtype)

    def scan(self, kind: str, value: Scalar) -> Scalar:
        if isinstance(value, Complex):
            if kind != "sum":
                raise NotImplementedError(f"loops do not scan complex numbers by {kind}")
            return Complex(self.scan(kind, value.re), self.scan(kind, value.im))
        return self.add("scan", (kind, value.name), value.dtype)

    def const(self, value: Any, dtype: str) -> Scalar:
        """A literal: converted as torch converts a Python number to ``dtype``."""
        if dtype in PARTS:
            value = complex(value)
            return Complex(self.const(value.real, PARTS[dtype]), self.const(value.imag, PARTS[dtype]))
        if dtype in FLOATS:
            return self.add("const", (float(value),), dtype)
        if dtype == "bool":
            return self.add("const", (bool(value),), dtype)
        return self.add("const", (_wrapped(int(value), dtype),), dtype)

    def lift(self, value: Operand, dtype: str) -> Scalar:
        """``value`` as a scalar of ``dtype``."""
        if isinstance(value, Scalar):
            return value.cast(dtype)
        if isinstance(value, Expr) and not isinstance(value, (sympy.Integer, sympy.Float)):
            return self.expression(value).cast(dtype)
        return self.const(value, dtype)

    def expression(self, e: Expr) -> Scalar:
        """The value of a size expression: i64, or f64 when it is made by true division."""
        if not _is_real(e):
            return self.add("index", (e,), "i64")
        parts = [self.lift(a, "f64") for a in e.args]
        if isinstance(e, sympy.Add):
            return _fold(parts, "add")
        if isinstance(e, sympy.Mul):
            return _fold(parts, "mul")
        if isinstance(e, sympy.Pow):
            return parts[0].apply("pow", parts[1])
        if isinstance(e, sympy.Rational):
            return self.const(float(e), "f64")
        name = type(e).__name__
        if name in ("IntTrueDiv", "FloatTrueDiv"):
            return parts[0] / parts[1]
        if name == "ToFloat":
            return parts[0]
        raise NotImplementedError(f"a number computed by {name}")


def _wrapped(value: int, dtype: str) -> int:
    """``value`` as an integer of ``dtype`` holds it."""
    bits = int(dtype[1:])
    value &= 2**bits - 1
    return value - 2**bits if dtype[0] == "i" and value >> (bits - 1) else value


def _fold(parts: list[Scalar], op: str) -> Scalar:
    out = parts[0]
    for part in parts[1:]:
        out = out.apply(op, part)
    return out


def _is_real(e: Expr) -> bool:
    if isinstance(e, (sympy.Float,)) or (isinstance(e, sympy.Rational) and not isinstance(e, sympy.Integer)):
        return True
    if type(e).__name__ in ("IntTrueDiv", "FloatTrueDiv", "ToFloat", "FloatPow"):
        return True
    return any(_is_real(a) for a in e.args)  # pyright: ignore[reportArgumentType]
