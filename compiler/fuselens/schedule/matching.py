"""Which point of one iteration space belongs to which point of another: solving index equations.

Two loops meet at memory: one touches element ``G(j)``, the other ``F(d)`` of a storage. :func:`solve` finds ``j`` as
expressions of ``d`` with ``G(j) = F(d)`` by reading ``F`` in the mixed radix that the strides of ``G`` form; where a
digit of ``F`` is too coarse, its axis is split. Guesses use example sizes, but that the elements are the same is checked
symbolically; that the points exist for all sizes, by :func:`covers` or :func:`always_inside`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
from sympy import Expr

from fuselens.ir.affine import (
    ZERO,
    Affine,
    bounds,
    divide,
    integer_value,
    linear,
    never_negative,
    product,
    substitute,
    symbol_names,
)
from fuselens.ir.loops import symbol

Hints = Mapping[str, int]


@dataclass(slots=True)
class Solution:
    """``values``: each solved axis as an expression. ``splits``: axes of the known side that had to be split, each as
    (outer name, inner name, inner size); ``sizes``: the known side's axes after splitting, in order."""

    values: dict[str, Expr]
    sizes: dict[str, Expr]
    splits: dict[str, Expr] = field(default_factory=dict)


def solve(
    unknown: Affine, unknown_sizes: Mapping[str, Expr], known: Affine, known_sizes: Mapping[str, Expr], hints: Hints,
    *, split: bool = False,
) -> Solution | None:  # fmt: skip
    """Axes of ``unknown`` that occur in its form, as expressions of the known axes; None where there is no answer.

    With ``split`` the known axes may be split; ``Solution.splits`` then maps the old axes to expressions of new ones.
    Axes that walk memory backward are counted from their other end meanwhile.
    """
    upward, turned = _upward(unknown, unknown_sizes)
    ascending, reversed_axes = _upward(known, known_sizes)
    if turned or reversed_axes:
        found = solve(upward, unknown_sizes, ascending, known_sizes, hints, split=split)
        return found and _turned_back(found, turned, reversed_axes)
    digits = sorted(((integer_value(c, hints), a, c) for a, c in unknown.terms), key=lambda d: -d[0])
    reading = _Reading(dict(known_sizes), {a: [] for a, _ in unknown.terms})
    work = list(known.terms)
    while work:
        axis, coefficient = work.pop()
        found = _digit(coefficient, digits, hints)
        if found is None:
            return None
        digit, quotient = found
        size, room = reading.sizes[axis], unknown_sizes[digit]
        if split and quotient.is_positive and integer_value(quotient * size, hints) > integer_value(room, hints):
            halves = reading.split(axis, divide(room, quotient))
            if halves is None:
                return None
            (outer, inner), step = halves
            work += [(outer, coefficient * step), (inner, coefficient)]
        else:
            reading.parts[digit].append(quotient * symbol(axis))
    reading.add_constant(known.constant - unknown.constant, digits, hints)
    values = {a: sympy.Add(*p) if p else ZERO for a, p in reading.parts.items()}
    return _checked(unknown, unknown_sizes, known, values, reading.sizes, reading.splits, hints)


@dataclass(slots=True)
class _Reading:
    """The known form as digits of the unknown one, as far as it has been read: ``parts`` of each digit, in terms of axes of
    ``sizes``; and by what the axes that were split are replaced."""

    sizes: dict[str, Expr]
    parts: dict[str, list[Expr]]
    splits: dict[str, Expr] = field(default_factory=dict)

    def split(self, axis: str, inner: Expr | None) -> tuple[tuple[str, str], Expr] | None:
        """Divides ``axis`` in an outer one and one of ``inner`` points. Gives their names and the size of the inner one; None
        where points would be left."""
        outer = divide(self.sizes[axis], inner) if inner is not None and inner != 0 else None
        if inner is None or outer is None or inner == 1:
            return None
        names = _fresh(self.sizes, axis)
        whole = symbol(names[0]) * inner + symbol(names[1])
        divided = dict(zip(names, (outer, inner), strict=True))
        sizes: dict[str, Expr] = {}
        for old, size in self.sizes.items():
            sizes |= divided if old == axis else {old: size}
        self.sizes = sizes
        self.splits = {k: substitute(v, {axis: whole}) for k, v in self.splits.items()} | {axis: whole}
        self.parts = {k: [substitute(p, {axis: whole}) for p in v] for k, v in self.parts.items()}
        return names, inner

    def add_constant(self, rest: Expr, digits: list[tuple[int, str, Expr]], hints: Hints) -> None:
        """Adds what both forms differ by to the digits, the largest first."""
        for value, axis, stride in digits:
            if rest == 0:
                return
            step = _constant_digit(rest, value, stride, hints)
            if step != 0:
                self.parts[axis].append(step)
                rest = rest - step * stride


def _digit(coefficient: Expr, digits: list[tuple[int, str, Expr]], hints: Hints) -> tuple[str, Expr] | None:
    """The digit of the largest stride that the coefficient is a multiple of."""
    size = abs(integer_value(coefficient, hints))
    for value, axis, stride in digits:
        if 0 < value <= size:
            quotient = divide(coefficient, stride)
            if quotient is not None:
                return axis, quotient
    return None


def _constant_digit(rest: Expr, value: int, stride: Expr, hints: Hints) -> Expr:
    if isinstance(rest, sympy.Integer) and isinstance(stride, sympy.Integer):
        return sympy.Integer(int(rest) // int(stride))
    total = integer_value(rest, hints)
    if value == 0 or abs(total) < abs(value):
        return ZERO
    return divide(rest, stride) or ZERO


def _checked(
    unknown: Affine, unknown_sizes: Mapping[str, Expr], known: Affine, values: dict[str, Expr],
    sizes: dict[str, Expr], splits: dict[str, Expr], hints: Hints,
) -> Solution | None:  # fmt: skip
    total = sympy.Add(unknown.constant, *(substitute(c * symbol(a), values) for a, c in unknown.terms))
    expected = substitute(known.expression(), splits) if splits else known.expression()
    if total != expected and sympy.expand(total - expected) != 0:
        return None
    names = frozenset(sizes)
    reach = {a: integer_value(s, hints) for a, s in sizes.items()}
    for axis, value in values.items():
        form = linear(value, names)
        limits = bounds(form, reach, hints) if form else None
        if limits is None or limits[0] < 0 or limits[1] >= integer_value(unknown_sizes[axis], hints):
            return None
    return Solution(values, sizes, splits)


def always_inside(
    unknown: Affine, unknown_sizes: Mapping[str, Expr], values: Mapping[str, Expr], sizes: Mapping[str, Expr],
    extent: Expr, hints: Hints,
) -> bool:  # fmt: skip
    """Whether the axes that were solved are below their sizes for all sizes, not for those of the example alone.

    A form that runs over all of a storage, of so many elements (``extent``), gives them to all that is read of it: then
    the axis of the largest stride is where the others let it be.
    """
    if all(e.is_Integer for e in (*unknown_sizes.values(), *sizes.values())):
        return True
    whole = unknown.constant == 0 and sympy.expand(product(unknown_sizes.values()) - extent) == 0
    first = max(unknown.terms, key=lambda t: integer_value(t[1], hints), default=("", ZERO))[0] if whole else ""
    for axis, value in values.items():
        form = linear(value, frozenset(sizes)) if axis != first else None
        if form is None and axis != first:
            return False
        if form is not None:
            ends = [(c * (sizes[a] - 1), c.could_extract_minus_sign()) for a, c in form.terms]
            low, high = (sympy.Add(form.constant, *(e for e, falls in ends if falls is f)) for f in (True, False))
            if not never_negative(low) or not never_negative(unknown_sizes[axis] - 1 - high):
                return False
    return True


def _fresh(sizes: Mapping[str, Expr], axis: str) -> tuple[str, str]:
    count = 0
    while f"{axis}_{count}" in sizes or f"{axis}_{count + 1}" in sizes:
        count += 1
    return f"{axis}_{count}", f"{axis}_{count + 1}"


def _upward(form: Affine, sizes: Mapping[str, Expr]) -> tuple[Affine, dict[str, Expr]]:
    """The form with falling axes replaced by their distance from the end, and each of those axes in these terms."""
    falling = {a: c for a, c in form.terms if (c < 0 if c.is_Integer else c.could_extract_minus_sign())}
    if not falling:
        return form, {}
    terms = tuple((a, -c if a in falling else c) for a, c in form.terms)
    constant = sympy.expand(sympy.Add(form.constant, *(c * (sizes[a] - 1) for a, c in falling.items())))
    return Affine(constant, terms), {a: sizes[a] - 1 - symbol(a) for a in falling}


def _turned_back(found: Solution, turned: Mapping[str, Expr], reversed_axes: Mapping[str, Expr]) -> Solution:
    """The solution in terms of the axes as they were."""
    splits = {a: substitute(turned_axis, {a: found.splits[a]}) for a, turned_axis in reversed_axes.items()
              if a in found.splits}  # fmt: skip
    kept = {a: e for a, e in reversed_axes.items() if a not in found.splits}
    values = {a: substitute(v, kept) for a, v in found.values.items()}
    values = {a: substitute(turned[a], {a: v}) if a in turned else v for a, v in values.items()}
    return Solution(values, found.sizes, {**found.splits, **splits})


def covers(value: Expr, size: Expr, sizes: Mapping[str, Expr]) -> bool:
    """Whether ``value`` runs through 0 .. size - 1 exactly once as its axes run: a mixed-radix number without gaps."""
    form = linear(value, frozenset(sizes))
    form = _upward(form, sizes)[0] if form else None
    if form is None or form.constant != 0:
        return False
    remaining = dict(form.terms)
    step: Expr = sympy.Integer(1)
    while remaining:
        axis = next((a for a, c in remaining.items() if c == step), None)
        if axis is None:
            return False
        step = step * sizes[axis]
        del remaining[axis]
    return step == size or sympy.expand(step - size) == 0


def axes_in(values: Mapping[str, Expr], names: frozenset[str]) -> frozenset[str]:
    out: frozenset[str] = frozenset()
    for value in values.values():
        out |= symbol_names(value) & names
    return out
