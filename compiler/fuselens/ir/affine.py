"""Index expressions as linear forms: constant plus coefficient times axis.

Nearly every index is affine in the axes, with coefficients that are integers or products of size symbols. Passes
reason about the linear form and only build sympy expressions from it; what is not affine (a gather, a quotient of an
axis) has no form and is treated as unknown.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import sympy
from sympy import Expr

from fuselens.ir.loops import Axis, symbol

ZERO: Expr = sympy.Integer(0)
ONE: Expr = sympy.Integer(1)


class Affine(NamedTuple):
    """``constant + sum(coefficient * axis)``; axes without influence do not occur in ``terms``."""

    constant: Expr
    terms: tuple[tuple[str, Expr], ...]

    def coefficient(self, axis: str) -> Expr:
        return next((c for a, c in self.terms if a == axis), ZERO)

    def expression(self) -> Expr:
        return sympy.Add(self.constant, *(c * symbol(a) for a, c in self.terms))


@functools.lru_cache(1 << 15)
def symbol_names(e: Expr) -> frozenset[str]:
    """Names of the symbols in ``e``, those of gathers (``%name``) included."""
    if isinstance(e, sympy.Integer):
        return frozenset()
    return frozenset(s.name for s in e.free_symbols)  # pyright: ignore[reportAttributeAccessIssue]


@functools.lru_cache(1 << 15)
def linear(e: Expr, axes: frozenset[str]) -> Affine | None:
    """The linear form of ``e`` in ``axes``; None when it has none. Other symbols are sizes or gathered values."""
    if axes.isdisjoint(symbol_names(e)):
        return Affine(e, ())
    form = _collect(e, axes)
    if form is None and any(isinstance(t, sympy.Mul) and any(isinstance(f, sympy.Add) for f in t.args)
                            for t in sympy.Add.make_args(e)):  # fmt: skip
        form = _collect(sympy.expand_mul(e), axes)
    return form


def _collect(e: Expr, axes: frozenset[str]) -> Affine | None:
    constant: list[Expr] = []
    terms: dict[str, Expr] = {}
    for term in sympy.Add.make_args(e):
        names = symbol_names(term) & axes
        if not names:
            constant.append(term)
        elif isinstance(term, sympy.Symbol):
            terms[term.name] = terms.get(term.name, ZERO) + 1
        elif isinstance(term, sympy.Mul) and len(names) == 1:
            (name,) = names
            rest = [f for f in term.args if not (isinstance(f, sympy.Symbol) and f.name == name)]
            if len(rest) != len(term.args) - 1 or any(name in symbol_names(f) for f in rest):
                return None
            terms[name] = terms.get(name, ZERO) + (rest[0] if len(rest) == 1 else sympy.Mul(*rest))
        else:
            return None
    total = constant[0] if len(constant) == 1 else sympy.Add(*constant)
    return Affine(total, tuple((a, c) for a, c in sorted(terms.items()) if c != 0))


def substitute(e: Expr, mapping: Mapping[str, Expr]) -> Expr:
    """``e`` with axes replaced, in expanded form so that it stays recognisably affine."""
    names = symbol_names(e)
    if names.isdisjoint(mapping):
        return e
    return _substituted(e, tuple((n, mapping[n]) for n in sorted(names) if n in mapping))


@functools.lru_cache(1 << 15)
def _substituted(e: Expr, replaced: tuple[tuple[str, Expr], ...]) -> Expr:
    mapping = dict(replaced)
    form = linear(e, frozenset(mapping))
    if form is None:
        return e.xreplace({symbol(k): v for k, v in mapping.items()})  # pyright: ignore
    parts: list[Expr] = [form.constant]
    for axis, coefficient in form.terms:
        value = mapping[axis]
        if isinstance(value, sympy.Add):
            parts.extend(coefficient * t for t in value.args)
        else:
            parts.append(coefficient * value)
    return sympy.Add(*parts)


@functools.lru_cache(1 << 12)
def within(place: Expr, last: Expr) -> Expr:
    """``place``, or the nearest from 0 to ``last``. Kept, because sympy takes milliseconds to compare the parts."""
    return sympy.Min(sympy.Max(place, ZERO), last)


INTEGER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: -(-a // b),
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ModularIndexing": lambda a, b, c: a // b % c,
    "Max": max,
    "Min": min,
    "PowByNatural": lambda a, b: a**b,
    "Identity": lambda a: a,
    "IntTrueDiv": lambda a, b: a / b,
    "FloatTrueDiv": lambda a, b: a / b,
    "ToFloat": float,
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
}


def integer_value(e: Expr | int, values: Mapping[str, int]) -> int:
    """The value of a size expression for given sizes. Raises KeyError for a symbol that ``values`` lacks."""
    if isinstance(e, int):
        return e
    if isinstance(e, sympy.Integer):
        return int(e)
    if isinstance(e, sympy.Symbol):
        return values[e.name]
    parts = [integer_value(a, values) for a in e.args]  # pyright: ignore[reportArgumentType]
    if isinstance(e, sympy.Add):
        return sum(parts)
    if isinstance(e, sympy.Mul):
        return math.prod(parts)
    if isinstance(e, sympy.Pow):
        return parts[0] ** parts[1]
    if isinstance(e, sympy.Rational):
        return e.p / e.q  # type: ignore[return-value]  # part of a size that is an integer as a whole
    if isinstance(e, sympy.Float):
        return float(e)  # type: ignore[return-value]  # likewise
    return INTEGER_FUNCTIONS[type(e).__name__](*parts)


def bounds(form: Affine, sizes: Mapping[str, int], hints: Mapping[str, int]) -> tuple[int, int] | None:
    """Smallest and largest value of the form when each axis runs below its (example) size; None when unknown."""
    try:
        low = high = integer_value(form.constant, hints)
        for axis, coefficient in form.terms:
            reach = integer_value(coefficient, hints) * (sizes[axis] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
    except KeyError:
        return None
    return low, high


def extremes(e: Expr, sizes: Mapping[str, int], hints: Mapping[str, int]) -> tuple[int, int]:
    """Bounds of any index expression, by those of its parts, for axes and gathered positions below their sizes. Raises
    KeyError for what has none."""
    if isinstance(e, sympy.Symbol) and e.name in sizes:
        return 0, sizes[e.name] - 1
    if not isinstance(e, (sympy.Add, sympy.Mul)) and type(e).__name__ not in _MONOTONE:
        known = integer_value(e, hints)
        return known, known
    parts = [extremes(a, sizes, hints) for a in e.args]  # pyright: ignore[reportArgumentType]
    if type(e).__name__ in ("Mod", "PythonMod"):
        return parts[0] if parts[0][0] >= 0 and parts[0][1] < parts[1][0] else (0, parts[1][1] - 1)
    run = {"Add": lambda *v: sum(v), "Mul": lambda *v: math.prod(v)} | INTEGER_FUNCTIONS
    corners = [run[type(e).__name__](*c) for c in itertools.product(*parts)]
    return min(corners), max(corners)


_MONOTONE = frozenset({"FloorDiv", "CleanDiv", "CeilDiv", "Mod", "PythonMod", "Max", "Min", "Identity"})


@functools.lru_cache(1 << 14)
def never_negative(e: Expr) -> bool:
    """Whether an expression of sizes is provably not negative, whatever those are from 1 on."""
    least: dict[Any, Any] = {s: s + ONE for s in e.free_symbols}
    opaque: dict[Any, Any] = {}
    for part in [a for a in sympy.preorder_traversal(e) if type(a).__name__ in ("FloorDiv", "Mod", "PythonMod")]:
        opaque[part] = quotient = sympy.Symbol(f"({part})")
        if type(part).__name__ == "FloorDiv" and part.args[0] in least and isinstance(part.args[1], sympy.Integer):
            least[part.args[0]] = part.args[1] * quotient + part.args[0]
    bounded: Any = sympy.expand(e.xreplace(opaque).xreplace(least))
    return all(
        t.as_coeff_Mul()[0] >= 0
        and all(a.is_Symbol for a in t.atoms() if not a.is_number)
        and not t.has(sympy.Function)
        for t in sympy.Add.make_args(bounded)
    )


def row_major(axes: Iterable[Axis]) -> Expr:
    """The number of a point among all points of ``axes``, of which the last runs fastest."""
    total = ZERO
    for axis in axes:
        total = total * axis.size + axis.symbol
    return sympy.expand(total)


def product(values: Iterable[Expr]) -> Expr:
    out: Expr = ONE
    for v in values:
        out = out * v
    return out


@functools.lru_cache(1 << 14)
def monomial(e: Expr) -> tuple[int, tuple[tuple[Expr, int], ...]] | None:
    """``e`` as an integer times powers of atoms; sums count as atoms. None for what is no product (rationals)."""
    factor = 1
    powers: dict[Expr, int] = {}
    for part in sympy.Mul.make_args(e):
        if isinstance(part, sympy.Integer):
            factor *= int(part)
        elif isinstance(part, sympy.Pow) and isinstance(part.exp, sympy.Integer) and part.exp > 0:
            powers[part.base] = powers.get(part.base, 0) + int(part.exp)  # pyright: ignore[reportArgumentType]
        elif isinstance(part, (sympy.Rational, sympy.Float)):
            return None
        else:
            powers[part] = powers.get(part, 0) + 1  # pyright: ignore[reportArgumentType]
    return factor, tuple(powers.items())


@functools.lru_cache(1 << 14)
def divide(a: Expr, b: Expr) -> Expr | None:
    """``a / b`` when it is provably an integer expression, else None. ``b`` is not zero."""
    if a == b:
        return ONE
    if b == ONE:
        return a
    if isinstance(a, sympy.Integer) and isinstance(b, sympy.Integer):
        return sympy.Integer(int(a) // int(b)) if int(b) and int(a) % int(b) == 0 else None
    if isinstance(a, sympy.Add) and not isinstance(b, sympy.Add):
        parts = [divide(t, b) for t in a.args]  # pyright: ignore[reportArgumentType]
        return None if any(p is None for p in parts) else sympy.Add(*parts)  # pyright: ignore[reportArgumentType]
    ma, mb = monomial(a), monomial(b)
    if ma is None or mb is None or mb[0] == 0 or ma[0] % mb[0]:
        return None
    powers = dict(ma[1])
    for atom, count in mb[1]:
        powers[atom] = powers.get(atom, 0) - count
        if powers[atom] < 0:
            return None
    return sympy.Mul(ma[0] // mb[0], *(atom**count for atom, count in powers.items()))
