"""The standard library: functools, operator, math, re, copy, contextlib and others.

Traced, and compared with eager in value, type, effect and exception.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import copy
import functools
import heapq
import inspect
import math
import operator
import re
import typing
import weakref
from typing import Any

import pytest
import torch

import fuselens
from tests.support.cases import Cases, X, error
from tests.support.objects import MONEY, Money, Same, Vector

from .harness import agrees_with_eager

CASES = Cases()
case = CASES.add


def scaled(x, k, *, bias=0):
    return x * k + bias


TWICE = functools.partial(scaled, k=2)


@case()
def partials(x):
    p = functools.partial(scaled, x)
    q = functools.partial(p, 3, bias=1)
    r = functools.partial(TWICE, bias=5)
    return (
        p(2),
        q(),
        q(bias=9),
        TWICE(x),
        r(x),
        p.args == (x,),
        q.func is scaled,
        q.keywords,
        list(map(functools.partial(operator.mul, 3), [1, 2])),
    )


@case()
def partial_leaves(x):
    p = functools.partial(scaled, k=len(x))
    return type(p), p.func is scaled, p.args, p.keywords, p(x)


@case(breaks=1)
def partial_over_a_break(x):
    p = functools.partial(scaled, x + 1, bias=2)
    fuselens.graph_break()
    return p(3)


@case()
def functools_functions(x):
    return (
        functools.reduce(operator.add, [x, x, 1]), functools.reduce(lambda a, b: a * b, [], 1), error(lambda: functools.reduce(operator.add, [])),
        sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)),
    )  # fmt: skip


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return wrapper


@logged
def decorated(x):
    """The text."""
    return x + 1


@case()
def decorators(x):
    @logged
    def inner(y):
        return y - 1

    return decorated(x), inner(x), decorated.__name__, inner.__name__, decorated.__doc__


CALLS: list[Any] = []


@functools.lru_cache(maxsize=None)
def table(n):
    CALLS.append(n)
    return torch.arange(n) * 2.0


@functools.cache
def number(n, k=1):
    return n * k + 1


@case(breaks=None)
def cached_functions(x):
    return x * number(3), number(3, k=2), table(3) + x, table(3) is table(3)


class Lazy(Same):
    def __init__(self, x):
        self.x = x
        self.runs = 0

    @functools.cached_property
    def heavy(self):
        self.runs += 1
        return self.x * 2


@case((X, Lazy(3)))
def cached_properties(x, lazy):
    made = Lazy(x)
    return lazy.heavy, lazy.heavy, lazy.runs, made.heavy, made.heavy is made.heavy, made.runs


@functools.singledispatch
def shown(v):
    return "object"


@shown.register
def _(v: int):
    return "int"


@shown.register(list)
def _(v):
    return "list", len(v)


@shown.register
def _(v: torch.Tensor):
    return v * 2


@case()
def dispatched(x):
    return shown(1), shown(True), shown([1]), shown("s"), shown(x)


PICK = operator.itemgetter(1)
AMOUNT = operator.attrgetter("amount")


@case()
def operators_as_functions(x):
    o = operator
    return (
        o.itemgetter(1)([1, 2]), o.itemgetter(0, 2)("abc"), o.attrgetter("shape")(x), o.attrgetter("amount", "__class__.__name__")(MONEY),
        o.methodcaller("upper")("a"), o.methodcaller("sum", 0)(x), PICK({1: x}), AMOUNT(MONEY), o.add(x, 1), o.mul([1], 2), o.contains([1], 1),
        o.concat([1], [2]), o.getitem([1, 2], 0), o.not_(0), o.truth([1]), o.is_(x, x), o.neg(x), o.indexOf([1, 2], 2), o.countOf([1, 1], 1),
        o.add(Vector(1), Vector(2)).items, o.lt(1, 2), o.itemgetter(slice(1))([1, 2]), sorted([(1, 2), (0, 3)], key=o.itemgetter(1)),
    )  # fmt: skip


@case()
def maths(x):
    return (
        math.sqrt(x.shape[0]), math.pi, math.ceil(2.1), math.floor(-2.1), math.prod([1, 2, 3]), math.gcd(12, 18), math.inf, math.log2(8),
        math.isclose(0.1 + 0.2, 0.3), math.comb(5, 2), math.factorial(5), math.trunc(2.7), math.hypot(3, 4), x * math.e, error(lambda: math.sqrt(-1)),
        math.fsum([0.1] * 3), math.isnan(float("nan")), math.copysign(1, -0.0), math.dist([0, 0], [3, 4]), math.log(8, 2),
    )  # fmt: skip


@case(breaks=None)
def maths_on_a_tensor(x):
    y = x.abs().sum()
    return math.sqrt(y), y * 2


@case()
def heaps(x):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 2)
    return (
        heapq.heappop(h),
        heapq.heappushpop(h, 3),
        heapq.heapreplace(h, 9),
        h,
        heapq.nsmallest(2, [3, 1, 2]),
        list(heapq.merge([1, 3], [2])),
    )


PATTERN = re.compile(r"(\w+)\.(\d+)")


@case()
def regular_expressions(x):
    m = PATTERN.match("layer.3")
    return (
        m.group(1), int(m.group(2)) * x, m.groups(), re.sub(r"\d", "#", "a1b2"), re.findall(r"\d", "a1b2"), re.match("z", "a") is None,
        bool(re.search("b", "abc")), re.split(",", "a,b"), PATTERN.pattern, re.compile("a+").fullmatch("aaa") is not None, m[1], m.span(),
        error(lambda: re.compile("(")),
    )  # fmt: skip


@case()
def copies(x):
    l = [[1], x]  # noqa: E741
    a, b = copy.copy(l), copy.deepcopy([[1], {"k": (1, 2)}, {3}, collections.deque([1], 2)])
    return (
        a is l,
        a[0] is l[0],
        b,
        copy.copy({1: 2}),
        copy.copy({1, 2}),
        copy.copy(collections.deque([1], 3)),
        copy.deepcopy((1, 2)),
    )


REFERENCE = weakref.ref(MONEY)


@case()
def weak_references(x):
    return REFERENCE() is MONEY, REFERENCE().amount * x


@contextlib.contextmanager
def noted(log, name):
    log.append(f"enter {name}")
    try:
        yield name
    finally:
        log.append(f"exit {name}")


@case()
def context_managers(x):
    log = []
    with noted(log, "a") as a, contextlib.nullcontext(5) as five, contextlib.suppress(KeyError):
        log.append(a)
        x = x * five
        {}["q"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(noted(log, "b"))
        stack.callback(log.append, "callback")
        log.append("body")
    return x, log


@case()
def signatures(x):
    s = inspect.signature(scaled)
    return list(s.parameters), s.parameters["bias"].default, "k" in s.parameters


class Shape(collections.abc.Sized):
    def __len__(self):
        return 4


@case()
def abstract_classes(x):
    return (
        len(Shape()),
        isinstance(Shape(), collections.abc.Sized),
        error(lambda: collections.abc.Sized()),
        isinstance(3, typing.Hashable),
    )


@case(breaks=None)
def breaking_calls(x):
    y = x + 1
    print("value", y.shape)
    return y * 2


@pytest.mark.parametrize(("function", "calls", "breaks"), CASES)
def test_library(function: Any, calls: Any, breaks: int | None) -> None:
    CALLS.clear()
    agrees_with_eager(function, *calls, breaks=breaks)


def test_cached_functions_run_once() -> None:
    CALLS.clear()
    table.cache_clear()
    compiled = fuselens.compile(lambda x: table(4) + x, backend="eager")
    first = compiled(torch.ones(4))
    assert torch.equal(compiled(torch.ones(4)), first) and CALLS == [4] and table.cache_info().hits == 1


def test_dispatch_is_guarded() -> None:
    @functools.singledispatch
    def pick(v):
        return 1

    compiled = fuselens.compile(lambda x: x * pick("a"), backend="eager")
    assert compiled(X).equal(X)
    pick.register(str)(lambda v: 5)
    assert compiled(X).equal(X * 5)


def test_a_cleared_reference_is_noticed() -> None:
    owner = Money(3)
    reference = weakref.ref(owner)
    compiled = fuselens.compile(lambda x: x * (1 if reference() is None else reference().amount), backend="eager")
    assert compiled(X).equal(X * 3)
    del owner
    assert compiled(X).equal(X)


def test_a_partial_function_leaves() -> None:
    made = fuselens.compile(lambda x: functools.partial(scaled, x + 1, bias=2), backend="eager")(X)
    assert type(made) is functools.partial and made.func is scaled and made.keywords == {"bias": 2}
    assert made(3).equal((X + 1) * 3 + 2)
