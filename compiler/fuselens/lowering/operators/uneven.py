"""Windows of different sizes: where ``count`` windows share ``size`` elements that they do not divide.

Window ``o`` covers the elements from ``floor(o * size / count)`` to ``ceil((o + 1) * size / count)``. An element ``i``
lies in the windows from ``floor(i * count / size)`` to ``ceil((i + 1) * count / size)``: the same with roles exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
from sympy import Expr

from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Declined, Sizes
from fuselens.torch_private import integer_functions


@dataclass(frozen=True, slots=True)
class Uneven:
    """Windows along one dimension, from ``first(window)`` to before ``end(window)``; answers as a ``windows.Span``."""

    size: int  # of the input
    first: Callable[[Expr], Expr]
    end: Callable[[Expr], Expr]
    least: int  # elements of a window
    taps: int  # of the widest window

    step = 1
    leaves = False

    def inside(self, out: Expr, tap: int) -> Expr:
        """The tap's position; the window's last where it has no such tap."""
        place = self.first(out) + tap
        place = sympy.Min(place, self.end(out) - 1) if tap >= self.least else place
        return place if self.least else sympy.Max(place, 0)

    def place(self, body: Body, out: Expr, tap: Scalar) -> Scalar:
        last = body.lift(self.end(out) - 1, "i64").cast("i32")
        return (body.lift(self.first(out), "i64").cast("i32") + tap).apply("min", last)

    def holds(self, body: Body, out: Expr, tap: int) -> Scalar | None:
        """Whether the window has such a tap; None where all have."""
        return None if tap < self.least else body.lift(self.end(out) - self.first(out), "i64").cast("i32") > tap

    def masked(self, body: Body, out: Expr, tap: int, value: Scalar) -> Scalar:
        """``value``, or 0 where the window has no such tap."""
        inside = self.holds(body, out, tap)
        return value if inside is None else inside.where(value, 0)

    def count(self, body: Body, out: Expr, limits: tuple[int, int]) -> int | Scalar:
        """How many elements a window has."""
        return self.taps if self.least == self.taps else body.lift(self.end(out) - self.first(out), "i64").cast("i32")


def between(size: int, count: int, first: Callable[[Expr], Expr], end: Callable[[Expr], Expr]) -> Uneven:
    """``count`` windows over ``size`` elements."""
    lengths = [int(end(o) - first(o)) for o in map(sympy.Integer, range(count))]
    return Uneven(size, first, end, min(lengths), max(lengths))


def shares(sizes: Sizes, counts: Sizes) -> list[Uneven]:
    """The windows of each dimension."""
    divide = integer_functions()["FloorDiv"]
    found = []
    for size, count in zip(sizes, counts, strict=True):
        if not (size.is_Integer and count.is_Integer and size > 0 and count > 0):
            raise Declined("windows over a dimension of symbolic size")
        n, m = int(size), int(count)
        found.append(
            between(n, m, lambda o, n=n, m=m: divide(o * n, m), lambda o, n=n, m=m: divide(o * n + n + m - 1, m))
        )
    return found


def repeats(sizes: Sizes, counts: Sizes, chosen: Sequence[Sequence[int]], exact: bool) -> list[Uneven]:
    """Where each of ``sizes`` elements is among its ``counts`` nearest neighbours; ``chosen`` says which each has."""
    divide = integer_functions()["FloorDiv"]
    half = 2 if exact else 1
    found = []
    for size, count, nearest in zip(sizes, counts, chosen, strict=True):
        n, m = int(size), int(count)

        def first(i: Expr, n: int = n, m: int = m) -> Expr:
            return divide(half * m * i + n - 1, half * n)

        if any(not first(sympy.Integer(i)) <= o < first(sympy.Integer(i + 1)) for o, i in enumerate(nearest)):
            raise Declined("a scale that repeats elements at other places than their sizes say")
        found.append(between(m, n, first, lambda i, first=first: first(i + 1)))
    return found
