"""Functions: compiled ones that call each other, wrappers, caches, recursion.

Something changes between calls; compiled code must notice whatever eager would notice.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from tests.support.scenarios import Base, Scenarios, agrees
from tests.support.tensors import t

SCENARIOS = Scenarios()
scenario = SCENARIOS.add


@scenario
def generators_run(wrap):
    def fn(x, n):
        for i in range(n):
            x = x + i
            yield x

    f = wrap(fn)
    yield list(f(t(3), 3)), list(f(t(3), 2))
    g = wrap(lambda x: [v * 2 for v in f(x, 3)])
    yield g(t(3)), g(t(3))


@scenario
def decorated_methods(wrap):
    class C:
        def __init__(self, k):
            self.k = k

        @wrap
        def method(self, x):
            return x * self.k

        @staticmethod
        @wrap
        def static(x):
            return x + 1

        @classmethod
        @wrap
        def build(cls, x):
            return x - len(cls.__name__)

        @property
        @wrap
        def prop(self):
            return self.k + 1

    a, b = C(2), C(3)
    yield a.method(t(3)), b.method(t(3)), C.method(a, t(3)), a.static(t(3)), C.build(t(3)), b.build(t(3)), a.prop
    a.k = 7
    yield a.method(t(3)), a.prop
    f = wrap(b.method)
    yield f(t(3))
    b.k = 11
    yield f(t(3))
    g = wrap(Base().apply)
    yield g(t(3)), g(t(3))


@scenario
def recursion(wrap):
    def fn(x, n):
        return x if n == 0 else fn(x * 2, n - 1) + n

    f = wrap(fn)
    for n in (0, 1, 5, 20, 5):
        yield f(t(3), n)

    def prints(x, n):
        print("depth", n)
        return x if n == 0 else prints(x + 1, n - 1)

    g = wrap(prints)
    yield g(t(3), 4), g(t(3), 12)


@scenario
def wrappers_of_compiled_functions(wrap):
    inner = wrap(lambda x: x * 2)

    @functools.wraps(inner)
    def outer(x):
        return inner(x) + 100

    f = wrap(outer)
    yield f(t(3)), wrap(f)(t(3)), inner(t(3))


@scenario
def counters_on_functions_and_classes(wrap):
    class C:
        n = 0
        seen: list[int] = []

    def fn(x):
        fn.calls += 1
        C.n += 1
        C.seen.append(C.n)
        return x * fn.calls + C.n

    fn.calls = 0
    f = wrap(fn)
    for _ in range(12):
        yield f(t(3)), fn.calls, C.n, len(C.seen)


@scenario
def caches(wrap):
    calls = []

    class C:
        k = 2

        @functools.cached_property
        def w(self):
            calls.append("w")
            return self.k * 2

        @functools.lru_cache(maxsize=None)  # noqa: B019
        def table(self, n):
            calls.append(n)
            return n * self.k

    c = C()
    f = wrap(lambda c, x: x * c.w + c.table(3))
    yield f(c, t(3)), f(c, t(3)), calls
    del c.w
    c.k = 5
    C.table.cache_clear()
    yield f(c, t(3)), f(C(), t(3)), calls


@scenario
def single_dispatch_and_callables(wrap):
    @functools.singledispatch
    def kind(v):
        return 1

    f = wrap(lambda v, x: x * kind(v))
    yield f(1, t(3)), f("a", t(3))
    kind.register(str)(lambda v: 7)
    yield f(1, t(3)), f("a", t(3))


@scenario
def the_same_function_compiled_twice_over(wrap):
    def fn(x, k=2):
        return x * k

    a = wrap(fn)
    b = wrap(a)
    c = wrap(functools.partial(a, k=5))
    yield a(t(3)), b(t(3)), c(t(3)), a.__name__, b.__name__, a.__doc__, callable(c)


@scenario
def lists_of_functions_in_a_loop(wrap):
    fs = [lambda v: v + 1, torch.relu, nn.Sigmoid(), functools.partial(torch.mul, other=3)]

    def fn(x, order):
        for i in order:
            x = fs[i](x)
        return x

    f = wrap(fn)
    for order in ((0, 1), (1, 0), [2, 3], range(4), ()):
        yield f(t(3), order)
    fs[0], fs[1] = fs[1], fs[0]
    yield f(t(3), (0, 1)), f(t(3), range(4))


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    agrees(made)
