"""What guards rest on is changed after it was compiled, in every way that Python has; and what a failed guard says."""

from __future__ import annotations

import gc
import linecache
import sys
import tracemalloc
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fuselens
from fuselens.capture.hook import _hook
from fuselens.inputs import comparison
from fuselens.record import views

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Scenario = Callable[[Wrap], Iterator[Any]]
SCENARIOS: list[Scenario] = []


def scenario(fn: Scenario) -> Scenario:
    """A generator that changes something before each call that it yields: ``yield thunk``."""
    SCENARIOS.append(fn)
    return fn


def t(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape)


def outcome(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except Exception as e:  # noqa: BLE001 - exceptions are compared
        return None, f"{type(e).__name__}: {e}"


class Act:
    """A plain object with everything that a trace may rely on."""

    scale = 2.0

    def __init__(self, k: float = 3.0) -> None:
        self.k, self.names, self.steps = k, {"a": 1.0, "b": 2.0}, [1.0, 2.0]
        for i in range(8):
            setattr(self, f"extra{i}", float(i))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for i in range(8):
            x = x + getattr(self, f"extra{i}")
        return (x * self.k + self.names["a"]) * self.scale + self.steps[0] + self.tail(x)

    def tail(self, x: torch.Tensor) -> torch.Tensor:
        return x - 1


def fresh(**namespace: Any) -> Any:
    """An object of a class of its own, so that the class may be changed."""
    members = {k: v for k, v in vars(Act).items() if k not in ("__dict__", "__weakref__")}
    return type("Act", (), {**members, **namespace})()


@scenario
def class_attribute_is_patched(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    type(o).scale = 5.0
    yield lambda: f(o, t(2))
    del type(o).scale
    yield lambda: f(o, t(2))


@scenario
def methods_are_patched(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    type(o).tail = lambda self, x: x + 100
    yield lambda: f(o, t(2))
    type(o).__call__ = lambda self, x: x * 0
    yield lambda: f(o, t(2))
    o.tail = lambda x: x + 7
    type(o).__call__ = Act.__call__
    yield lambda: f(o, t(2))


@scenario
def class_is_assigned(wrap):
    o = fresh()
    other = type(fresh(scale=7.0))
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    o.__class__ = other
    yield lambda: f(o, t(2))


@scenario
def dict_is_assigned(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    o.__dict__ = {**vars(o), "k": 11.0}
    yield lambda: f(o, t(2))
    vars(o)["k"] = 12.0
    yield lambda: f(o, t(2))


@scenario
def attributes_are_deleted(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    del o.k
    yield lambda: f(o, t(2))
    o.k = 3.0
    yield lambda: f(o, t(2))
    del o.extra5
    yield lambda: f(o, t(2))


@scenario
def entries_are_deleted_and_added_again(wrap):
    o = fresh()
    f = wrap(lambda o, x: (o(x), [n for n in o.names]))
    yield lambda: f(o, t(2))
    value = o.names.pop("a")
    yield lambda: f(o, t(2))
    o.names["a"] = value
    yield lambda: f(o, t(2))
    o.names["a"] = 9.0
    yield lambda: f(o, t(2))


@scenario
def getattribute_is_added(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    plain = object.__getattribute__
    type(o).__getattribute__ = lambda self, name: 10.0 if name == "k" else plain(self, name)
    yield lambda: f(o, t(2))
    del type(o).__getattribute__
    yield lambda: f(o, t(2))


@scenario
def getattr_is_added(wrap):
    o = fresh()
    f = wrap(lambda o, x: x * getattr(o, "late", 2.0) + o.k)
    yield lambda: f(o, t(2))
    type(o).__getattr__ = lambda self, name: 4.0
    yield lambda: f(o, t(2))
    o.late = 5.0
    yield lambda: f(o, t(2))


@scenario
def setattr_is_added(wrap):
    o = fresh()

    def fn(o, x):
        o.k = o.k + 1.0
        return x * o.k

    f = wrap(fn)
    yield lambda: f(o, t(2))
    type(o).__setattr__ = lambda self, name, value: object.__setattr__(self, name, value * 2)
    yield lambda: f(o, t(2))
    yield lambda: vars(o)["k"]


@scenario
def data_descriptor_is_added(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    type(o).k = property(lambda self: 20.0)
    yield lambda: f(o, t(2))


@scenario
def instance_call_is_not_asked(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    o.__call__ = lambda x: x * 0
    yield lambda: f(o, t(2))


def callee(x, a=1.0, *rest, k=2.0, **more):
    return x * a + k + len(rest) + len(more)


@scenario
def defaults_of_a_callee_change_in_every_way(wrap):
    g = types.FunctionType(callee.__code__, globals(), "g", (1.0,))
    g.__kwdefaults__ = {"k": 2.0}
    f = wrap(lambda x: g(x))
    yield lambda: f(t(2))
    g.__defaults__ = (1.0, 9.0)
    yield lambda: f(t(2))
    g.__defaults__ = (5.0,)
    yield lambda: f(t(2))
    g.__kwdefaults__["k"] = 6.0
    yield lambda: f(t(2))
    g.__kwdefaults__["extra"] = 6.0
    yield lambda: f(t(2))
    g.__kwdefaults__ = None
    yield lambda: f(t(2))
    g.__kwdefaults__ = {"k": 1.0}
    g.__defaults__ = None
    yield lambda: f(t(2))
    g.__defaults__ = (t(2), 1.0)
    yield lambda: f(t(2))


@scenario
def a_mutable_default_grows(wrap):
    def g(x, items=[], table={"a": 1.0}):  # noqa: B006
        return x + len(items) + sum(table.values())

    f = wrap(lambda x: g(x))
    yield lambda: f(t(2))
    g.__defaults__[0].append(1)
    yield lambda: f(t(2))
    g.__defaults__[1]["b"] = 5.0
    yield lambda: f(t(2))


@scenario
def code_is_assigned(wrap):
    def g(x):
        return x + 1

    def other(x):
        return x * 10

    f = wrap(lambda x: g(x))
    yield lambda: f(t(2))
    g.__code__ = other.__code__
    yield lambda: f(t(2))


@scenario
def code_of_the_compiled_function_is_assigned(wrap):
    def g(x):
        return x + 1

    def other(x):
        return x * 10

    f = wrap(g)
    yield lambda: f(t(2))
    g.__code__ = other.__code__
    yield lambda: f(t(2))


@scenario
def cells_are_emptied_and_filled(wrap):
    k, table = 2.0, {"a": 3.0}

    def g(x):
        return x * k + table["a"]

    names = dict(zip(g.__code__.co_freevars, g.__closure__, strict=True))
    f = wrap(lambda x: g(x) + 1)
    yield lambda: f(t(2))
    del names["k"].cell_contents
    yield lambda: f(t(2))
    names["k"].cell_contents = 4.0
    yield lambda: f(t(2))
    names["table"].cell_contents = {"a": 8.0}
    yield lambda: f(t(2))


class RaisesWhenCompared:
    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __hash__(self) -> int:
        raise RuntimeError("hashed")


@scenario
def objects_that_raise_when_compared(wrap):
    o = RaisesWhenCompared(2.0)
    table = {"o": o, "list": [o]}
    f = wrap(lambda x, o, table: x * o.value + table["o"].value + table["list"][0].value)
    yield lambda: f(t(2), o, table)
    o.value = 3.0
    yield lambda: f(t(2), o, table)
    table["o"] = RaisesWhenCompared(5.0)
    yield lambda: f(t(2), o, table)
    table["list"].append(RaisesWhenCompared(5.0))
    yield lambda: f(t(2), o, table)


class Key:
    def __init__(self, name: str, equal: bool = False) -> None:
        self.name, self.equal = name, equal

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        if not self.equal:
            raise RuntimeError("compared")
        return self.name == (other.name if isinstance(other, Key) else other)


@scenario
def keys_that_raise_when_compared(wrap):
    table = {"a": 1.0}
    f = wrap(lambda x, table: x * table["a"] + len(table))
    yield lambda: f(t(2), table)
    del table["a"]
    table[Key("a", equal=True)] = 2.0
    yield lambda: f(t(2), table)
    table.clear()
    table[Key("a")] = 2.0
    yield lambda: f(t(2), table)


@scenario
def attributes_under_strange_keys(wrap):
    o = fresh()
    f = wrap(lambda o, x: o(x))
    yield lambda: f(o, t(2))
    vars(o)[Key("unrelated")] = 1  # type: ignore[index]
    yield lambda: f(o, t(2))
    del o.k
    vars(o)[Key("k", equal=True)] = 6.0  # type: ignore[index]
    yield lambda: f(o, t(2))


@scenario
def constants_that_compare_oddly(wrap):
    f = wrap(lambda x, n: x * n if n else x)
    for n in (0.0, -0.0, float("nan"), True, 1, 1.0, 2**70, 2**70 + 1, -1, complex(1, -0.0), complex(1, 0.0)):
        yield lambda n=n: f(t(2), n)


@scenario
def cyclic_containers(wrap):
    table: dict[str, Any] = {"k": 2.0}
    items: list[Any] = [1.0, table]
    table["items"], table["self"] = items, table
    items.append(items)
    f = wrap(lambda x, table: x * table["self"]["self"]["k"] + table["items"][2][2][0])
    yield lambda: f(t(2), table)
    table["k"] = 3.0
    yield lambda: f(t(2), table)
    items[2] = [7.0]
    yield lambda: f(t(2), table)
    table["self"] = {"self": {"k": 1.0}}
    yield lambda: f(t(2), table)


@scenario
def cyclic_objects(wrap):
    o = fresh()
    o.me = o
    f = wrap(lambda o, x: x * o.me.me.k + o.k)
    yield lambda: f(o, t(2))
    o.k = 4.0
    yield lambda: f(o, t(2))
    o.me = fresh()
    yield lambda: f(o, t(2))


@scenario
def huge_constants(wrap):
    big = tuple(range(20_000))
    text = "x" * 1_000_000
    f = wrap(lambda x, b, s: x * len(b) + len(s))
    yield lambda: f(t(2), big, text)
    yield lambda: f(t(2), tuple(range(20_001)), text)
    yield lambda: f(t(2), big, text + "y")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(3, 3), nn.Linear(3, 3), nn.ReLU()
        self.register_buffer("shift", torch.ones(3))
        self.depth = 2
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.depth):
            x = self.act(self.second(self.act(self.first(x)))) + self.shift
        return x


@scenario
def everything_about_a_module(wrap):
    m = Block()
    f = wrap(lambda m, x: m(x))
    x = t(2, 3)

    def call():
        return f(m, x).detach(), m.training, sorted(n for n, _ in m.named_parameters())

    yield call
    m.act = nn.GELU()
    yield call
    m.act.__class__ = nn.Tanh
    yield call
    m._modules["act"] = nn.Sigmoid()
    yield call
    m.second = m.first
    yield call
    m.depth = 1
    yield call
    m.shift = torch.zeros(3)
    yield call
    m._buffers["shift"] = torch.full((3,), 2.0)
    yield call
    del m.shift
    yield call
    m.shift = torch.full((3,), 3.0)
    yield call
    m.first._parameters["bias"] = None
    yield call
    m.first.weight = nn.Parameter(torch.eye(3))
    yield call
    m.first.weight.data = torch.eye(3) * 2
    yield call
    m.first.weight.data = torch.ones(3, 3).t().contiguous().t()
    yield call
    m.first.weight.data = torch.ones(4, 3)
    yield call
    m.first.weight.data = torch.ones(3, 3, dtype=torch.float64)
    yield call
    m.first.weight.data = torch.ones(3, 3)
    m.first.register_forward_hook(lambda mod, args, out: out + 50)
    yield call
    m.first._forward_hooks.clear()
    yield call
    m.first.forward = lambda x: x * 0
    yield call
    del m.first.forward
    yield call
    m.first.__dict__ = dict(m.first.__dict__, _forward_hooks={0: lambda mod, args, out: out + 1})
    yield call


@scenario
def requires_grad_of_a_parameter(wrap):
    m = Block()
    f = wrap(lambda m, x: m(x))

    def call():
        y = f(m, t(2, 3))
        if y.requires_grad:
            m.zero_grad()
            y.sum().backward()
        return y.requires_grad, {n: p.grad for n, p in m.named_parameters()}

    yield call
    m.first.weight.requires_grad_(False)
    yield call
    m.requires_grad_(False)
    yield call
    m.second.bias.requires_grad = True
    yield call


@scenario
def classes_of_modules_are_patched(wrap):
    kind = type("Block", (Block,), {})
    m = kind()
    f = wrap(lambda m, x: m(x))
    yield lambda: f(m, t(2, 3)).detach()
    kind.forward = lambda self, x: self.first(x)
    yield lambda: f(m, t(2, 3)).detach()
    kind.__call__ = lambda self, x: x
    yield lambda: f(m, t(2, 3)).detach()
    del kind.__call__
    kind.first = property(lambda self: lambda x: x * 7)
    yield lambda: f(m, t(2, 3)).detach()


@scenario
def modules_take_turns(wrap):
    modules = [Block() for _ in range(5)]
    for i, m in enumerate(modules):
        m.shift = m.shift * i
    f = wrap(lambda m, x: m(x))
    yield lambda: [f(m, t(2, 3)).detach() for m in modules]
    modules[2].act = nn.Tanh()
    yield lambda: [f(m, t(2, 3)).detach() for m in modules]
    modules[2].act = nn.ReLU()
    modules[3].shift = torch.ones(2, 3)
    yield lambda: [f(m, t(2, 3)).detach() for m in modules]


@scenario
def globals_are_deleted_and_shadow_builtins(wrap):
    space = {"__builtins__": __builtins__, "k": 2.0}
    exec(compile("def g(x):\n    return x * k + len(x.shape)\n", __file__, "exec"), space)
    g = space["g"]
    f = wrap(lambda x: g(x))
    yield lambda: f(t(2))
    space["k"] = 3.0
    yield lambda: f(t(2))
    space["len"] = lambda v: 100
    yield lambda: f(t(2))
    del space["k"]
    yield lambda: f(t(2))
    del space["len"]
    space["k"] = 1.0
    yield lambda: f(t(2))


@pytest.mark.parametrize("made", SCENARIOS, ids=lambda s: s.__name__)
def test_notices(made: Scenario) -> None:
    """Each call is made three times over: when compiled, when first reused, and when remembered."""
    expected = [[outcome(call) for _ in range(3)] for call in made(lambda f: f)]
    actual = [
        [outcome(call) for _ in range(3)]
        for call in made(lambda f: fuselens.compile(f, backend="eager", dynamic=False))
    ]
    for i, (e, a) in enumerate(zip(expected, actual, strict=True)):
        difference = comparison.differ(e, a, f"step {i}")
        assert difference is None, difference


# --- what a failed guard says


def reasons(fn: Callable[..., Any], *calls: tuple[Any, ...], between: Callable[[], None] = lambda: None) -> list[str]:
    compiled = fuselens.compile(fn, backend="eager", dynamic=False)
    for args in calls:
        compiled(*args)
        between()
    report = compiled.__fuselens__.recorder.report
    return [d.message.split("because of ", 1)[1] for d in report.diagnostics if d.code == "FL201"]


def as_parameter(x: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(x)


@pytest.mark.parametrize(
    "fn, calls, reason",
    [
        (lambda x: x + 1, [(t(4, 8),), (t(5, 8),)], "x: expected f32[4, 8], found f32[5, 8]"),
        (lambda x: x + 1, [(t(4),), (t(4).double(),)], "x: expected f32[4], found f64[4]"),
        (lambda x: x + 1, [(t(4),), (t(4).requires_grad_(),)], "x: expected requires_grad=False, found True"),
        (lambda x: x + 1, [(t(2, 3),), (t(3, 2).t(),)], "x: expected strides (3, 1), found (1, 2)"),
        (lambda x: x + 1, [(t(2),), (t(2).to("meta"),)], "x: expected it on cpu, found it on meta"),
        (lambda x: x + 1, [(t(2),), (as_parameter(t(2)),)], "type(x): expected Tensor, found Parameter"),
        (lambda x: x + 1, [(t(2),), (3,), (t(2),)], "x: expected f32[2], found 3"),
        (lambda x, n: x * n, [(t(2), 3), (t(2), 4)], "n: expected 3, found 4"),
        (lambda x, n: x * n, [(t(2), 3), (t(2), 3.0)], "n: expected 3, found 3.0"),
        (lambda x, n: x * n, [(t(2), 3), (t(2), t(2))], "n: expected 3, found f32[2]"),
        (lambda x, s: x * len(s), [(t(2), "a"), (t(2), "b" * 80)], f"s: expected 'a', found '{'b' * 59}…"),
        (lambda x, n: x * n[0], [(t(2), [1]), (t(2), [1, 2])], "len(n): expected 1, found 2"),
        (lambda x, n: x * n[0], [(t(2), [1]), (t(2), (1,))], "type(n): expected list, found tuple"),
        (lambda x, n: x * len(n), [(t(2), {"a": 1}), (t(2), {"a": 1, "b": 1})],
         "the keys of n: expected ['a'], found ['a', 'b']"),
        (lambda x, n: x if "a" in n else x * 2, [(t(2), {"a": 1}), (t(2), {"b": 1})], "n: `'a' in n` is no longer true"),
        (lambda x, n: x * n.get("b", 1), [(t(2), {"a": 1}), (t(2), {"b": 1})], "n: expected no 'b', found 1"),
        (lambda x, g: g(x), [(t(2), torch.sin), (t(2), torch.cos)], "g: expected sin, found cos"),
        (lambda x, d: x.to(d), [(t(2), torch.float64), (t(2), torch.float16)],
         "d: expected torch.float64, found torch.float16"),
        (lambda a, b: (a.append(1), b.append(2)), [([], []), ((lambda v: (v, v))([]))],
         "b: expected another object than a, found the same"),
    ],
)  # fmt: skip
def test_says_what_was_expected_and_found(fn: Callable[..., Any], calls: list[Any], reason: str) -> None:
    assert reasons(fn, *calls)[0] == reason


def test_says_which_state_differs() -> None:
    m, x = Block(), t(2, 3)

    def act() -> None:
        m.act = nn.GELU()

    def depth() -> None:
        m.depth = 1

    def weight() -> None:
        m.first.weight = nn.Parameter(torch.ones(3, 3), requires_grad=False)

    def dtype() -> None:
        torch.set_default_dtype(torch.float64)

    def forward() -> None:
        m.second.forward = lambda x: x * 2

    def gone() -> None:
        del m.shift

    changes: list[tuple[Callable[[], None], str]] = [
        (act, "type(self.act): expected ReLU, found GELU"),
        (depth, "self.depth: expected 2, found 1"),
        (weight, "self.first.weight: expected requires_grad=True, found False"),
        (dtype, "get_default_dtype(): expected torch.float32, found torch.float64"),
        (forward, "self.second.__dict__: expected no 'forward', found test_says_which_state_differs.<locals>.forward.<locals>.<lambda>"),
    ]  # fmt: skip
    compiled = fuselens.compile(m, backend="eager")
    found = compiled.__fuselens__.recorder.report.diagnostics
    compiled(x)
    for change, reason in changes:
        change()
        try:
            compiled(x)
        finally:
            torch.set_default_dtype(torch.float32)
        assert [d.message for d in found if d.code == "FL201"][-1].endswith(f"because of {reason}")
        if change is dtype:
            compiled(x)
    del m.second.forward
    compiled(x)
    gone()
    with pytest.raises(AttributeError):
        compiled(x)
    assert "self.shift: expected an object, found nothing" in [d.message for d in found if d.code == "FL201"][-1]


def test_says_so_for_grad_mode() -> None:
    f = fuselens.compile(lambda x: x + 1, backend="eager")
    f(t(2))
    with torch.no_grad():
        f(t(2))
    (found,) = [d.message for d in f.__fuselens__.recorder.report.diagnostics if d.code == "FL201"]
    assert found.endswith("because of torch.is_grad_enabled(): expected True, found False")


class Shy:
    """Its every method raises."""

    def _no(self, *args: Any) -> Any:
        raise RuntimeError("asked")

    __repr__ = __str__ = __eq__ = __hash__ = __len__ = __bool__ = _no


def test_asks_nothing_of_what_it_found() -> None:
    assert reasons(lambda x, n: x * 2 if n is None else x, (t(2), None), (t(2), Shy())) == [
        "n: expected None, found a Shy"
    ]
    found = reasons(lambda x, n: x * 2 if n[0] is None else x, (t(2), [None]), (t(2), [Shy()]))
    assert found == ["n[0]: expected None, found a Shy"]


def test_guards_know_their_costs_when_asked() -> None:
    f = fuselens.compile(Block(), backend="eager", options={"guard_costs": True})
    f(t(2, 3))
    report = f.__fuselens__.recorder.report
    assert report.guards and all(g.cost_ns is not None and g.cost_ns > 0 for g in report.guards)
    assert " ns)" in views.explain(report)
    plain = fuselens.compile(Block(), backend="eager")
    plain(t(2, 3))
    assert all(g.cost_ns is None for g in plain.__fuselens__.recorder.report.guards)


# --- what is kept


def growth(work: Callable[[int], None], warm: int, n: int) -> tuple[int, int]:
    """(bytes that Python allocated and kept, objects that the collector found more) for ``n`` calls of ``work``."""
    for i in range(warm):
        work(i)
    gc.collect()
    objects = len(gc.get_objects())
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for i in range(n):
            work(warm + i)
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    return kept, len(gc.get_objects()) - objects


@pytest.mark.parametrize("n", [2_000, pytest.param(100_000, marks=[pytest.mark.sweep, pytest.mark.timeout(900)])])
def test_calls_leak_nothing(n: int) -> None:
    m, x, y = Block(), t(2, 3), t(4, 3)
    f = fuselens.compile(m, backend="eager", dynamic=False)

    def work(i: int) -> None:
        f(x if i % 2 else y)
        m.unrelated = i

    kept, objects = growth(work, 200, n)
    assert kept < 20_000 and objects < 50
    counts = [sys.getrefcount(o) for o in (m, m.first.weight, m.shift)]
    for i in range(100):
        work(i)
    assert [sys.getrefcount(o) for o in (m, m.first.weight, m.shift)] == counts


@pytest.mark.parametrize("n", [40, pytest.param(1_000, marks=[pytest.mark.sweep, pytest.mark.timeout(900)])])
def test_recompiles_leak_nothing(n: int) -> None:
    x = t(2, 3)
    gone: list[weakref.ref[Any]] = []

    def work(i: int) -> None:
        m = Block()
        gone.append(weakref.ref(m))
        f = fuselens.compile(lambda x: m(x) * 2, backend="eager")
        f(x)
        m.depth = 1
        f(x)
        fuselens.reset()
        linecache.clearcache()  # torch.fx leads it to each graph module's source, by objects that each Python has its own of

    kept, objects = growth(work, 20, n)
    assert all(r() is None for r in gone)
    # torch.fx keeps the sources of the graph modules, two a round; and `gone` grows by one. A table of what this process has
    # seen so far may have to grow meanwhile
    assert kept < 6_000 * n + (128 << 10) and objects <= n + 8, (kept / n, objects / n)


def test_entries_die_with_their_function() -> None:
    def make() -> tuple[weakref.ref[Any], weakref.ref[Any]]:
        m = Block()
        space: dict[str, Any] = {}
        exec("def f(m, x):\n    return m(x) + 1\n", space)
        f = fuselens.compile(space["f"], backend="eager")
        for _ in range(3):
            f(m, t(2, 3))
        (entry,) = _hook.entries(space["f"])
        return weakref.ref(entry), weakref.ref(m)

    gone = make()
    gc.collect()
    assert gone[1]() is None
    fuselens.reset()
    gc.collect()
    assert gone[0]() is None
