"""One object under several names, views, and tensors that are written.

Something changes between calls; compiled code must notice whatever eager would notice.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.scenarios import Scenarios, agrees
from tests.support.tensors import t

SCENARIOS = Scenarios()
scenario = SCENARIOS.add


@scenario
def one_object_under_two_names(wrap):
    class Box:
        def __init__(self, v):
            self.v, self.items = v, []

    def fn(a, b, x):
        a.v = a.v + 1
        a.items.append(x)
        return x * b.v, len(b.items)

    f = wrap(fn)
    for same in (False, True, False, True):
        a = Box(1)
        b = a if same else Box(5)
        yield f(a, b, t(3)), a.v, b.v, len(b.items)


@scenario
def one_list_under_two_names(wrap):
    def fn(a, b, x):
        a.append(x)
        return len(b), b[-1] * 2

    f = wrap(fn)
    for same in (False, True, False):
        a = [t(3, seed=1)]
        b = a if same else [t(3, seed=2)]
        yield f(a, b, t(3)), a, b


@scenario
def one_dict_under_two_names(wrap):
    def fn(a, b, x):
        a["k"] = 7
        return x * b["k"]

    f = wrap(fn)
    for same in (False, True, False):
        a = {"k": 1}
        b = a if same else {"k": 2}
        yield f(a, b, t(3)), a, b


@scenario
def one_list_inside_another(wrap):
    def fn(a, table, x):
        a.append(1)
        return x * len(table["inner"])

    f = wrap(fn)
    for same in (False, True, False):
        a = [0]
        yield f(a, {"inner": a if same else [1, 2]}, t(3)), a


@scenario
def one_tensor_under_two_names(wrap):
    def fn(a, b):
        a.add_(1)
        return b * 2, a is b

    f = wrap(fn)
    for same in (False, True, False, True):
        a = t(3)
        b = a if same else t(3, seed=1)
        yield f(a, b), a, b


@scenario
def views_of_one_tensor(wrap):
    def fn(a, b):
        a.mul_(2)
        b.add_(1)
        return a + b

    f = wrap(fn)
    for overlap in (False, True, False, True):
        base = t(6)
        other = base if overlap else t(6)
        yield f(base[:4], other[2:]), base, other


@scenario
def a_stored_tensor_is_read_later(wrap):
    class Cache:
        value = None
        log: list[Any] = []

    c = Cache()

    def fn(x):
        if c.value is None:
            c.value = x * 2
            return c.value
        c.value.add_(1)
        return c.value + x

    f = wrap(fn)
    for i in range(4):
        yield f(t(3, seed=i)), c.value
    c.value = None
    yield f(t(3)), c.value


@scenario
def in_place_state(wrap):
    state = torch.zeros(3)

    def fn(x):
        state.add_(x)
        state[0] = 5
        return state * 2, state

    f = wrap(fn)
    for i in range(3):
        y, s = f(t(3, seed=i))
        yield y, s is state, state
    state = torch.ones(3)
    yield f(t(3)), state


@scenario
def leaves_views_and_inference_tensors(wrap):
    f = wrap(
        lambda x: (x.is_leaf, x.storage_offset(), x.is_inference(), x.is_shared(), x.get_device(), x.nbytes, x * 2)
    )
    a = t(6).requires_grad_()
    with torch.inference_mode():
        b = t(6)
    for x in (t(6), a, a * 1, t(8)[2:], t(6).detach(), b):
        yield f(x)


@scenario
def written_through_one_alias_and_read_through_another(wrap):
    class Node:
        def __init__(self):
            self.value, self.kids, self.parent = 0, [], None

    a, b = Node(), Node()
    a.kids.append(b)
    b.parent = a

    def fn(x):
        a.kids[0].value = a.kids[0].value + 1
        b.parent.kids.append(x)
        print("kids", len(a.kids), b.value)
        b.parent.value = b.value * 2
        b.kids = b.kids + [1]
        return x * a.value + len(a.kids) + len(a.kids[0].kids)

    f = wrap(fn)
    for _ in range(3):
        yield f(t(3)), a.value, b.value, len(a.kids), b.kids
    b.parent = Node()
    yield f(t(3)), a.value, b.value, b.parent.value
    a.kids[0] = a
    yield f(t(3)), a.value, b.value, len(a.kids)


@scenario
def one_tensor_in_many_places(wrap):
    def fn(items, d):
        items[0].add_(1)
        return items[1] * 2, d["x"] + 1, items[0] is d["x"]

    f = wrap(fn)
    for _ in range(2):
        a, b = t(3), t(3, seed=1)
        for items, d in (
            ([a, b], {"x": b}),
            ([a, a], {"x": b}),
            ([a, a], {"x": a}),
            ([a, b], {"x": a}),
            ([a, a.view(-1)], {"x": a[:]}),
        ):
            yield f(items, d), a, b


@scenario
def tensors_with_hooks_and_grads(wrap):
    w = t(3).requires_grad_()
    f = wrap(lambda x: (x * w).sum())
    g = wrap(lambda x: x * 2 if w.grad is None else x * w.grad)
    yield g(t(3))
    f(t(3)).backward()
    yield w.grad, g(t(3))
    seen = []
    h = w.register_hook(lambda grad: seen.append(grad) or grad * 2)
    f(t(3)).backward()
    h.remove()
    yield w.grad, seen, g(t(3))
    w.grad = None
    yield g(t(3))
    w.requires_grad_(False)
    yield f(t(3)), f(t(3).requires_grad_())


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices_what_eager_notices(made):
    agrees(made)
