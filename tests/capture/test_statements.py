"""Statements: unpacking, loops, deletion, assignment in place, patterns.

Traced, and compared with eager in value, type, effect and exception.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import typing
from typing import Any

import pytest
import torch

from tests.support.cases import Cases, X, error
from tests.support.objects import Money

from .harness import agrees_with_eager

CASES = Cases()
case = CASES.add


@case()
def unpacking(x):
    a, b = 1, 2
    (c, d), e = [3, 4], 5
    f, *g = range(4)
    *h, i = "abc"
    j = [*g, *h, *range(2)]
    k = {**{"a": 1}, "b": 2, **dict(c=3)}
    l, m = x.shape[0], x.unsqueeze(0).shape  # noqa: E741
    [n, (o, *p)] = [1, (2, 3, 4)]
    return a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, {*j, 1} == {0, 1, 2, 3, "a", "b"}


@case()
def unpacking_errors(x):
    def few():
        a, b = (1,)

    def many():
        a, b = 1, 2, 3

    def starred():
        a, *b, c = (1,)

    def nothing():
        a, b = 3

    return [error(f) for f in (few, many, starred, nothing)]


def takes(a, /, b, *args, c=3, **kwargs):
    return a, b, args, c, kwargs


@case()
def calls_with_stars(x):
    t, d = (1, 2), {"c": 5, "z": x}
    return takes(*t), takes(*t, *"ab", **d), takes(x, b=1), takes(*[1, 2, 3], **{"k": 1}, **{"q": 2}), takes(1, *[], 2)


@case()
def walrus_and_conditionals(x):
    if (n := len(x)) > 2:
        y = x * n
    z = "a" if n > 5 else "b" if n > 2 else "c"
    while (n := n - 1) > 0:
        y = y + n
    else:
        y = y - 1
    return y, z, [m for i in range(5) if (m := i % 2)], 1 if x is None else 2


@case()
def loops(x):
    found = []
    for i in range(10):
        if i == 2:
            continue
        if i == 5:
            break
        found.append(i)
    else:
        found.append("never")
    for _ in ():
        pass
    else:
        found.append("else")
    return found, x


@case()
def deletions(x):
    a, b = 1, [1, 2, 3]
    del a
    del b[0], b[-1]
    o = Money(x)
    del o.amount
    return b, hasattr(o, "amount"), error(lambda: o.amount)


@case()
def augmented(x):
    o = Money(1)
    o.amount += 2
    o.amount *= x
    d = {"k": [1]}
    d["k"] += [2]
    l = [1, 2]  # noqa: E741
    l[0] -= 5
    t = (1,)
    t += (2,)
    y = x.clone()
    z = y
    y += 1
    n = 3
    n **= 2
    n //= 2
    n <<= 1
    s = "a"
    s *= 3
    return o.amount, d, l, t, y, z is y, n, s


@case()
def annotations(x: torch.Tensor) -> Any:
    y: int = 3
    z: list[int]

    def inner(a: int, b: str = "x") -> float:
        return a * 2.0

    return inner(y) * x, typing.cast(int, y)


@case((X,), (None,), breaks=None)  # pytest rewrites assertions
def assertions(x):
    assert x is not None, "no x"
    return x + 1


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any = 0


def matched(v):
    match v:
        case None:
            return "none"
        case True | False:
            return "bool"
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return "big", n
        case int():
            return "int"
        case str() as s:
            return "str", s
        case []:
            return "empty"
        case [a]:
            return "one", a
        case [1, *rest]:
            return "from one", rest
        case (a, (b, *_), c):
            return "nested", a, b, c
        case {"kind": "k", **rest}:
            return "mapping", rest
        case {"a": a, "b": {"c": c}}:
            return "deep", a, c
        case Pair(left=0, right=r):
            return "left zero", r
        case Pair(l, Pair(m)):
            return "pairs", l, m
        case Pair(l, r):
            return "pair", l, r
        case float(f):
            return "float", f
        case torch.Tensor(shape=s):
            return "tensor", s
        case _:
            return "other"


@case()
def match_statements(x):
    return [
        matched(v)
        for v in (
            None, True, 0, 500, 50, "a", [], [9], [1, 2, 3], (1, [2, 3], 4), {"kind": "k", "z": 1}, {"a": 1, "b": {"c": x}},
            {"a": 1}, Pair(0, x), Pair(1, Pair(2)), Pair(1), 2.5, b"ab", range(3), collections.deque([1, 2]), {1}, object,
        )
    ]  # fmt: skip


@case((X, Pair(0, 5)), (X, {"kind": "k", "q": [1]}), (X, [1, 2]), (X, 3))
def match_arguments(x, v):
    return x, matched(v)


@pytest.mark.parametrize(("function", "calls", "breaks"), CASES)
def test_library(function: Any, calls: Any, breaks: int | None) -> None:
    agrees_with_eager(function, *calls, breaks=breaks)
