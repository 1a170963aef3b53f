"""Index expressions: which axes they are linear in, and how they print in C++ and Python (Triton, host programs)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from ..ir.contracts.source import Unsupported


@dataclass(frozen=True, slots=True)
class Linear:
    """An expression as ``rest + sum(coefficients[axis] * axis)``; ``tangled`` axes occur in some other way."""

    coefficients: Mapping[str, Expr]
    tangled: frozenset[str]
    rest: Expr

    def coefficient(self, axis: str) -> Expr | None:
        """The coefficient of ``axis`` (0 where it does not occur), None when the expression is not linear in it."""
        return None if axis in self.tangled else self.coefficients.get(axis, sympy.S.Zero)


@functools.lru_cache(maxsize=8192)
def linear(expression: Any, axes: frozenset[str]) -> Linear:
    """``expression`` (an Expr) seen as a linear form of ``axes``; every other symbol counts as a constant."""
    if not expression.is_Add and not expression.is_Mul and not expression.is_Symbol:
        inside = frozenset(s.name for s in expression.free_symbols) & axes
        return Linear({}, inside, expression)
    if any(f.is_Add for t in sympy.Add.make_args(expression) if t.is_Mul for f in t.args):
        expression = sympy.expand(expression)
    coefficients: dict[str, Expr] = {}
    tangled: set[str] = set()
    rest: list[Expr] = []
    terms: tuple[Any, ...] = sympy.Add.make_args(expression)
    for term in terms:
        inside = {s.name for s in term.free_symbols} & axes
        if not inside:
            rest.append(term)
        elif len(inside) > 1:
            tangled |= inside
            rest.append(term)
        else:
            (name,) = inside
            factors: tuple[Any, ...] = sympy.Mul.make_args(term)
            others = [f for f in factors if not (f.is_Symbol and f.name == name)]
            if len(others) == len(factors) - 1 and not any(name == s.name for f in others for s in f.free_symbols):
                coefficient = sympy.Mul(*others)
                coefficients[name] = coefficients.get(name, sympy.S.Zero) + coefficient
            else:
                tangled.add(name)
                rest.append(term)
    return Linear(coefficients, frozenset(tangled), sympy.Add(*rest))


def slopes(expression: Any, axis: str) -> list[Expr] | None:
    """What one step along ``axis`` may add: first where no Min or Max holds the axis back, then anywhere. None where that
    is unknown."""
    if axis not in names_in(expression):
        return [sympy.S.Zero]
    if expression.is_Symbol:
        return [sympy.S.One]
    if expression.is_Add:
        parts = [slopes(a, axis) for a in expression.args]
        return None if None in parts else [sympy.Add(*s) for s in itertools.product(*parts)]  # pyright: ignore
    moving = [a for a in expression.args if axis in names_in(a)]
    inner = slopes(moving[0], axis) if len(moving) == 1 else None
    if expression.is_Mul and inner is not None:
        factor = sympy.Mul(*(a for a in expression.args if a is not moving[0]))
        return [s * factor for s in inner]
    if type(expression).__name__ in ("Max", "Min") and inner is not None:
        return [*inner, sympy.S.Zero]
    return None


def set_zero(expression: Any, names: frozenset[str]) -> Expr:
    """``expression`` with the symbols of these names set to 0."""
    if names.isdisjoint(names_in(expression)):
        return expression
    return expression.xreplace({s: sympy.S.Zero for s in expression.free_symbols if s.name in names})


@functools.lru_cache(maxsize=1 << 14)
def names_in(expression: Any) -> frozenset[str]:
    return frozenset(s.name for s in expression.free_symbols)


@dataclass(frozen=True, slots=True)
class Syntax:
    """What differs between target languages when an integer expression is printed."""

    divide: Callable[[str, str], str]  # operands that are not negative
    modulo: Callable[[str, str], str]
    floor_divide: Callable[[str, str], str]  # any sign
    floor_modulo: Callable[[str, str], str]
    least: str
    greatest: str
    suffix: str = ""


C = Syntax(
    divide=lambda a, b: f"{a} / {b}",
    modulo=lambda a, b: f"{a} % {b}",
    floor_divide=lambda a, b: f"floor_div({a}, {b})",
    floor_modulo=lambda a, b: f"floor_mod({a}, {b})",
    least="least",
    greatest="greatest",
)
PYTHON = Syntax(
    divide=lambda a, b: f"{a} // {b}",
    modulo=lambda a, b: f"{a} % {b}",
    floor_divide=lambda a, b: f"{a} // {b}",
    floor_modulo=lambda a, b: f"{a} % {b}",
    least="min",
    greatest="max",
)
TRITON = Syntax(
    divide=lambda a, b: f"{a} // {b}",
    modulo=lambda a, b: f"{a} % {b}",
    floor_divide=lambda a, b: f"floor_div({a}, {b})",
    floor_modulo=lambda a, b: f"floor_mod({a}, {b})",
    least="tl.minimum",
    greatest="tl.maximum",
)

_ADD, _MULTIPLY, _ATOM = 0, 1, 2
_text = functools.lru_cache(maxsize=1 << 14)(
    str
)  # of an expression: sympy prints slowly, and what is sorted comes again


def print_index(expression: Expr | int, names: Mapping[str, str] | None = None, syntax: Syntax = C) -> str:
    """``expression`` as text of the target language. ``names`` renames symbols; others print as they are called.

    Raises Unsupported for functions that are not integer arithmetic.
    """
    return _print(sympy.sympify(expression), names or {}, syntax)[0]


def print_factor(expression: Expr | int, names: Mapping[str, str] | None = None, syntax: Syntax = C) -> str:
    """As :func:`print_index`, in parentheses where a factor or an argument of division needs them."""
    text, level = _print(sympy.sympify(expression), names or {}, syntax)
    return text if level == _ATOM else f"({text})"


def _print(e: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    """The text of ``e``, and how tightly its outermost operation binds."""
    if e.is_Integer:
        text = str(int(e)) + syntax.suffix
        return (text, _ATOM) if int(e) >= 0 else (f"({text})", _ATOM)
    if e.is_Symbol:
        return names.get(e.name, e.name), _ATOM
    printer = _PRINTERS.get(type(e).__name__)
    if printer is None:
        raise Unsupported(f"index expression {e} ({type(e).__name__})")
    return printer(e, names, syntax)


def _at(e: Any, level: int, names: Mapping[str, str], syntax: Syntax) -> str:
    """``e``, in parentheses where it binds less than ``level``."""
    text, found = _print(e, names, syntax)
    return text if found >= level else f"({text})"


def _add(e: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    out = ""
    for term in sorted(e.args, key=lambda t: (not names_in(t), -_magnitude(t), _text(t))):
        negative = term.could_extract_minus_sign()
        text = _at(-term if negative else term, _MULTIPLY, names, syntax)
        out += (" - " if negative else " + ") + text if out else ("-" if negative else "") + text
    return out, _ADD


def _multiply(e: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    if any(f.is_Rational and not f.is_Integer for f in e.args):
        return _quotient(e, names, syntax)
    factors = sorted(e.args, key=lambda f: (bool(f.is_number), _text(f)))
    return " * ".join(_at(f, _ATOM, names, syntax) for f in factors), _MULTIPLY


def _power(e: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    if not e.exp.is_Integer or int(e.exp) <= 0:
        raise Unsupported(f"index expression {e} ({type(e).__name__})")
    return " * ".join([_at(e.base, _ATOM, names, syntax)] * int(e.exp)), _MULTIPLY


def _modular_indexing(e: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    base, divisor, modulus = e.args
    if divisor == 1:
        return _modulo(base, modulus, names, syntax)
    text, level = _divide(base, divisor, names, syntax)
    inner = text if level == _ATOM else f"({text})"
    return syntax.modulo(inner, _at(modulus, _ATOM, names, syntax)), _MULTIPLY


def _limit(e: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    function = syntax.least if type(e).__name__ == "Min" else syntax.greatest
    texts = [_print(a, names, syntax)[0] for a in e.args]
    return functools.reduce(lambda a, b: f"{function}({a}, {b})", texts), _ATOM


def _magnitude(term: Any) -> int:
    number = next((f for f in sympy.Mul.make_args(term) if f.is_Integer), None)
    return abs(int(number)) if number is not None else 1


def _quotient(e: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    numerator, denominator = e.as_numer_denom()
    if denominator == 1:
        return _print(numerator, names, syntax)
    return _divide(numerator, denominator, names, syntax)


def _divide(a: Any, b: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    texts = print_factor(a, names, syntax), print_factor(b, names, syntax)
    if a.is_nonnegative and b.is_nonnegative:
        return syntax.divide(*texts), _ADD  # so that a factor gets parentheses
    return syntax.floor_divide(*texts), _ATOM if syntax is not PYTHON else _ADD


def _modulo(a: Any, b: Any, names: Mapping[str, str], syntax: Syntax) -> tuple[str, int]:
    texts = print_factor(a, names, syntax), print_factor(b, names, syntax)
    if a.is_nonnegative and b.is_nonnegative:
        return syntax.modulo(*texts), _ADD
    return syntax.floor_modulo(*texts), _ATOM if syntax is not PYTHON else _ADD


_PRINTERS: dict[str, Callable[[Any, Mapping[str, str], Syntax], tuple[str, int]]] = {
    "Add": _add,
    "Mul": _multiply,
    "Pow": _power,
    "floor": lambda e, names, syntax: _quotient(e.args[0], names, syntax),
    "FloorDiv": lambda e, names, syntax: _divide(e.args[0], e.args[1], names, syntax),
    "CleanDiv": lambda e, names, syntax: _divide(e.args[0], e.args[1], names, syntax),
    "Mod": lambda e, names, syntax: _modulo(e.args[0], e.args[1], names, syntax),
    "PythonMod": lambda e, names, syntax: _modulo(e.args[0], e.args[1], names, syntax),
    "ModularIndexing": _modular_indexing,
    "Min": _limit,
    "Max": _limit,
}  # fmt: skip
"""By the name of a class: sympy's own, and those that torch adds for sizes."""
