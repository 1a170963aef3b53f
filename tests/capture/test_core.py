"""Exceptions, context managers, generators, objects made while tracing, and breaks inside all of them."""
# ruff: noqa: B008, B018, PLW0603, PERF402, PT012, SIM105, TRY

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
import torch

import fuselens

from .harness import agrees_with_eager


def t(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))


class E1(Exception):
    def __init__(self, a, b=2):
        super().__init__(a)
        self.b = b


class CM:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("in")
        return 3

    def __exit__(self, k, e, tb):
        self.log.append(("out", k))
        return self.swallow


def catches(x):
    try:
        [1][5]
    except IndexError as e:
        return x * 2, str(e), type(e)


def breaks_inside_try(x):
    try:
        print("hi")
        y = x + 1
        y.sum().item()
        raise E1("a", b=7)
    except E1 as e:
        print(e.b)
        x = x + e.b
    finally:
        x = x * 2
    return x


def with_and_break(x, log):
    with CM(log) as c:
        x = x + c
        print("in with")
        x = x * 2
    return x


def with_that_suppresses(x, log):
    with CM(log, True) as c:
        x = x + c
        print("in with")
        raise ValueError("q")
    return x


def with_that_does_not(x, log):
    with CM(log) as c:
        x = x + c
        print("in with")
        raise ValueError("q")
    return x


def g(x):
    for i in range(3):
        y = yield x + i
        if y is not None:
            x = x + y
    return x


def generators(x):
    return list(g(x)), sum(a for a in g(x)), [*map(lambda a: a * 2, g(x))]


def sends(x):
    it = g(x)
    a = next(it)
    b = it.send(x)
    c = list(it)
    return a, b, c


def yields_from(x):
    def h():
        r = yield from g(x)
        yield r

    return tuple(h())


def generator_across_break(x):
    it = g(x)
    a = next(it)
    print("b")
    b = next(it)
    return a + b


@dataclasses.dataclass
class D:
    a: object
    b: int = 3
    c: list = dataclasses.field(default_factory=list)

    @property
    def s(self):
        return self.a + self.b


def dataclass_made(x):
    d = D(x)
    d.c.append(x)
    d.e = 5
    print("x")
    return d.s, d.c, d


@dataclasses.dataclass(frozen=True)
class DF:
    a: object
    b: int = 3


def frozen_dataclass(x):
    d = DF(x)
    try:
        d.a = 3
    except dataclasses.FrozenInstanceError as e:
        r = str(e)
    return d.a * 2, r, d


class Sub(dict):
    def __setitem__(self, k, v):
        super().__setitem__(k, v)
        self.last = k

    def __getattr__(self, n):
        try:
            return self[n]
        except KeyError:
            raise AttributeError(n)


def dict_subclass(x):
    s = Sub(a=1)
    s["q"] = x
    print("x")
    return s.q * 2, s.last, len(s), hasattr(s, "nope"), s, list(s)


def loop_with_break(x):
    for i in range(50):
        x = x + 1
        if i % 7 == 0:
            print(i)
    return x


def loop_try_continue_finally(x):
    for a in map(lambda q: q, iter([1, 2, 3])):
        try:
            if a == 2:
                raise KeyError(a)
            x = x + a
        except KeyError:
            print("ke")
            continue
        finally:
            x = x * 1.5
    else:
        x = x - 1
    return x


@contextlib.contextmanager
def cm(log):
    log.append(1)
    try:
        yield 4
    finally:
        log.append(2)


def contextmanager_and_break(x, log):
    with cm(log) as k:
        x = x * k
        print("x")
        y = x + 1
    return y


def contextmanager(x, log):
    with cm(log) as k:
        x = x * k
    return x


cnt = 0


def counts(x):
    global cnt
    cnt += 1
    return x * cnt


def closures_across_break(x):
    def mk(n):
        def inc():
            nonlocal n
            n = n + 1
            return n

        return inc

    h = mk(3)
    a = h()
    print("p")
    return x * a, h()


def imports(x):
    import math

    from torch.nn import functional as F

    return F.relu(x) * math.pi


def missing_attribute(x):
    try:
        return x.nope
    except AttributeError as e:
        return x, str(e)


def causes_and_contexts(x):
    try:
        raise ValueError("a") from KeyError("b")
    except ValueError as e:
        try:
            raise TypeError
        except TypeError as e2:
            return x + 1, repr(e2.__context__), repr(e.__cause__)


def fails_at_once(x):
    return len(x) + x.foo


def raises_in_handler(x):
    try:
        x = x + 1
        x.bogus()
    except AttributeError:
        raise RuntimeError("wrapped")


def fails_after_effect(x, items, i):
    items.append(1)
    return x[i] * 2


def abandoned_generator(x):
    def gg():
        try:
            yield x
        finally:
            print("closed")

    for v in gg():
        break
    return v + 1


class It:
    def __init__(s, n):
        s.n = n

    def __iter__(s):
        return s

    def __next__(s):
        if s.n == 0:
            raise StopIteration
        s.n -= 1
        return s.n


def iterator_class(x):
    for i in It(3):
        x = x + i
    it = It(5)
    print("z")
    return x, list(it), sum(It(4))


def long_loop(x, it):
    for i in it:
        x = x + i
        x = x * 2
    return x


CASES = [
    (catches, (t(3),)),
    (breaks_inside_try, (t(3),)),
    (with_and_break, (t(3), [])),
    (with_that_suppresses, (t(3), [])),
    (with_that_does_not, (t(3), [])),
    (generators, (t(3),)),
    (sends, (t(3),)),
    (yields_from, (t(3),)),
    (generator_across_break, (t(3),)),
    (dataclass_made, (t(3),)),
    (frozen_dataclass, (t(3),)),
    (dict_subclass, (t(3),)),
    (loop_with_break, (t(3),)),
    (loop_try_continue_finally, (t(3),)),
    (contextmanager_and_break, (t(3), [])),
    (contextmanager, (t(3), [])),
    (closures_across_break, (t(3),)),
    (imports, (t(3),)),
    (missing_attribute, (t(3),)),
    (causes_and_contexts, (t(3),)),
    (fails_at_once, (t(3),)),
    (raises_in_handler, (t(3),)),
    (fails_after_effect, (t(3), [], torch.tensor(7))),
    (abandoned_generator, (t(3),)),
    (iterator_class, (t(3),)),
    (long_loop, (t(3), (list(range(100))))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_same_as_eager(case: Any) -> None:
    agrees_with_eager(*case)


def effect_then_failure(items, x, i):
    items.append(1)
    y = x[i] * 2
    items.append(2)
    return y


def written_then_failure(x, i):
    x.add_(1)
    return x[i] + 1


def nested_effect_then_failure(items, x, i):
    def row():
        items.append(len(items))
        return x[i]

    return row() * 2


@pytest.mark.parametrize("fn", [effect_then_failure, nested_effect_then_failure])
def test_effects_before_a_run_time_failure(fn: Any) -> None:
    agrees_with_eager(fn, ([], t(3), torch.tensor(1)), ([], t(3), torch.tensor(7)))


def test_written_inputs_are_written_once() -> None:
    agrees_with_eager(written_then_failure, (t(4, 3), torch.tensor(1)), (t(4, 3), torch.tensor(9)))


def test_traceback_of_a_failing_graph_is_eagers() -> None:
    compiled = fuselens.compile(nested_effect_then_failure, backend="eager")
    compiled([], t(3), torch.tensor(1))
    with pytest.raises(IndexError) as caught:
        compiled([], t(3), torch.tensor(7))
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "row"


class Calls(torch.nn.Module):
    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs) + 1

    def forward(self, x, scale=2):
        return x * scale


def test_module_that_overrides_call() -> None:
    module = Calls()
    report = agrees_with_eager(lambda x: module(x, scale=3), (t(3),), fullgraph=True)
    assert len(report.graphs) == 1
