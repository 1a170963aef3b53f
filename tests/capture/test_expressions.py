"""Expressions and names: truth, short circuits, globals, imports, the order of effects.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.tensors import t

from .harness import agrees_with_eager


def truthiness(x, v=None):
    class Empty:
        def __len__(self):
            return 0

    return (
        x,
        bool(Empty()),
        not v,
        1 if [] else 2,
        "" or "b",
        None and 1,
        [0] and "y",
        0.0 or -0.0,
        bool(x.shape),
        all([1, x.ndim]),
        any(()),
    )


def type_tests(x, v):
    return x, isinstance(v, (int, float)), type(v) is int, isinstance(v, torch.Tensor), callable(v), v is None, isinstance(v, (list, tuple)), type(v).__name__, isinstance(x, nn.Parameter), issubclass(type(v), object), v == v  # fmt: skip


def walrus_and_ternary(x):
    if (n := x.shape[0]) and (m := n * 2) > 3:
        y = x * m
    else:
        y = x
    return y, n, [z for i in range(3) if (z := i * 2)], z


def globals_and_locals(x):
    y = x + 1
    return y, sorted(locals()), "t" in globals()


def imports_inside(x):
    import math as m
    from math import pi

    import torch.nn.functional as G

    return G.relu(x) * m.floor(pi)


def prints_order(x):
    print("a", end=";")
    y = x + 1
    print("b", y.sum().item() > -1e9, sep="")
    for i in range(2):
        print(i)
    return (print("c"), y)[1]


def chained_calls(x):
    return x.add(1).mul(2).relu().sum(0, keepdim=True).expand(3).clone().tanh_().unsqueeze(0)[0]


def many_live_values(x):
    a, b, c, d, e = (x + i for i in range(5))
    print("p")
    f = [a, b]
    print("q")
    return a + b + c + d + e, f, len(f)


def short_circuit_values(x, y=None):
    return y or x, y and x, (x is not None and x.sum()) if y is None else 0, not y, x if y else None


def conditional_expressions(x):
    a = x if x.sum() > 0 else -x
    b = (x.sum() > 0) and x
    c = 5 if not x.any() else 6
    d = [v for v in x if v > 0]
    e = x.sum() > 0 or x.sum() < -100
    return a, b, c, d, e


def compares_tensors_in_containers(x):
    y = x + 1
    return [1, "a"] == [1, "a"], {"k": 1} == {"k": 1.0}, (1, None) != (1, 0), x is y, [x] is [x], len([x, y])


def chained_compare_tensor(x):
    return bool((x > -100).all()) and 0 < x.numel() < 10


def ternary_nested(x):
    return (x if x.shape[0] > 5 else x * 2 if x.ndim == 1 else x * 3), (1 if x.sum() > 100 else 2)


CASES = [
    (truthiness, (t(2),)), (type_tests, (t(2), 1), (t(2), "a"), (t(2), None), (t(2), [1]), (t(2), True), (t(2), torch.relu)),
    (walrus_and_ternary, (t(2),), (t(0),)), (globals_and_locals, (t(2),)), (imports_inside, (t(2),)), (prints_order, (t(2),)),
    (chained_calls, (t(3),)), (many_live_values, (t(2),)), (short_circuit_values, (t(2),), (t(2), 5)),
    (conditional_expressions, (t(3),), (-t(3).abs(),)), (compares_tensors_in_containers, (t(2),)),
    (chained_compare_tensor, (t(3),)), (ternary_nested, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)
