"""More of Python: whatever a compiled function does, it does as in eager, in however many graphs that takes.

PYTEST_DONT_REWRITE: asserts are among what is compiled, with their own messages.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import threading
import weakref
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuselens

from .harness import check


def t(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- iteration ------------------------------------------------------------------------------------------------------


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


def prints_and_adds(x, i):
    print("adds", i)
    return x + i


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


# --- containers -----------------------------------------------------------------------------------------------------


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


# --- numbers and strings --------------------------------------------------------------------------------------------


def number_results(x, k):
    return (
        x * k,
        k + 1,
        k * 1.0,
        k // 2,
        k % 3,
        -k,
        k == 1,
        k is True,
        type(k),
        str(k),
        repr(k),
        f"{k}",
        abs(k),
        round(k),
        int(k),
        float(k),
        bool(k),
    )


def float_details(x):
    z = -0.0
    return (
        x * z, math.copysign(1.0, z), 0.0 == z, float("nan") == float("nan"), math.nan is math.nan, 1e308 * 10, 5 // -2, -5 % 3, 5.5 % -2, 2**-1,
        2**0.5, (-8) ** (1 / 3), 10**20, 7 / 7, 1 < 2 < 3, 3 > 2 > 2, 0.1 + 0.2, 1 == 1.0 == True, hash(1) == hash(1.0), 1e-320, divmod(-7, 2),
        math.inf, -math.inf, int("12"), int("ff", 16), float("1e3"), complex(1, 2) * 2, (3).bit_length(), (0.5).is_integer(), round(2.5), round(-1.5),
    )  # fmt: skip


def zero_division(x, k):
    y = x + 1
    return y * (1 / k)


def tensor_scalars(x):
    return x * 2 + 1.5, 2 - x, 1 / (x + 10), 2**x, x**2, -x, +x, x // 1, x % 2, 1.0 * x.int(), x.int() / 2, 3 // (x.int() + 5), abs(x), x @ x, round(x), ~(x > 0), (x > 0) & (x < 1), (x > 0) ^ True, True + x, x == 1, x != x, 1 < x, divmod(x, 2)  # fmt: skip


def size_arithmetic(x):
    s = x.shape
    n = s[0] * s[1]
    return s + (1,), s[1:], s[-1], n, s == (2, 3), s.numel(), tuple(s), list(s), isinstance(s, tuple), type(s).__name__, type(s[1:]).__name__, len(s), torch.Size([1, 2]), x.view(*s[::-1]), x.new_zeros(s), (*s, 4), math.prod(s), s.index(3), 3 in s, max(s), sum(s), f"{s}", s[0] / 2, s[0] // 2, -s[0], s * 2  # fmt: skip


def string_work(x, s="Ab c"):
    return x, s.lower(), s.split(), s.replace("A", "z"), s[::-1], s.find("c"), "-".join(s.split()), s.startswith(("A", "b")), s.encode(), "%d|%s" % (3, s), "{:>5}|{x}".format(1, x=2), f"{s!r:>8}|{1.5:.2f}|{7:03d}", s.isalpha(), s * 2, "b" in s, s < "B", ord("a"), chr(98), s.partition(" "), s.title(), s.count("b"), s.zfill(6), len(s)  # fmt: skip


def formats_tensors(x):
    y = x + 1
    return (
        f"{y.shape} {y.dtype} {y.ndim} {tuple(y.shape)} {y.device}",
        str(y.dtype),
        repr(y.shape),
        f"{y.sum().item():.3f}",
        str(y),
    )


# --- functions ------------------------------------------------------------------------------------------------------


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


def kwargs_are_mutated(x, **options):
    options["scale"] = options.get("scale", 1) + 1
    options.pop("drop", None)
    return x * options["scale"], options


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


# --- exceptions -----------------------------------------------------------------------------------------------------


def catches(x, k):
    try:
        if k == 0:
            raise ValueError("zero")
        y = x / k
    except (ValueError, TypeError) as e:
        return x, type(e).__name__, str(e)
    else:
        y = y + 1
    finally:
        print("finally", k)
    return y


def finally_returns(x):
    try:
        return x + 1
    finally:
        print("leaving")


def finally_overrides(x):
    for i in range(3):
        try:
            if i == 1:
                continue
            x = x + i
            print("try", i)
        finally:
            print("finally", i)
            x = x * 2
    return x


def nested_try(x):
    try:
        try:
            x = x + 1
            raise KeyError("inner")
        except ValueError:
            return "wrong"
        finally:
            x = x * 2
            print("inner finally")
    except KeyError as e:
        return x, repr(e), e.__context__ is None


def callee_raises(x, k):
    y = x + 1
    return raises(y, k) * 2


def raises(y, k):
    z = y * 2
    if k > 2:
        raise IndexError(f"k is {k}, {tuple(z.shape)}")
    return z


def catches_from_callee(x, k):
    out = [x]
    try:
        out.append(callee_raises(x, k))
    except IndexError as e:
        out.append(str(e))
    return out


def raise_from(x):
    try:
        int("x")
    except ValueError as e:
        raise RuntimeError("outer") from e


def asserts(x, k):
    assert x.ndim == 1
    assert k < 3, ("too big", k)
    return x * k


def asserts_on_data(x):
    y = x + 1
    assert (y > -100).all(), "small"
    assert y.sum() != 12345
    return y * 2


def mutates_before_raising(items, x):
    items.append(x + 1)
    x.add_(1)
    if len(items) > 1:
        raise ValueError(len(items))
    return x


def missing_key(x):
    return x, {"a": 1}["b"]


def missing_index(x):
    return x, [1, 2][5]


def missing_attribute(x):
    return x.no_such_thing


def missing_global(x):
    return x + no_such_global  # noqa: F821


def unbound_local(x):
    if x.ndim == 5:
        y = 1
    return x + y


def deleted_local(x):
    y = x + 1
    z = y * 2
    del y
    try:
        return z + y  # noqa: F821
    except UnboundLocalError as e:
        return z, str(e)


def bad_unpack(x):
    a, b = [1, 2, 3]
    return x, a, b


def type_errors(x):
    try:
        return "a" + 1
    except TypeError as e:
        return x, str(e)


def stop_iteration(x):
    it = iter([x])
    next(it)
    try:
        next(it)
    except StopIteration:
        return x * 2


# --- with -----------------------------------------------------------------------------------------------------------


class Ctx:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(f"exit {kind and kind.__name__}")
        return self.swallow


def user_context(x):
    log: list[Any] = []
    with Ctx(log) as c:
        y = x * 2
        c.log.append("in")
        print("inside", log)
        y = y + 1
    return y, log


def user_context_swallows(x):
    log: list[Any] = []
    with Ctx(log, True):
        x = x + 1
        raise ValueError("x")
    return x, log


@contextlib.contextmanager
def managed(log):
    log.append("in")
    try:
        yield 5
    finally:
        log.append("out")


def generator_context(x):
    log: list[Any] = []
    with managed(log) as k, torch.no_grad():
        y = x * k
        flag = torch.is_grad_enabled()
    return y, log, flag, torch.is_grad_enabled()


def returns_inside_with(x):
    with torch.no_grad():
        return x * 2, torch.is_grad_enabled()


def loops_with_with(x):
    out = []
    for i in range(3):
        with torch.no_grad():
            if i == 1:
                continue
            out.append((x * i, torch.is_grad_enabled()))
        out.append(torch.is_grad_enabled())
    return out, x + 1


def grad_contexts(x):
    out = []
    with torch.no_grad():
        out.append(x * 1)
        with torch.enable_grad():
            out.append(x * 2)
        out.append(x * 3)
    with torch.set_grad_enabled(False):
        out.append(x * 4)
    with torch.inference_mode():
        out.append((x * 5).is_inference())
    torch.set_grad_enabled(False)
    out.append(x * 6)
    torch.set_grad_enabled(True)
    return out, x * 7


def raises_in_no_grad(x):
    try:
        with torch.no_grad():
            y = x + 1
            raise ValueError("x")
    except ValueError:
        return y, torch.is_grad_enabled(), x * 2


def breaks_in_no_grad_callee(x):
    with torch.no_grad():
        y = prints_and_adds(x, 1)
        z = prints_and_adds(y, 2) * 2
    return y, z, x * 2


def suppresses(x):
    with contextlib.suppress(KeyError):
        x = x + 1
        {}["k"]  # noqa: B018
    return x * 2


# --- tensors --------------------------------------------------------------------------------------------------------


def inplace_views(x):
    a = x[0]
    a += 1
    x[1:].mul_(2)
    b = x.view(-1)
    b[0] = 9
    x.T[0, 1] = 5
    a.zero_()
    return x, a, b


def inplace_then_returns(x):
    y = x.add_(1)
    z = x
    z *= 2
    return y is x, z is x, y


def augmented_on_argument(x, y):
    x += y
    y -= x
    return x * y


def augmented_new(x):
    y = x + 0
    z = y
    y += 1
    return z, y is z


def writes_through_list(items):
    for v in items:
        v.mul_(2)
    return items[0] + items[-1]


def out_arguments(x):
    y = torch.empty_like(x)
    torch.add(x, 1, out=y)
    z = torch.mul(x, 2, out=x)
    return y, z is x, x


def detaches(x):
    y = x.detach()
    y.add_(1)
    z = x.clone()
    z.data.mul_(2)
    return x, y, z, y.requires_grad


def index_assignments(x):
    x = x.clone()
    x[0, 1] = 1
    x[:, 0] = x[:, 1]
    x[x > 1] = 0
    x[[0, 1], [1, 0]] = torch.tensor([5.0, 6.0])
    x[..., -1] += 3
    x[torch.tensor([0])] = 7
    x[0] = torch.arange(3)
    return x


def identities(x):
    y = x.contiguous()
    z = x.to(x.dtype)
    w = F.dropout(x, 0.5, training=False)
    v = x.view(x.shape)
    u = x.float()
    return y is x, z is x, w is x, v is x, u is x, x.expand_as(x) is x, x.detach() is x, x[...] is x, x.cpu() is x, x.T is x, x.requires_grad_() is x, nn.Identity()(x) is x, x.reshape(-1) is x, x.squeeze() is x  # fmt: skip


def returns_inputs(x, y):
    return x, y, x, [y, {"k": x}], (x if x.ndim else y), x.view(-1)


def creation(x):
    return torch.tensor([1, 2]), torch.tensor(1.5), torch.tensor([[x.shape[0], 2]]), torch.full((2,), 3), torch.arange(0, 1, 0.25), torch.eye(2), torch.zeros_like(x, dtype=torch.int), torch.ones(x.shape), torch.linspace(0, 1, 3), x.new_tensor([1.0]), torch.as_tensor([1]), torch.empty(0), torch.scalar_tensor(2), torch.tensor(True), torch.tensor([])  # fmt: skip


def scalar_results(x):
    return x.sum().item(), int(x.numel()), float(x.max()), bool((x == x).all()), x.argmax().item(), x.tolist(), len(x), x.dim(), x.size(), x.shape[0], x.is_floating_point(), x.element_size()  # fmt: skip


def data_dependent(x):
    y = x[x > 0]
    n = y.shape[0]
    z = torch.nonzero(x).shape
    u = torch.unique((x > 0).int())
    return y * 2, n, z, u, x.repeat_interleave(2)[: n + 1], torch.where(x > 0)


def grads(x):
    w = torch.ones(3, requires_grad=True)
    loss = (w * x).sum()
    loss.backward()
    (g,) = torch.autograd.grad((w * w).sum(), w)
    return w.grad, g, w.requires_grad, loss.grad_fn is not None, w.is_leaf


def hooks(x):
    seen = []
    w = torch.ones(3, requires_grad=True)
    y = w * x
    y.register_hook(lambda g: seen.append(g.sum()))
    y.sum().backward()
    return seen, w.grad


def custom_function(x):
    return Twice.apply(x) + 1


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return v * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


def tensor_attributes(x):
    y = x + 1
    y.tag = "hello"
    z = y * 2
    return z, y.tag, hasattr(y, "tag"), hasattr(z, "tag"), getattr(z, "tag", "none")


def tensor_membership(x):
    y = x[0]
    return (
        y in x,
        [x][0] is x,
        any(v is y for v in (x, y)),
        x.equal(x),
        torch.equal(x, y),
        torch.allclose(x, x),
        id(x) == id(x),
    )


def multiple_outputs(x):
    v, i = x.max(0)
    m = torch.max(x, 0)
    u, s, w = torch.linalg.svd(x)
    return v, i, m.values, m.indices, type(m).__name__, m, s, torch.sort(x), [c.shape for c in x.chunk(2)], x.split(1), torch.meshgrid(v, v, indexing="ij"), x.aminmax()  # fmt: skip


def random_ops(x):
    a = torch.rand_like(x)
    torch.manual_seed(5)
    b = torch.randn(3)
    g = torch.Generator().manual_seed(3)
    c = torch.rand(2, generator=g)
    return (
        a,
        b,
        c,
        torch.rand(2, generator=g),
        torch.randperm(4),
        torch.bernoulli(torch.full((3,), 0.5)),
        F.dropout(x, 0.3),
    )


def numpy_work(x):
    import numpy as np

    a = x.numpy()
    return (
        torch.from_numpy(np.sin(a) + 1) * 2,
        float(a.sum()),
        torch.tensor(np.float64(2.0)),
        x * np.float32(2),
        np.int64(3) * x,
    )


# --- objects --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Box:
    value: Any
    items: list[Any] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.n = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 2.0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


def makes_objects(x):
    b = Box(x)
    b.items.append(x * 2)
    b.n += 1
    f = Frozen(1)
    return (
        b.value + b.items[0] * b.n * f.b,
        dataclasses.replace(f, a=5).a,
        f == Frozen(1),
        str(f),
        dataclasses.asdict(f),
    )


def writes_object(b, x):
    b.value = x
    b.items.append(b.value + 1)
    b.n += 1
    b.extra = [b.n]
    return b.value * b.n


def deletes_attribute(b, x):
    del b.value
    return x, hasattr(b, "value")


def writes_then_breaks(b, x):
    b.value = x + 1
    print("value", b.value.shape, b.n)
    b.value = b.value * 2
    b.n = 5
    return b.value, b.n


def setattr_getattr(b, x):
    setattr(b, "value", x)
    return getattr(b, "value") + getattr(b, "zz", 1), vars(b)["n"], b.__dict__["n"]


def enum_work(x, c=Color.RED):
    return (
        x * c.value,
        c.name,
        c is Color.RED,
        Color(2),
        Color["BLUE"],
        list(Color),
        {Color.RED: 1}[c],
        isinstance(c, Color),
        Flags.A | Flags.B,
        str(c),
    )


class Ops:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        return Ops(self.v + (o.v if isinstance(o, Ops) else o))

    __radd__ = __add__

    def __iadd__(self, o):
        self.v = self.v + o
        return self

    def __eq__(self, o):
        return isinstance(o, Ops) and bool((self.v == o.v).all())

    def __hash__(self):
        return 5

    def __neg__(self):
        return Ops(-self.v)

    def __lt__(self, o):
        return True

    def __matmul__(self, o):
        return self.v @ o

    def __setitem__(self, k, v):
        self.v[k] = v

    def __delitem__(self, k):
        print("del", k)

    def __enter__(self):
        return self.v

    def __exit__(self, *a):
        return None


def operators_(x):
    a = Ops(x.clone())
    b = a
    a += 1
    a[0] = 5
    del a[1]
    with a as v:
        w = v * 2
    return (
        (a + 1).v,
        (1 + a).v,
        a == b,
        a is b,
        (-a).v,
        a < b,
        a @ x,
        w,
        hash(a),
        {a: 1}[b],
        a != 3,
        sorted([a, b]) == [a, b],
    )


def operators_on_argument(a, x):
    b = a
    a += x
    a[0] = 5.0
    return (a + 1).v, b is a, (-a).v, a == b


class Descriptor:
    def __get__(self, obj, owner):
        return 5 if obj is None else obj.k * 2

    def __set__(self, obj, value):
        print("set", value)
        obj.k = value


class Dynamic:
    d = Descriptor()
    k = 1

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __getattr__(self, name):
        if name.startswith("dyn_"):
            return len(name)
        raise AttributeError(name)

    @functools.cached_property
    def once(self):
        print("once")
        return self.k + 1

    @property
    def prop(self):
        return self.k

    @prop.setter
    def prop(self, v):
        self.k = v


def dynamic_attributes(x):
    o = Dynamic()
    a = o.d, Dynamic.d, o.dyn_abc, o.once, o.once
    o.d = 4
    o.prop = o.prop + 1
    return x * o.k, a, o.d, getattr(o, "nope", None), hasattr(o, "dyn_x"), hasattr(o, "other")


def dynamic_argument(o, x):
    a = o.d, o.dyn_abc, o.once, o.prop
    o.prop = 7
    o.d = 4
    return x * o.k, a, o.once, hasattr(o, "dyn_x"), hasattr(o, "other")


class Parent:
    registry: list[str] = []

    def __init_subclass__(cls):
        Parent.registry.append(cls.__name__)

    def name(self):
        return "parent"

    @classmethod
    def make(cls, x):
        return cls().go(x)

    def go(self, x):
        return x + 1


class Middle(Parent):
    def go(self, x):
        return super().go(x) * 2

    @classmethod
    def make(cls, x):
        return super().make(x) + 1

    @property
    def label(self):
        return super().name() + "!"


class Leaf(Middle):
    def go(self, x):
        return super(Leaf, self).go(x) - 1


def inheritance(x):
    o = Leaf()
    return (
        o.go(x),
        Leaf.make(x),
        o.label,
        Parent.go(o, x),
        isinstance(o, Parent),
        issubclass(Leaf, Middle),
        type(o).__mro__[1].__name__,
        Leaf.make.__name__,
    )


def class_in_function(x):
    class Local:
        k = 3

        def go(self, v):
            return v * self.k

    return Local().go(x), Local.__name__


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


def matches(x, v):
    match v:
        case 0 | 1:
            return x
        case [a, b]:
            return x + a + b
        case {"k": k}:
            return x * k
        case str() as s:
            return x, s
        case Frozen(a=a):
            return x - a
        case _:
            return x * 100


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


def f_string_debug(x):
    n = 3
    return f"{n=} {x.shape=} {n:>{n}} {'ab'!r}", x


CASES = [
    (appends_while_iterating, (t(3),)), (appends_while_iterating_across_breaks, (t(3),)), (removes_while_iterating, (t(3),)),
    (argument_grows_while_iterating, ([1, 2], t(3))), (two_iterators, (t(3),)), (pairs_from_one_iterator, (t(3),)),
    (zip_stops_early, (t(3),)), (lazy_map, (t(3),)), (iterator_types, (t(3),)), (returns_iterators, (t(3),)), (prints_views, (t(3),)),
    (live_views, (t(3),)), (view_operations, (t(3),)), (changes_dict_while_iterating, (t(3),)), (deletes_from_dict_over_copy, (t(3),)),
    (range_details, (t(3),)), (for_else, (t(3), 2), (t(3), 9)), (nested_breaks, (t(3),)), (while_prints, (t(3),)),
    (loop_variable_after, (t(3),)), (enumerate_and_print, (t(3),)), (lists_appended_across_many_breaks, (t(2),)),
    (long_loop_with_break, (t(2),)), (loop_that_breaks_every_time, (t(2),)), (loop_in_callee_that_breaks, (t(2),)),
    (generator_with_break, (t(2),)), (generator_send, (t(2),)), (comprehension_scopes, (t(2),)), (comprehension_breaks, (t(2),)),
    (nested_comprehension_closure, (t(2),)), (tensors_iterate, (t(2, 2),)), (stars, (t(2),)), (itertools_, (t(2),)),
    (dict_methods, (t(2),)), (dict_alias, (t(2),)), (inplace_or_on_argument, ({"a": 1}, t(2))), (clears, ({"a": 1}, t(2))),
    (list_methods, (t(2),)), (sort_with_key, (t(2),)), (repeated_alias, (t(2),)), (inplace_on_argument_list, ([1], t(2))),
    (inplace_on_tuple, (t(2),)), (nested_mutation, ([{"k": [], "n": 1}, 2], t(2))), (swaps, ([t(2), t(2, seed=1)],)),
    (same_list_twice, (t(2),)), (sets_, (t(3),)), (tuples_, (t(2),)), (counters, (t(2),)), (dict_keys_of_many_types, (t(2),)),
    (named, (t(2),)), (slices_of_containers, (t(3),)),
    (number_results, (t(2), 1), (t(2), 1.0), (t(2), True), (t(2), -2.5), (t(2), 0), (t(2), -0.0)), (float_details, (t(2),)),
    (zero_division, (t(2), 2), (t(2), 0), (t(2), 0.0)), (tensor_scalars, (t(3),)), (size_arithmetic, (t(2, 3),)), (string_work, (t(2),)),
    (formats_tensors, (t(2),)),
    (returns_lambda, (t(2),)), (function_with_defaults_leaves, (t(2),)), (calls_what_it_makes, (t(2),)), (nonlocal_across_break, (t(2),)),
    (nonlocal_inlined, (t(2),)), (args_pass_through, (t(2), 2), (t(2), 2, 3)), (wrong_call, (t(2),)), (wrong_keyword, (t(2),)),
    (uses_decorated, (t(2),)), (calls_without_grad, (t(2).requires_grad_(),)), (uses_cache, (t(2),)), (partials, (t(2),)),
    (sorted_tensors, (t(3),)), (recursion, (t(2), 5)), (mutual, (t(2), 7)), (operator_functions, (t(2),)),
    (catches, (t(2), 1), (t(2), 0), (t(2), "a")), (finally_returns, (t(2),)), (finally_overrides, (t(2),)), (nested_try, (t(2),)),
    (callee_raises, (t(2), 1), (t(2), 5)), (catches_from_callee, (t(2), 1), (t(2), 5)), (raise_from, (t(2),)),
    (asserts, (t(2), 1), (t(2), 5), (t(2, 2), 1)), (asserts_on_data, (t(2),), (t(2) - 200,)), (mutates_before_raising, ([], t(2)), ([1], t(2))),
    (missing_key, (t(2),)), (missing_index, (t(2),)), (missing_attribute, (t(2),)), (missing_global, (t(2),)), (unbound_local, (t(2),)),
    (deleted_local, (t(2),)), (bad_unpack, (t(2),)), (type_errors, (t(2),)), (stop_iteration, (t(2),)),
    (user_context, (t(2),)), (user_context_swallows, (t(2),)), (generator_context, (t(2).requires_grad_(),)),
    (returns_inside_with, (t(2).requires_grad_(),)), (loops_with_with, (t(2).requires_grad_(),)), (grad_contexts, (t(2).requires_grad_(),)),
    (raises_in_no_grad, (t(2).requires_grad_(),)), (breaks_in_no_grad_callee, (t(2).requires_grad_(),)), (suppresses, (t(2),)),
    (inplace_views, (t(3, 3),)), (inplace_then_returns, (t(2),)), (augmented_on_argument, (t(2), t(2, seed=1))), (augmented_new, (t(2),)),
    (writes_through_list, ([t(2), t(2, seed=1)],)), (out_arguments, (t(2),)), (detaches, (t(2),)), (index_assignments, (t(2, 3),)),
    (identities, (t(3),)), (returns_inputs, (t(2), t(3))), (creation, (t(2),)), (scalar_results, (t(3),)), (data_dependent, (t(5),)),
    (grads, (t(3),)), (hooks, (t(3),)), (custom_function, (t(3).requires_grad_(),)), (tensor_attributes, (t(3),)),
    (tensor_membership, (t(3),)), (multiple_outputs, (t(3, 3),)), (random_ops, (t(3),)), (numpy_work, (t(3),)),
    (makes_objects, (t(2),)), (writes_object, (Box(1), t(2))), (deletes_attribute, (Box(1), t(2))), (writes_then_breaks, (Box(1), t(2))),
    (setattr_getattr, (Box(1), t(2))), (enum_work, (t(2),), (t(2), Color.BLUE)), (operators_, (t(3),)), (operators_on_argument, (Ops(t(3)), t(3))),
    (dynamic_attributes, (t(2),)), (dynamic_argument, (Dynamic(), t(2))), (inheritance, (t(2),)), (class_in_function, (t(2),)), (truthiness, (t(2),)),
    (type_tests, (t(2), 1), (t(2), "a"), (t(2), None), (t(2), [1]), (t(2), True), (t(2), torch.relu)),
    (matches, (t(2), 1), (t(2), [1, 2]), (t(2), {"k": 3}), (t(2), "s"), (t(2), Frozen(4)), (t(2), None), (t(2), 1.0)),
    (walrus_and_ternary, (t(2),), (t(0),)), (globals_and_locals, (t(2),)), (imports_inside, (t(2),)), (prints_order, (t(2),)), (chained_calls, (t(3),)),
    (many_live_values, (t(2),)), (short_circuit_values, (t(2),), (t(2), 5)), (conditional_expressions, (t(3),), (-t(3).abs(),)),
    (compares_tensors_in_containers, (t(2),)), (f_string_debug, (t(2),)),
]  # fmt: skip


# --- breaks of all kinds inside loops, calls and attribute reads ------------------------------------------------------


def case(*args):
    """Adds the function, with one tuple of arguments, to :data:`CASES`."""

    def add(fn):
        CASES.append((fn, args))
        return fn

    return add


@case(t(3))
def undefined_called(x):
    return no_such(x + 1)


@case(t(3))
def attr_called_via_dict(x):
    class Plain:
        pass

    o = Plain()
    o.f = lambda v: v * 2
    return o.f(x)


class H:
    def __getattribute__(self, n):
        return object.__getattribute__(self, n)

    def m(self, x):
        return x + 1

    def __eq__(self, other):
        return type(other) is H


@case(H(), t(3))
def getattribute_method(h, x):
    return h.m(x) * 2


class SlotCall:
    __slots__ = ("f", "g")

    def __init__(self):
        self.f = torch.relu
        self.g = 3

    def __eq__(self, other):
        return self.g == other.g


@case(SlotCall(), t(3))
def slot_called(s, x):
    return s.f(x) * s.g


@case(t(3))
def mod_attr_called(x):
    import torch.nn.functional as FF

    return FF.relu(x)


@case(t(3))
def long_method_chain(x):
    d = {"a": [x]}
    d["a"].append(x * 2)
    d.get("a").extend([1])
    print("k")
    d["a"].pop()
    return d, d["a"][0]


@case([t(3)])
def arg_iter_print(items):
    for i, v in enumerate(items):
        print(i)
        items[i] = v * 2
        if len(items) < 4:
            items.append(v + 1)
    return items


@case({"a": t(2), "b": t(2)})
def dict_items_break(d):
    for k, v in d.items():
        print(k)
        d[k] = v * 2
    return [k for k in d], {k: v for k, v in zip(d.keys(), d.values())}


@case(t(3))
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


@case(t(3))
def two_loops_same_iter(x):
    it = iter(range(6))
    for a in it:
        for b in it:
            print(a, b)
            x = x + b
            if b % 2:
                break
    return x


@case(t(3))
def enumerate_same(x):
    e = enumerate("abcd", 1)
    for i, c in e:
        print(i, c)
        print(next(e, None))
    return x


@case(t(3))
def map_break_inside(x):
    return [v for v in map(lambda k: (print(k), x * k)[1], [1, 2, 3])]


@case(t(3))
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


@case(t(3))
def view_unpack(x):
    a, b = {"p": x, "q": 2}.values()
    ((k, v),) = ({"z": 1}).items()
    return a, b, k, v, torch.stack(list({"a": x, "b": x}.values())), torch.cat(tuple({"a": x}.values()))


@case(t(3))
def cat_values(x):
    return (
        torch.stack([*{"a": x, "b": x}.values()]),
        max({"a": 1}.values()),
        isinstance({}.keys(), (list, tuple)),
        type({}.items()).__name__,
    )


@case(t(3))
def torch_with_view(x):
    return torch.stack(tuple(v for v in {"a": x}.values())), nn_stack({"a": x})


def nn_stack(d):
    try:
        return torch.stack(d.values())
    except TypeError as e:
        return "TypeError"


@case(t(2, 3))
def size_iter(x):
    b, c = x.shape
    for s in x.shape:
        print(s)
    return [s * 2 for s in x.size()], b, c, dict(zip("bc", x.shape))


@case(t(3), 5)
def nested_fn_defaults_break(x, n):
    def g(v, n=n, *a, k=x, **kw):
        return v * n + k

    fs = [lambda v, i=i: v * i for i in range(3)]
    print("b", len(fs))
    return g(x), [f(x) for f in fs]


@case(t(3))
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


@case(t(3))
def class_closure_across(x):
    total = 0

    def step(v):
        nonlocal total
        total = total + v
        if total > 2:
            print("big", total)
        return total

    for i in range(4):
        x = x + step(i)
    return x, total


@case(t(3))
def del_in_loop(x):
    y = x
    for i in range(3):
        z = y + i
        print(i)
        y = z * 2
        del z
    return y


@case(t(3))
def try_in_loop(x):
    for i in range(4):
        try:
            if i == 2:
                raise ValueError(i)
            x = x + i
            print("ok", i)
        except ValueError as e:
            print("err", e)
            continue
        finally:
            print("fin")
    return x


@case(t(3))
def return_in_loop_try(x):
    for i in range(4):
        try:
            print(i)
            if i == 2:
                return x * i
        finally:
            x = x + 1


@case(t(3))
def with_in_loop_print(x):
    for i in range(3):
        with torch.no_grad():
            print(i)
            x = x * 2
    return x, torch.is_grad_enabled()


@case(t(3))
def kwargs_call_break(x):
    f = dict(a=1, b=x)
    return prt(**f), prt(*[1], **{"b": x})


def prt(a, b):
    print("a", a)
    return b * a


@case(t(3))
def star_break(x):
    return prt(*(print("1") or (2, x)))


@case(t(3))
def lambda_default_tensor(x):
    return (lambda v=x * 2: v + 1)()


@case(t(3))
def set_items(x):
    s = {1, 2, 3}
    s.discard(2)
    for v in sorted(s):
        x = x + v
    return x, s


@case(t(3))
def byte_str(x):
    return x, b"ab"[0], bytearray(b"a"), memoryview(b"ab")[1], b"a" + b"b"


@case(t(3))
def multi_assign(x):
    a = b = [x]
    a += [1]
    c = d = {}
    c["k"] = b
    return a, b, d, a is b, c is d


@case(t(3))
def unpack_swap(x):
    a, b, c = x
    a, b = b, a
    [p, q], *r = [[a, b], c]
    return p, q, r


@case(t(3))
def global_in_comp(x):
    return [g_scale * v for v in (x,)], {g_scale}


g_scale = 3


@case(t(3))
def recursion_closure(x):
    def f(v, n):
        return v if n == 0 else f(v + 1, n - 1)

    return f(x, 3)


@case(t(3))
def inner_gen(x):
    def g():
        yield x
        yield x * 2

    a = [*g()]
    b = sum(g())
    c = dict(enumerate(g()))
    return a, b, c, max(v.sum().item() for v in g())


@case(t(3))
def asyncdef(x):
    async def f():
        return x

    c = f()
    c.close()
    return x


@case(t(3))
def star_lambda(x):
    return (lambda *a, **k: (a, k))(x, *[1], z=2, **{"y": 3})


@case(t(3))
def chained_compare_tensor(x):
    return bool((x > -100).all()) and 0 < x.numel() < 10


@case(t(3))
def string_fmt(x):
    return "{0}{a}{b[k]}".format(1, a=2, b={"k": 3}), f"{x.shape[0]:>5}", "%(a)s" % {"a": 1}, x


@case(t(3))
def ternary_nested(x):
    return (x if x.shape[0] > 5 else x * 2 if x.ndim == 1 else x * 3), (1 if x.sum() > 100 else 2)


@case(t(3))
def slice_assign_list(x):
    a = [1, 2, 3]
    b = a
    a[:] = [x]
    a[len(a) :] = [4, 5]
    del a[1:]
    a.insert(0, 9)
    return a, b is a


@case(t(3))
def mutate_default_arg_list(x, acc=None):
    acc = acc or []
    acc.append(x)
    return acc


@case(t(3))
def inplace_param_dict(x):
    p = {"w": x.clone()}
    p["w"] += 1
    p["w"][0] = 3
    p["n"] = 0
    p["n"] += 2
    return p


@case(t(3))
def nan_keys(x):
    n = float("nan")
    return x, n in [n], [n] == [n], {n: 1}.get(n), n == n


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case):
    check(*case)


IN_KERNELS = [
    appends_while_iterating, lists_appended_across_many_breaks, inplace_views, augmented_on_argument, writes_object, grads,
    nested_breaks, grad_contexts, size_arithmetic, catches_from_callee, operators_on_argument, writes_then_breaks,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("case", [c for c in CASES if c[0] in IN_KERNELS], ids=lambda c: c[0].__name__)
def test_same_as_eager_when_lowered(case, backend):
    check(*case, backend=backend)
