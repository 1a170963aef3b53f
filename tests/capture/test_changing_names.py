"""Globals, closures, defaults and the functions they name.

Something changes between calls; compiled code must notice whatever eager would notice.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.scenarios import Base, Scenarios, agrees, raised
from tests.support.tensors import t

SCENARIOS = Scenarios()
scenario = SCENARIOS.add
SCALE: Any = 2.0
TABLE: dict[str, Any] = {"k": 1}
ITEMS: list[Any] = [1, 2]


@scenario
def a_global_changes_value_and_type(wrap):
    global SCALE
    f = wrap(lambda x: x * SCALE)
    for SCALE in (2.0, 3.0, 3, True, -0.0, 0.0, t(3)):
        yield f(torch.arange(3)), SCALE
    SCALE = 2.0


@scenario
def a_global_function_is_replaced(wrap):
    global helper
    saved = helper
    f = wrap(lambda x: helper(x) + 1)
    yield f(t(3))
    helper = lambda x: x * 10  # noqa: E731
    yield f(t(3))
    helper = torch.relu
    yield f(t(3))
    helper = nn.Tanh()
    yield f(t(3))
    helper = saved
    yield f(t(3))


def helper(x, k=2.0, *, shift=1.0):
    return x * k + shift


@scenario
def code_of_a_global_function_is_replaced(wrap):
    f = wrap(lambda x: helper(x))
    saved = helper.__code__
    yield f(t(3))
    helper.__code__ = (lambda x, k=2.0, *, shift=1.0: x - k - shift).__code__
    yield f(t(3))
    helper.__code__ = saved
    yield f(t(3))


@scenario
def defaults_of_a_callee_change(wrap):
    def callee(x, k=2.0, *, shift=1.0):
        return x * k + shift

    f = wrap(lambda x: callee(x))
    yield f(t(3))
    callee.__defaults__ = (5.0,)
    yield f(t(3))
    callee.__kwdefaults__ = {"shift": -1.0}
    yield f(t(3))
    callee.__defaults__ = (1.0, 5.0)
    yield f(t(3)), raised(f)
    callee.__defaults__ = None
    yield raised(f, t(3))


@scenario
def defaults_of_the_compiled_function_change(wrap):
    def fn(x, k=2.0):
        return x * k

    f = wrap(fn)
    yield f(t(3))
    fn.__defaults__ = (3.0,)
    yield f(t(3))


@scenario
def a_mutable_default_remembers(wrap):
    def fn(x, seen=[]):  # noqa: B006
        seen.append(x.sum())
        return sum(seen), len(seen)

    f = wrap(fn)
    for i in range(5):
        yield f(t(3, seed=i))


@scenario
def a_mutable_default_of_a_callee_remembers(wrap):
    def callee(x, seen={}):  # noqa: B006
        seen[len(seen)] = x
        return len(seen)

    f = wrap(lambda x: x * callee(x))
    for i in range(5):
        yield f(t(3, seed=i))


@scenario
def a_closure_changes(wrap):
    k: Any = 2

    def fn(x):
        return x * k

    f = wrap(fn)
    yield f(t(3))
    k = 3
    yield f(t(3))
    k = t(3, seed=9)
    yield f(t(3))
    k = k[:1]
    yield f(t(3))


@scenario
def closures_of_one_code(wrap):
    def make(n):
        return wrap(lambda x: x + n)

    adders = [make(n) for n in (1, 2, 3.5, t(3))]
    for _ in range(2):
        for f in adders:
            yield f(t(3))


@scenario
def nonlocal_counter(wrap):
    n = 0

    def fn(x):
        nonlocal n
        n += 1
        return x * n

    f = wrap(fn)
    for _ in range(4):
        yield f(t(3)), n


@scenario
def nonlocal_counter_in_a_callee(wrap):
    n = 0

    def bump():
        nonlocal n
        n += 1
        return n

    f = wrap(lambda x: x * bump() + bump())
    for _ in range(4):
        yield f(t(3)), n


COUNT = 0


@scenario
def global_counter(wrap):
    global COUNT
    COUNT = 0

    def fn(x):
        global COUNT
        COUNT += 1
        return x * COUNT

    f = wrap(fn)
    for _ in range(4):
        yield f(t(3)), COUNT


@scenario
def a_global_is_deleted(wrap):
    global LATER
    LATER = 1
    f = wrap(lambda x: x + LATER)
    yield f(t(3))
    del LATER
    yield raised(f, t(3))
    LATER = 5
    yield f(t(3))


@scenario
def a_builtin_is_shadowed_by_a_global(wrap):
    f = wrap(lambda x: x * len(x))
    yield f(t(3))
    globals()["len"] = lambda x: 100
    try:
        yield f(t(3))
    finally:
        del globals()["len"]
    yield f(t(3))


@scenario
def a_builtin_is_replaced(wrap):
    f = wrap(lambda x: x * max(1, 2))
    g = wrap(lambda x: (print("hi"), x + 1)[1])
    yield f(t(3)), g(t(3))
    saved = builtins.max, builtins.print
    try:
        builtins.max = lambda *a, **k: 7 if a == (1, 2) else saved[0](*a, **k)
        builtins.print = lambda *a: saved[1]("other", *a)
        yield f(t(3)), g(t(3))
    finally:
        builtins.max, builtins.print = saved
    yield f(t(3)), g(t(3))


@scenario
def a_global_dict_and_list_change(wrap):
    def fn(x):
        total = x
        for k, v in TABLE.items():
            total = total * v + len(k)
        for i in ITEMS:
            total = total + i
        return total, "z" in TABLE, 3 in ITEMS

    f = wrap(fn)
    yield f(t(3))
    TABLE["k"] = 2
    yield f(t(3))
    TABLE["zz"] = 3
    yield f(t(3))
    ITEMS.append(3)
    yield f(t(3))
    ITEMS.reverse()
    yield f(t(3))
    TABLE.pop("k")
    TABLE["k"] = 1
    yield f(t(3))
    TABLE.clear()
    TABLE["k"] = 1
    ITEMS[:] = [1, 2]
    yield f(t(3))


@scenario
def a_module_attribute_changes(wrap):
    module = types.ModuleType("user_module")
    module.k, module.fn = 2, lambda x: x + 1
    f = wrap(lambda x: module.fn(x) * module.k)
    yield f(t(3))
    module.k = 3
    yield f(t(3))
    module.fn = lambda x: x - 1
    yield f(t(3))


@scenario
def functions_as_arguments(wrap):
    f = wrap(lambda fn, x: fn(x))
    k = 3
    for fn in (torch.relu, torch.neg, lambda x: x + 1, lambda x: x * k, nn.ReLU(), functools.partial(torch.add, t(3)), abs,
               functools.partial(helper, k=5), t(3).add, Base().apply, Base.static, Base.build, str, "a".join):  # fmt: skip
        yield raised(f, fn, t(3)) if fn is not str else type(f(fn, t(3)))


@scenario
def partials_change(wrap):
    p = functools.partial(helper, k=2.0, shift=t(3))
    f, g = wrap(p), wrap(lambda x: p(x))
    yield f(t(3)), g(t(3))
    p.keywords["k"] = 4.0
    yield f(t(3)), g(t(3))
    yield f(t(3), shift=0), raised(f, t(3), t(3))
    p = functools.partial(helper, t(3))
    yield g(2.0)


@scenario
def compiled_functions_call_each_other(wrap):
    inner = wrap(lambda x: x * SCALE)

    def fn(x):
        return inner(x) + 1

    f = wrap(fn)
    global SCALE
    yield f(t(3))
    SCALE = 5.0
    yield f(t(3)), inner(t(3))
    inner = lambda x: x - 1  # noqa: E731
    yield f(t(3))
    SCALE = 2.0
    inner = wrap(lambda x: (print("inner"), x)[1])
    yield f(t(3)), f(t(3))


@scenario
def a_trace_function_is_active(wrap):
    f = wrap(lambda x: helper(x) * 2)
    yield f(t(3))
    lines = []
    previous = sys.gettrace()
    sys.settrace(lambda frame, event, arg: lines.append(event))
    try:
        y = f(t(3))
    finally:
        sys.settrace(previous)
    yield y
    g = wrap(lambda x: helper(x) * 3)
    sys.settrace(lambda frame, event, arg: None)
    try:
        y = g(t(3))
    finally:
        sys.settrace(previous)
    yield y, g(t(3))


@scenario
def cells_are_emptied(wrap):
    def make():
        k = 2

        def fn(x):
            return x * k

        def forget():
            nonlocal k
            del k

        def remember(v):
            nonlocal k
            k = v

        return fn, forget, remember

    fn, forget, remember = make()
    f = wrap(fn)
    yield f(t(3))
    forget()
    yield raised(f, t(3))
    remember(5)
    yield f(t(3))


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    agrees(made)
