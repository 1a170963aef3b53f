"""Functions: closures, defaults, decorators, recursion and how arguments are bound.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import functools
import operator

import pytest
import torch

from tests.support.functions import prints_and_adds
from tests.support.tensors import t

from .harness import agrees_with_eager


def returns_lambda(x):
    k = x * 2
    return (lambda v: v + k)(x), (lambda v, w=3: v * w)(x)


def function_with_defaults_leaves(x):
    y = x + 1

    def inner(v, scale=2, *, shift=y):
        return v * scale + shift

    print("made", inner.__name__, inner.__defaults__)
    return inner(x), inner(x, 3, shift=0)


def makes_closure(x):
    y = x * 2

    def inner(v):
        return v + y

    return inner


def calls_what_it_makes(x):
    f = makes_closure(x)
    print("between")
    return f(x) + makes_closure(x + 1)(x)


def nonlocal_across_break(x):
    n = 0

    def bump():
        nonlocal n
        n += 1
        print("n", n)
        return n

    a = bump()
    y = x * a
    b = bump()
    return y + b, n


def nonlocal_inlined(x):
    total = x

    def add(v):
        nonlocal total
        total = total + v
        return total

    add(1)
    add(x)
    return total


def args_pass_through(*args, **kwargs):
    return positional_only(*args, **kwargs)


def positional_only(a, b, /, c=1, *, d=2, **rest):
    return a * b + c - d, rest


def wrong_call(x):
    return positional_only(x)


def wrong_keyword(x):
    return prints_and_adds(x, j=1)


def decorated(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return inner


@decorated
def is_decorated(x, k=2):
    return x * k


def uses_decorated(x):
    return is_decorated(x, k=3), is_decorated.__name__


@torch.no_grad()
def without_grad(x):
    return x * 2, torch.is_grad_enabled()


@torch.inference_mode()
def with_inference(x):
    return (x * 2).is_inference(), torch.is_inference_mode_enabled()


def calls_without_grad(x):
    a, flag = without_grad(x)
    return a + x, flag, torch.is_grad_enabled(), with_inference(x)


@functools.lru_cache(maxsize=4)
def cached(n):
    print("computing", n)
    return n * 2


def uses_cache(x):
    cached.cache_clear()
    return x * cached(3) + cached(3), cached.cache_info().hits


def partials(x):
    f = functools.partial(positional_only, x, d=5)
    return f(2), f(3, c=x), functools.partial(torch.add, alpha=2)(x, x), f.keywords, f.func is positional_only


def sorted_tensors(x):
    return sorted([x[1], x[0], x[2]], key=lambda v: v.item()), max(x[0], x[1]), min([x[0], x[1]])


def recursion(x, n):
    if n <= 0:
        return x
    return recursion(x * 0.5, n - 1) + recursion(x, n - 2)


def mutual(x, n):
    return x if n == 0 else mutual_other(x + 1, n - 1)


def mutual_other(x, n):
    return x if n == 0 else mutual(x * 2, n - 1)


def operator_functions(x):
    return (
        operator.add(x, 1),
        operator.itemgetter(1)([1, x]),
        operator.attrgetter("ndim")(x),
        operator.methodcaller("abs")(x),
        operator.mul(2, 3),
    )


def undefined_called(x):
    return no_such(x + 1)


def attr_called_via_dict(x):
    class Plain:
        pass

    o = Plain()
    o.f = lambda v: v * 2
    return o.f(x)


def mod_attr_called(x):
    import torch.nn.functional as FF

    return FF.relu(x)


def nested_fn_defaults_break(x, n):
    def g(v, n=n, *a, k=x, **kw):
        return v * n + k

    fs = [lambda v, i=i: v * i for i in range(3)]
    print("b", len(fs))
    return g(x), [f(x) for f in fs]


def closure_list_across(x):
    acc = []

    def add(v):
        acc.append(v)
        return len(acc)

    add(x)
    print("len", len(acc))
    add(x + 1)
    print(add(3))
    return acc


def kwargs_call_break(x):
    f = dict(a=1, b=x)
    return prt(**f), prt(*[1], **{"b": x})


def prt(a, b):
    print("a", a)
    return b * a


def star_break(x):
    return prt(*(print("1") or (2, x)))


def lambda_default_tensor(x):
    return (lambda v=x * 2: v + 1)()


def global_in_comp(x):
    return [g_scale * v for v in (x,)], {g_scale}


g_scale = 3


def recursion_closure(x):
    def f(v, n):
        return v if n == 0 else f(v + 1, n - 1)

    return f(x, 3)


def star_lambda(x):
    return (lambda *a, **k: (a, k))(x, *[1], z=2, **{"y": 3})


CASES = [
    (returns_lambda, (t(2),)), (function_with_defaults_leaves, (t(2),)), (calls_what_it_makes, (t(2),)),
    (nonlocal_across_break, (t(2),)), (nonlocal_inlined, (t(2),)), (args_pass_through, (t(2), 2), (t(2), 2, 3)),
    (wrong_call, (t(2),)), (wrong_keyword, (t(2),)), (uses_decorated, (t(2),)), (calls_without_grad, (t(2).requires_grad_(),)),
    (uses_cache, (t(2),)), (partials, (t(2),)), (sorted_tensors, (t(3),)), (recursion, (t(2), 5)), (mutual, (t(2), 7)),
    (operator_functions, (t(2),)), (undefined_called, (t(3),)), (attr_called_via_dict, (t(3),)), (mod_attr_called, (t(3),)),
    (nested_fn_defaults_break, (t(3), 5)), (closure_list_across, (t(3),)), (kwargs_call_break, (t(3),)), (star_break, (t(3),)),
    (lambda_default_tensor, (t(3),)), (global_in_comp, (t(3),)), (recursion_closure, (t(3),)), (star_lambda, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)
