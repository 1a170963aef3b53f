"""Loops, iterators, generators and comprehensions.

Whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import functools
import itertools
import operator

import pytest

from tests.support.functions import prints_and_adds
from tests.support.tensors import t

from .harness import agrees_with_eager


def appends_while_iterating(x):
    items, out = [1], []
    for i in items:
        out.append(x * i)
        if i < 5:
            items.append(i + 1)
    return out, items


def appends_while_iterating_across_breaks(x):
    items, out = [1], []
    for i in items:
        print("i", i)
        out.append(x * i)
        if i < 5:
            items.append(i + 1)
    return out, items


def removes_while_iterating(x):
    items = [1, 2, 3, 4]
    for i in items:
        if i == 2:
            items.remove(i)
        x = x + i
    return x, items


def argument_grows_while_iterating(items, x):
    for i in items:
        x = x + i
        if len(items) < 6:
            items.append(i + 1)
    return x


def two_iterators(x):
    items = [1, 2, 3, 4]
    it = iter(items)
    a = next(it)
    items.append(9)
    b = [v for v in it]
    return x * a, b, next(it, "end"), list(it)


def pairs_from_one_iterator(x):
    it = iter([1, 2, 3, 4])
    return [(a, b) for a, b in zip(it, it)], x


def zip_stops_early(x):
    long, short = iter([1, 2, 3]), iter([1])
    pairs = list(zip(long, short))
    return pairs, list(long), x + 1


def lazy_map(x):
    log = []

    def note(v):
        log.append(v)
        return v * 2

    m = map(note, [1, 2, 3])
    before = len(log)
    first = next(m)
    log.append("between")
    rest = list(m)
    return x * first, before, rest, log


def iterator_types(x):
    made = (
        zip([1], [2]),
        map(abs, [1]),
        enumerate([1]),
        reversed([1]),
        iter([1]),
        iter((1,)),
        iter({1: 2}),
        iter(range(2)),
        iter("ab"),
    )
    return x + 1, [type(i).__name__ for i in made]


def returns_iterators(x):
    return [
        type(v).__name__
        for v in (returns_zip(x), returns_map(x), returns_enumerate(x), {}.keys(), {}.items(), {}.values())
    ]


def returns_zip(x):
    return zip([x], [x + 1])


def returns_map(x):
    return map(lambda v: v + 1, [x])


def returns_enumerate(x):
    return enumerate([x, x + 1])


def prints_views(x):
    d = {"a": 1, "b": 2}
    y = x + 1
    print(d.keys(), d.values(), d.items(), range(3), zip.__name__)
    return y * 2


def live_views(x):
    d = {"a": x}
    keys, values, items = d.keys(), d.values(), d.items()
    d["b"] = x + 1
    return list(keys), list(values), len(items), "b" in keys, [k for k, _ in items], ("a", 1) in items


def view_operations(x):
    a, b = {"p": 1, "q": 2}, {"q": 3}
    return (
        x,
        a.keys() & b.keys(),
        a.keys() - b.keys(),
        a.keys() == {"p", "q"},
        sorted(a.keys() | b),
        a.keys() == b.keys(),
    )


def changes_dict_while_iterating(x):
    d = {"a": 1}
    for k in d:
        d[k + "b"] = 2
    return x


def deletes_from_dict_over_copy(x):
    d = {"a": 1, "b": 2, "c": 3}
    for k in list(d):
        if d[k] == 2:
            del d[k]
    return x * len(d), d


def range_details(x):
    r = range(10, 0, -3)
    return x, list(r), len(r), 7 in r, r[1], r[-1], r[::2], list(reversed(r)), r == range(10, -1, -3), r.start, r.step


def for_else(x, n):
    for i in range(5):
        if i == n:
            found = i
            break
    else:
        found = -1
    return x * found, i


def nested_breaks(x):
    out = []
    for i in range(3):
        for j in range(3):
            if j == 2:
                break
            print(i, j)
            out.append(x * i + j)
        else:
            out.append("never")
    return out


def while_prints(x):
    n = 0
    while True:
        n += 1
        if n == 3:
            continue
        if n > 5:
            break
        print("n", n)
        x = x + n
    return x, n


def loop_variable_after(x):
    for i, v in enumerate([x, x + 1]):
        print(i)
    return i, v


def enumerate_and_print(x):
    total = x
    for i, (k, v) in enumerate({"a": 1, "b": 2}.items(), start=3):
        print(i, k)
        total = total * v + i
    return total


def lists_appended_across_many_breaks(x):
    out, alias = [], []
    alias.append(out)
    for i in range(12):
        out.append(x + i)
        print(i, len(out), alias[0] is out)
    return out, len(alias[0])


def long_loop_with_break(x):
    for i in range(300):
        x = x + 1
        if i % 100 == 0:
            print(i)
        x = x * 1.0
    return x


def loop_that_breaks_every_time(x):
    total = 0.0
    for i in range(200):
        total += (x * i).sum().item()
    return total


def loop_in_callee_that_breaks(x):
    return sum(prints_and_adds(x, i) for i in range(5)), [prints_and_adds(x, i) for i in range(3)]


def generator_with_break(x):
    def gen():
        for i in range(3):
            print("gen", i)
            yield x * i

    return [v + 1 for v in gen()], next(gen()), list(zip(gen(), gen()))


def generator_send(x):
    def acc():
        total = x
        while True:
            got = yield total
            if got is None:
                return
            total = total + got

    g = acc()
    first = next(g)
    return first, g.send(x), g.send(1)


def comprehension_scopes(x):
    i = 10
    a = [i for i in range(3)]
    b = {k: [x * k + j for j in range(k)] for k in range(3)}
    c = [[i * j for j in range(2)] for i in range(2)]
    d = {i % 2 for i in range(5)}
    e = sum(i for i in range(4))
    return i, a, b, c, d, e


def comprehension_breaks(x):
    return [(print("c", i), x + i)[1] for i in range(4) if i != 2]


def nested_comprehension_closure(x):
    fs = [lambda v, k=k: v + k for k in range(3)]
    gs = [lambda v: v + k for k in range(3)]
    return [f(x) for f in fs], [g(x) for g in gs]


def tensors_iterate(x):
    total = 0
    for row in x:
        for v in row:
            total = total + v
    a, *b = x
    return total, a, b, [r.sum() for r in reversed(x)], list(enumerate(x))[0], dict(zip("ab", x)), tuple(x), x.tolist()


def stars(x):
    a = [*range(2), *(x,), *{"k": 1}]
    b = {**{"a": x}, "b": 1, **{"a": 2}}
    return a, b, (lambda *p, **k: (p, k))(*a, **b), max(*[1, 2]), [*"ab"]


def itertools_(x):
    return (
        [a + b for a, b in itertools.product([x], [1, 2])], list(itertools.chain([1], [2])), list(itertools.islice(itertools.count(), 3)),
        list(itertools.accumulate([1, 2, 3])), [k for k, _ in itertools.groupby([1, 1, 2])], list(itertools.repeat(x, 2)),
        list(itertools.combinations([1, 2, 3], 2)), list(itertools.zip_longest([1], [2, 3])), functools.reduce(operator.add, [x, x, 1]),
    )  # fmt: skip


def arg_iter_print(items):
    for i, v in enumerate(items):
        print(i)
        items[i] = v * 2
        if len(items) < 4:
            items.append(v + 1)
    return items


def zip_break(x):
    for a, b in zip([x, x * 2], ("p", "q")):
        print(b)
        x = x + a
    for a in map(lambda v: v * 2, [1, 2]):
        print(a)
        x = x * a
    for a in reversed([1, 2, 3]):
        print(a)
        x = x - a
    it = iter([1, 2, 3])
    for a in it:
        print(a)
        x = x + next(it, 0)
    z = zip(it, it)
    print(type(z).__name__)
    return x, list(z)


def two_loops_same_iter(x):
    it = iter(range(6))
    for a in it:
        for b in it:
            print(a, b)
            x = x + b
            if b % 2:
                break
    return x


def enumerate_same(x):
    e = enumerate("abcd", 1)
    for i, c in e:
        print(i, c)
        print(next(e, None))
    return x


def map_break_inside(x):
    return [v for v in map(lambda k: (print(k), x * k)[1], [1, 2, 3])]


def size_iter(x):
    b, c = x.shape
    for s in x.shape:
        print(s)
    return [s * 2 for s in x.size()], b, c, dict(zip("bc", x.shape))


def inner_gen(x):
    def g():
        yield x
        yield x * 2

    a = [*g()]
    b = sum(g())
    c = dict(enumerate(g()))
    return a, b, c, max(v.sum().item() for v in g())


def asyncdef(x):
    async def f():
        return x

    c = f()
    c.close()
    return x


CASES = [
    (appends_while_iterating, (t(3),)), (appends_while_iterating_across_breaks, (t(3),)), (removes_while_iterating, (t(3),)),
    (argument_grows_while_iterating, ([1, 2], t(3))), (two_iterators, (t(3),)), (pairs_from_one_iterator, (t(3),)),
    (zip_stops_early, (t(3),)), (lazy_map, (t(3),)), (iterator_types, (t(3),)), (returns_iterators, (t(3),)),
    (prints_views, (t(3),)), (live_views, (t(3),)), (view_operations, (t(3),)), (changes_dict_while_iterating, (t(3),)),
    (deletes_from_dict_over_copy, (t(3),)), (range_details, (t(3),)), (for_else, (t(3), 2), (t(3), 9)),
    (nested_breaks, (t(3),)), (while_prints, (t(3),)), (loop_variable_after, (t(3),)), (enumerate_and_print, (t(3),)),
    (lists_appended_across_many_breaks, (t(2),)), (long_loop_with_break, (t(2),)), (loop_that_breaks_every_time, (t(2),)),
    (loop_in_callee_that_breaks, (t(2),)), (generator_with_break, (t(2),)), (generator_send, (t(2),)),
    (comprehension_scopes, (t(2),)), (comprehension_breaks, (t(2),)), (nested_comprehension_closure, (t(2),)),
    (tensors_iterate, (t(2, 2),)), (stars, (t(2),)), (itertools_, (t(2),)), (arg_iter_print, ([t(3)],)), (zip_break, (t(3),)),
    (two_loops_same_iter, (t(3),)), (enumerate_same, (t(3),)), (map_break_inside, (t(3),)), (size_iter, (t(2, 3),)),
    (inner_gen, (t(3),)), (asyncdef, (t(3),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    agrees_with_eager(*case)


IN_KERNELS = [appends_while_iterating, lists_appended_across_many_breaks, nested_breaks]


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in IN_KERNELS], ids=lambda c: c[0].__name__)
def test_same_as_eager_when_lowered(case, backend):
    agrees_with_eager(*case, backend=backend)
