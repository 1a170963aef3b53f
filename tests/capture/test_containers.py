"""Lists, tuples, dictionaries, sets and their views.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import pytest
import torch

from tests.support.tensors import t

from .harness import agrees_with_eager


def dict_methods(x):
    d = {"a": x}
    d.update(b=1)
    d.update({"c": 2}, d=3)
    d.update([("e", 4)])
    e = d.setdefault("f", [])
    e.append(5)
    d |= {"g": 6}
    last = d.popitem()
    n = d.pop("zz", None)
    c = d.copy()
    c["a"] = 0
    f = dict(d, h=7)
    k = dict.fromkeys(["p", "q"], 0)
    return d, last, n, c, f, k, len(d), list(reversed(d)), d.get("nope", 9), d == c, d != c


def dict_alias(x):
    d = {"a": x}
    e = d
    e["b"] = 1
    d |= {"c": 2}
    return d, e is d, len(e)


def inplace_or_on_argument(d, x):
    d |= {"new": x}
    return len(d)


def clears(d, x):
    d.clear()
    d["k"] = x
    return x * len(d)


def list_methods(x):
    a = [3, 1, 2]
    a.sort()
    b = sorted(a, reverse=True)
    a.extend(i for i in range(2))
    a += (7,)
    a *= 2
    a.remove(7)
    del a[0]
    a[1:3] = [x, x, x]
    del a[-2:]
    c = a.copy()
    c.reverse()
    return a, b, c, a.count(1), b.index(2), [1, 2] == [1, 2], [1] < [2], a[::-1], [x] * 2, 2 * [1], [[0]] * 2


def sort_with_key(x):
    items = [("b", 2), ("a", 3), ("c", 1)]
    items.sort(key=lambda p: p[1])
    return items, sorted(items, key=lambda p: p[0], reverse=True), max(items, key=lambda p: p[1]), min([], default=5), x


def repeated_alias(x):
    rows = [[0]] * 2
    rows[0].append(x)
    return rows, rows[0] is rows[1]


def inplace_on_argument_list(items, x):
    items += [x]
    items *= 2
    return len(items)


def inplace_on_tuple(x):
    a = (1,)
    b = a
    a += (x,)
    return a, b, a is b


def nested_mutation(items, x):
    items[0]["k"].append(x)
    items[0]["n"] += 1
    del items[1]
    return len(items)


def swaps(items):
    items[0], items[1] = items[1], items[0]
    return items[0] + 1


def same_list_twice(x):
    a = [x]
    return a, a, {"k": a}, (a,)


def sets_(x):
    s = {1, 2}
    s.add(3)
    f = frozenset([1, 2])
    return x, s, 2 in s, s & {2}, f | {5}, len(s), s - f, set(), {*f, 9}, 5 in f, s == {1, 2, 3}, x.shape[0] in {3, 4}


def tuples_(x):
    a = (1, 2, 3)
    return (
        x,
        a + (4,),
        a * 2,
        a[1:],
        a.index(2),
        a.count(3),
        a < (1, 3),
        hash(a),
        a == (1, 2, 3),
        (1, (2, x))[1][0],
        () or (0,),
        not (),
    )


def counters(x):
    c = collections.Counter("aab")
    d = collections.defaultdict(list)
    d["k"].append(x)
    q = collections.deque([1, 2], maxlen=2)
    q.append(3)
    o = collections.OrderedDict(a=x, b=1)
    o.move_to_end("a")
    return c["a"], dict(d), list(q), list(o), type(o).__name__, o


def dict_keys_of_many_types(x):
    d = {1: "i", "1": "s", (1, 2): "t", None: "n", 2.5: "f", torch.float32: "d", int: "c", True: "b"}
    return x, d[1], d[(1, 2)], d[x.dtype], d[type(1)], d[None], len(d), list(d)[:2]


class P(NamedTuple):
    a: Any
    b: Any = 3

    def total(self):
        return self.a + self.b


def named(x):
    p = P(x)
    q = p._replace(b=5)
    a, b = q
    return (
        p,
        q,
        p.total(),
        q.a,
        p._asdict(),
        a + b,
        P._make([1, 2]),
        p == q if False else P(1) == P(1, 3),
        isinstance(p, tuple),
        p[::2],
        len(q),
    )


def slices_of_containers(x):
    a = list(range(6))
    s = slice(1, None, 2)
    return x[s] if False else a[s], a[-2:], a[::-2], "abcdef"[s], (1, 2, 3)[-1:], x[slice(0, 2)], s.start, s.indices(4)


def dict_items_break(d):
    for k, v in d.items():
        print(k)
        d[k] = v * 2
    return [k for k in d], {k: v for k, v in zip(d.keys(), d.values())}


def sorted_views(x):
    d = {"b": 1, "a": 2}
    return (
        sorted(d),
        sorted(d.items()),
        max(d.values()),
        sum(d.values()),
        ",".join(d.keys()),
        list(map(str, d.values())),
        dict(zip(d.values(), d.keys())),
        tuple(d.items()),
        set(d),
        [*d.values()],
        {**d},
        len(d.items()),
        x,
        bool({}.keys()),
        str(d.keys()),
        any(d.values()),
        d.keys() == {"a", "b"},
    )


def view_unpack(x):
    a, b = {"p": x, "q": 2}.values()
    ((k, v),) = ({"z": 1}).items()
    return a, b, k, v, torch.stack(list({"a": x, "b": x}.values())), torch.cat(tuple({"a": x}.values()))


def cat_values(x):
    return (
        torch.stack([*{"a": x, "b": x}.values()]),
        max({"a": 1}.values()),
        isinstance({}.keys(), (list, tuple)),
        type({}.items()).__name__,
    )


def torch_with_view(x):
    return torch.stack(tuple(v for v in {"a": x}.values())), nn_stack({"a": x})


def nn_stack(d):
    try:
        return torch.stack(d.values())
    except TypeError as e:
        return "TypeError"


def del_in_loop(x):
    y = x
    for i in range(3):
        z = y + i
        print(i)
        y = z * 2
        del z
    return y


def set_items(x):
    s = {1, 2, 3}
    s.discard(2)
    for v in sorted(s):
        x = x + v
    return x, s


def multi_assign(x):
    a = b = [x]
    a += [1]
    c = d = {}
    c["k"] = b
    return a, b, d, a is b, c is d


def unpack_swap(x):
    a, b, c = x
    a, b = b, a
    [p, q], *r = [[a, b], c]
    return p, q, r


def slice_assign_list(x):
    a = [1, 2, 3]
    b = a
    a[:] = [x]
    a[len(a) :] = [4, 5]
    del a[1:]
    a.insert(0, 9)
    return a, b is a


def mutate_default_arg_list(x, acc=None):
    acc = acc or []
    acc.append(x)
    return acc


def inplace_param_dict(x):
    p = {"w": x.clone()}
    p["w"] += 1
    p["w"][0] = 3
    p["n"] = 0
    p["n"] += 2
    return p


def nan_keys(x):
    n = float("nan")
    return x, n in [n], [n] == [n], {n: 1}.get(n), n == n


def refused_deletions(x):
    found = []
    for held, key in (
        ((1, 2), 0),
        ((1, 2), slice(None)),
        ("ab", 1),
        ("ab", "a"),
        ({1}, 0),
        (range(3), None),
        (3, 0),
        (None, "a"),
    ):
        try:
            del held[key]
        except TypeError as e:
            found.append(str(e))
    return x + 1, found


CASES = [
    (dict_methods, (t(2),)), (dict_alias, (t(2),)), (inplace_or_on_argument, ({"a": 1}, t(2))), (clears, ({"a": 1}, t(2))),
    (list_methods, (t(2),)), (sort_with_key, (t(2),)), (repeated_alias, (t(2),)), (inplace_on_argument_list, ([1], t(2))),
    (inplace_on_tuple, (t(2),)), (nested_mutation, ([{"k": [], "n": 1}, 2], t(2))), (swaps, ([t(2), t(2, seed=1)],)),
    (same_list_twice, (t(2),)), (sets_, (t(3),)), (tuples_, (t(2),)), (counters, (t(2),)), (dict_keys_of_many_types, (t(2),)),
    (named, (t(2),)), (slices_of_containers, (t(3),)), (dict_items_break, ({"a": t(2), "b": t(2)},)), (sorted_views, (t(3),)),
    (view_unpack, (t(3),)), (cat_values, (t(3),)), (torch_with_view, (t(3),)), (del_in_loop, (t(3),)), (set_items, (t(3),)),
    (multi_assign, (t(3),)), (unpack_swap, (t(3),)), (slice_assign_list, (t(3),)), (mutate_default_arg_list, (t(3),)),
    (inplace_param_dict, (t(3),)), (nan_keys, (t(3),)), (refused_deletions, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)
