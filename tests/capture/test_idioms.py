"""What libraries of models do around their tensors: copies, modules made on the way, generators left behind."""

import copy
import functools
import gc
import weakref
from collections import OrderedDict
from collections.abc import Sequence

import pytest
import torch
from torch import nn

import fuselens

from .harness import agrees_with_eager

X = torch.arange(4.0)


class View(Sequence):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError(i)
        return i * 2


def left_in_zip(x):
    for a, b in zip([1, 2], View(5)):
        x = x + a * b
    return x


def left_inside_except(x):
    log = []

    def values():
        try:
            yield 1
            yield 2
        except (ValueError, KeyError):
            log.append("handled")

    for v in values():
        x = x + v
        break
    return x, log


def left_inside_finally(x):
    log = []

    def values():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    for v in values():
        x = x + v
        break
    return x, log


def left_inside_broad_except(x):
    log = []

    def values():
        try:
            yield 1
        except BaseException:
            log.append("caught")
            raise

    for v in values():
        x = x + v
        break
    return x, log


def left_inside_nested_try(x):
    def values():
        try:
            try:
                yield 1
            except ValueError:
                print("inner")
        except KeyError:
            print("outer")

    return x + next(values())


@pytest.mark.parametrize(
    "fn", [left_in_zip, left_inside_except, left_inside_finally, left_inside_broad_except, left_inside_nested_try]
)
def test_generators_left_behind(fn):
    agrees_with_eager(fn, (X,))


@pytest.mark.parametrize("fn", [left_in_zip, left_inside_except, left_inside_nested_try])
def test_generators_that_close_quietly_do_not_break(fn):
    agrees_with_eager(fn, (X,), breaks=0)


class Output(OrderedDict):
    """A dictionary whose items are attributes too."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __setattr__(self, name, value):
        if name in self.keys() and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


def test_ordered_dictionary_with_attributes():
    def f(x):
        made = Output()
        made.first = None
        made.second = x
        made["second"] = x + 1
        made.first = x * 2
        return made

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    expected, actual = f(X), compiled(X)
    assert type(actual) is Output
    assert list(actual) == list(expected) and list(vars(actual)) == list(vars(expected))
    assert torch.equal(actual["second"], X + 1) and actual.second is actual["second"]


class Options:
    shared = [1, 2]

    def __init__(self):
        self.names, self.table, self.depth, self.inner = ["a", "b"], {"k": [1.5]}, 2, None


class Guarded(Options):
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value * 2 if name == "depth" else value)


class Knows(Options):
    def __deepcopy__(self, memo):
        return self

    def __copy__(self):
        return "copied"


class Slotted:
    __slots__ = ("a",)


def options(kind=Options):
    made = kind()
    made.inner = Options()
    made.again = made.inner
    made.me = made
    return made


def deep(x):
    made = copy.deepcopy(OPTIONS)
    made.names.append("c")
    made.table["k"][0] = 2.5
    made.inner.depth += 1
    same = made.me is made, made.again is made.inner, made.names is OPTIONS.names, made.shared is Options.shared
    return x * made.depth + made.inner.depth, made.names, made.table, same, OPTIONS.names, OPTIONS.inner.depth


def shallow(x):
    made = copy.copy(OPTIONS)
    made.depth = 7
    return x * made.depth + OPTIONS.depth, made.names is OPTIONS.names, copy.copy([1, x])[0], copy.copy((1, 2))


def containers(x):
    items = [1, {"a": x, "b": (1, 2)}, [x]]
    items.append(items[2])
    made = copy.deepcopy(items)
    made[1]["a"].add_(1)
    return x, made, made[2] is made[3], made[1]["b"] is items[1]["b"], made[2][0] is made[1]["a"]


def setter_does_not_run(x):
    made = copy.deepcopy(GUARDED)
    return x + made.depth


def own_ways(x):
    return x + 1, copy.deepcopy(KNOWS) is KNOWS, copy.copy(KNOWS)


OPTIONS, GUARDED, KNOWS = options(), options(Guarded), Knows()


@pytest.mark.parametrize("fn", [deep, shallow, containers, setter_does_not_run])
def test_copies(fn):
    agrees_with_eager(fn, (X,), breaks=0)


def test_copies_made_in_their_own_way():
    agrees_with_eager(own_ways, (X,))


def test_copies_leave_the_frame():
    def f(x):
        made = copy.deepcopy(OPTIONS)
        made.value = x + 1
        return made

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    made = compiled(X)
    assert type(made) is Options and made.me is made and made.inner is made.again and made.inner is not OPTIONS.inner
    assert list(vars(made)) == [*vars(OPTIONS), "value"]


def test_copies_are_guarded():
    thing = options()

    def f(x):
        return x + copy.deepcopy(thing).depth

    compiled = fuselens.compile(f, backend="eager")
    assert torch.equal(compiled(X), X + 2)
    thing.depth = 5
    assert torch.equal(compiled(X), X + 5)
    thing.extra = 1
    assert torch.equal(compiled(X), X + 5)
    Options.__getstate__ = lambda self: {"depth": 9}
    try:
        assert torch.equal(compiled(X), X + 9)
    finally:
        del Options.__getstate__


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, count):
        for layer in self.layers[:count]:
            x = layer(x)
        return x + len(self.layers[1:])


class MadeInside(nn.Module):
    def forward(self, x):
        block = nn.Sequential(nn.ReLU(), nn.Softmax(dim=0))
        act = nn.GELU()
        return act(block(x)), block[0](x), block.training


def test_modules_made_while_tracing():
    agrees_with_eager(Stack(), (X, 2), (X, 3), breaks=0)
    agrees_with_eager(MadeInside(), (X,), breaks=0)


ANNOTATION, ALIAS = int | None, list[int]


def test_annotations():
    def f(x):
        return x + len(ANNOTATION.__args__), int in ANNOTATION.__args__, ALIAS.__origin__ is list

    agrees_with_eager(f, (X,), breaks=0)


def test_copy_of_an_instance_dictionary():
    def f(x):
        made = copy.deepcopy(OPTIONS.__dict__)
        made["names"].append("c")
        return x + made["depth"], made["names"], OPTIONS.names

    agrees_with_eager(f, (X,), breaks=0)


def test_operators_whose_shape_rule_is_in_python():
    def f(bias, a, b):
        return bias.baddbmm(batch1=a, batch2=b, beta=0.5, alpha=2.0)

    calls = [(torch.ones(n, 1, 3), torch.ones(n, 2, 4), torch.ones(n, 4, 3)) for n in (2, 5, 6)]
    agrees_with_eager(f, *calls, breaks=0)


def test_map_over_nothing():
    def f(x, y):
        return torch.vmap(lambda a, b: (a * b, a.sum()))(x, y), torch.vmap(torch.sin, in_dims=1)(x)

    agrees_with_eager(f, (torch.ones(0, 3), torch.ones(0, 3)), (torch.ones(2, 3), torch.ones(2, 3)), breaks=0)


@functools.lru_cache
def available(name="torch"):
    return hasattr(torch, name) and SWITCH


@functools.cache
def counted(n):
    SEEN.append(n)
    return n * 2


@functools.cache
def noisy(n):
    print("computed", n)
    return n


SWITCH, SEEN = True, []


def test_pure_functions_with_a_cache():
    available.cache_clear()
    agrees_with_eager(lambda x: x + 1 if available("sin") and not available(name="sine") else x, (X,), breaks=0)


class Scaled:
    def __init__(self, by):
        self.by = by

    @functools.lru_cache(maxsize=None)  # noqa: B019
    def times(self, n, plus=0):
        return n * self.by + plus

    @functools.cache  # noqa: B019
    def whole(self):
        return [self.by, self.times(2)]


class ScaledLayer(torch.nn.Module):
    def __init__(self, by):
        super().__init__()
        self.scaled = Scaled(by)
        self.by = by

    @functools.lru_cache  # noqa: B019
    def factor(self, n):
        return n * self.by

    def forward(self, x):
        return x * self.factor(3) + self.scaled.times(1, plus=2)


class Counting:
    @functools.cache  # noqa: B019
    def counted(self, n):
        SEEN.append(n)
        return n * 2


class Whole:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, Whole) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    @functools.cache  # noqa: B019
    def twice(self):
        return self.n * 2


def test_methods_with_a_cache():
    scaled, counting, whole = Scaled(2), Counting(), Whole(3)
    for f in (
        lambda x: x * scaled.times(3) + scaled.times(3, plus=1),
        lambda x: x * Scaled.times(scaled, 4),
        lambda x: (x * scaled.whole()[1], scaled.whole() is scaled.whole()),
        ScaledLayer(5),
    ):
        agrees_with_eager(f, (X,), breaks=0)
    agrees_with_eager(lambda x: (x * counting.counted(3), x * whole.twice()), (X,))
    agrees_with_eager(lambda x: (x * Scaled(7).times(3), scaled.times.cache_info().maxsize), (X,))


def test_what_the_cache_of_a_method_gives_is_guarded():
    compiled = fuselens.compile(lambda s, x: x * s.times(3), backend="eager", fullgraph=True)
    first, second = Scaled(2), Scaled(4)
    for _ in range(2):
        assert torch.equal(compiled(first, X), X * 6)
        assert torch.equal(compiled(second, X), X * 12)
    first.by = 10
    assert torch.equal(compiled(first, X), X * 6), "the cache gives what it computed before"
    Scaled.times.cache_clear()
    assert torch.equal(compiled(first, X), X * 30)


class CachedLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        )
        self.second = torch.nn.Linear(3, 3)

    @functools.lru_cache  # noqa: B019
    def layers(self, module, kind=torch.nn.Linear):
        return tuple(m for m in module.modules() if isinstance(m, kind))

    def forward(self, x, module=None):
        for layer in self.layers(module or self.first):
            x = layer(x) + len(self.layers(self, torch.nn.ReLU))
        return x


def test_a_cached_method_that_is_given_an_object():
    stack = CachedLayers()
    agrees_with_eager(stack, (torch.ones(2, 3),), breaks=0)
    compiled = fuselens.compile(lambda m, x: stack(x, m), backend="eager", fullgraph=True)
    x = torch.randn(2, 3)
    for _ in range(2):
        for module in (stack.first, stack.second, stack.first[1]):
            torch.testing.assert_close(compiled(module, x), stack(x, module))
    stack.first.append(torch.nn.Linear(3, 3))
    torch.testing.assert_close(compiled(stack.first, x), stack(x, stack.first))  # as its cache says
    CachedLayers.layers.cache_clear()
    torch.testing.assert_close(compiled(stack.first, x), stack(x, stack.first))
    agrees_with_eager(lambda x: (x, len(stack.layers(torch.nn.Linear(2, 2)))), (x,))
    agrees_with_eager(lambda x: (x, len(stack.layers(module=stack.first))), (x,))


def test_a_look_up_does_not_keep_its_objects():
    class Holder:
        def __init__(self):
            self.stack, self.module = CachedLayers(), torch.nn.Linear(3, 3)

    holder = Holder()
    compiled = fuselens.compile(lambda h, x: h.stack(x, h.module), backend="eager", fullgraph=True)
    compiled(holder, torch.ones(2, 3))
    CachedLayers.layers.cache_clear()
    gone = weakref.ref(holder.module)
    holder.module = torch.nn.Linear(3, 3)
    gc.collect()
    assert gone() is None
    compiled(holder, torch.ones(2, 3))


def test_a_method_with_a_cache_after_a_change():
    def f(x):
        s = GIVEN[0]
        s.by += 1
        s.times.cache_clear()
        return x * s.times(3), s.by

    def changed(x):
        s = GIVEN[0]
        s.by += 1
        return x * s.times(n := s.by), n

    for function in (f, changed):
        results = []
        for run in (function, fuselens.compile(function, backend="eager")):
            GIVEN[0] = Scaled(1)
            results.append([run(X) for _ in range(3)])
        assert str(results[0]) == str(results[1])


GIVEN: list[Scaled] = [Scaled(1)]


def test_functions_with_a_cache_and_effects():
    def f(x):
        counted.cache_clear()
        noisy.cache_clear()
        return x * counted(3) + counted(3) + noisy(2), SEEN[-1:]

    agrees_with_eager(f, (X,))


def test_what_a_cache_gives_is_guarded(monkeypatch):
    f = lambda x: x + 1 if available("sin") else x - 1  # noqa: E731
    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    available.cache_clear()
    assert torch.equal(compiled(X), X + 1)
    monkeypatch.setitem(globals(), "SWITCH", False)
    assert torch.equal(compiled(X), X + 1), "the cache gives what it computed before"
    available.cache_clear()
    assert torch.equal(compiled(X), X - 1)


@torch.jit.script
def scripted(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n + torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float))


def test_scripted_functions_are_followed():
    agrees_with_eager(lambda x: scripted(x, 3).sin(), (torch.randn(3, 4),), (torch.randn(3, 4),), breaks=0)
