"""``itertools``: lazy, over breaks, and with wrong arguments.

Traced, and compared with eager in value, type, effect and exception.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest

import fuselens
from tests.support.cases import Cases, error

from .harness import agrees_with_eager

CASES = Cases()
case = CASES.add


@case()
def itertools_simple(x):
    it = itertools
    return (
        list(it.chain([1], (2,), "a")), list(it.chain.from_iterable([[1], [2, 3]])), list(it.product([1, 2], "ab")),
        list(it.product([0, 1], repeat=2)), list(it.permutations([1, 2, 3], 2)), list(it.permutations("ab")), list(it.combinations(range(4), 2)),
        list(it.combinations_with_replacement("ab", 2)), list(it.islice(it.count(3, 2), 4)), list(it.islice(range(10), 2, 8, 3)),
        list(it.islice(it.cycle([1, 2]), 5)), list(it.repeat("r", 3)), list(it.takewhile(lambda v: v < 3, range(9))),
        list(it.dropwhile(lambda v: v < 3, range(5))), list(it.accumulate([1, 2, 3])), list(it.accumulate([x, x, x], operator.mul)),
        list(it.accumulate([1, 2], initial=10)), list(it.starmap(pow, [(2, 3), (3, 2)])), list(it.zip_longest([1, 2], "a", fillvalue="-")),
        [(k, list(g)) for k, g in it.groupby("aabbc")], [(k, len(list(g))) for k, g in it.groupby([1, 3, 2], key=lambda v: v % 2)],
        list(it.pairwise([1, 2, 3])), list(it.compress("abc", [1, 0, 1])), list(it.filterfalse(lambda v: v % 2, range(4))),
        list(it.islice("abc", None)), list(it.product()), list(it.combinations([], 1)), list(it.zip_longest()), list(it.pairwise([1])),
    )  # fmt: skip


@case()
def itertools_are_lazy(x):
    seen = []

    def note(v):
        seen.append(v)
        return v

    source = map(note, range(10))
    a, b = itertools.tee(source)
    first = next(a), next(a), next(b)
    some = list(itertools.islice(itertools.takewhile(lambda v: v < 5, source), 2))
    c = itertools.chain(map(note, [100]), map(note, [200]))
    d = next(c)
    e = itertools.zip_longest(iter([1]), map(note, [7, 8]))
    f = next(e)
    return first, some, d, f, seen, list(b), x


@case()
def itertools_errors(x):
    return [
        error(f)
        for f in (
            lambda: itertools.islice([1], -1), lambda: list(itertools.chain([1], 3)), lambda: itertools.combinations([1], -1),
            lambda: itertools.product([1], repeat=-1), lambda: next(itertools.repeat(1, 0)), lambda: itertools.tee([1], -1),
            lambda: list(itertools.starmap(pow, [1])), lambda: itertools.islice([1], 0, 1, 0), lambda: itertools.permutations([1], -1),
        )
    ]  # fmt: skip


@case(breaks=None)
def iterators_over_a_break(x):
    it = itertools.chain([1, 2], [3, 4])
    count = itertools.count(5)
    f = filter(lambda v: v % 2, range(10))
    y = x * next(it) + next(count) + next(f)
    fuselens.graph_break()
    return y + next(it), list(it), next(count), list(f)


@case(breaks=1)
def loop_over_itertools_with_a_break(x):
    total = x
    for i, (a, b) in enumerate(itertools.product([1, 2], [3, 4])):
        total = total + i * a * b
        if i == 1:
            fuselens.graph_break()
    return total


@pytest.mark.parametrize(("function", "calls", "breaks"), CASES)
def test_library(function: Any, calls: Any, breaks: int | None) -> None:
    agrees_with_eager(function, *calls, breaks=breaks)
