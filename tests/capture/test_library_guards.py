"""What a trace relied on in existing containers is guarded: change it, call again, compare with eager."""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch

import fuselens
from fuselens.inputs import comparison

from .test_library_containers import shown

X = torch.tensor([1.0, 2.0])
Point = namedtuple("Point", "x y")


class Unequal:
    """Raises when it is compared, which identity makes unnecessary."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        return 1


class Node:
    def __init__(self, value: Any) -> None:
        self.value = value


A, B = Node(1), Node(2)
T, U = torch.ones(2), torch.zeros(3)

# a function, and the containers that it is given one after the other
SERIES: dict[str, tuple[Any, list[Any]]] = {
    "set contents": (
        lambda x, c: (x * len(c), sorted(c), 3 in c),
        [{1, 2}, {1, 3}, {2, 1}, set(), {1.0, 2}, {True, 2}],
    ),
    "set order": (lambda x, c: [x * i for i in c], [{7, 15}, {15, 7}, {23, 15}, frozenset({7, 15})]),
    "frozenset": (lambda x, c: (x, c | {1}, list(c)), [frozenset("ab"), frozenset("ba"), frozenset("abc")]),
    "kind of set": (lambda x, c: (x, type(c)), [{1}, frozenset({1}), [1], (1,), {1: 2}]),
    "set of tensors": (lambda x, c: (x, len(c), T in c, [t.shape for t in c]), [{T}, {U}, {T, U}, set()]),
    "set of objects": (lambda x, c: (x * sum(n.value for n in c), A in c), [{A}, {B}, {A, B}, {Node(5)}]),
    "dict keys": (lambda x, c: (x, list(c), c.get("a")), [{"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {}]),
    "dict key types": (lambda x, c: (x, list(c)), [{1: 0}, {True: 0}, {1.0: 0}, {(1,): 0}, {(True,): 0}]),
    "dict by identity": (
        lambda x, c: (x, c.get(A), [k.value for k in c]),
        [{A: 1}, {B: 1}, {A: 2}, {B: 1, A: 2}, {A: 1, B: 1}],
    ),
    "dict of tensor keys": (lambda x, c: (x + c[T], len(c)), [{T: 1}, {T: 2}, {T: 1, U: 2}]),
    "dict of tuple keys": (lambda x, c: (x, [k[0].value * k[1] for k in c]), [{(A, 2): 1}, {(B, 2): 1}, {(A, 3): 1}]),
    "ordered": (lambda x, c: (x, list(c)), [OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), {"a": 1, "b": 2}]),
    "defaultdict": (lambda x, c: (x, c["q"], dict(c)), [defaultdict(list), defaultdict(int), defaultdict(list, q=[1])]),
    "deque": (
        lambda x, c: (x, (d := c.copy()).append(5), d),
        [deque([1]), deque([2]), deque([1], 1), deque([1, 2]), deque([1], 2)],
    ),
    "namedtuple": (lambda x, c: (x * c[0], type(c).__name__), [Point(1, 2), Point(3, 2), (1, 2), [1, 2]]),
    "slice": (
        lambda x, c: (x[c], [1, 2, 3][c]),
        [slice(1), slice(2), slice(0, 2, 1), slice(None), slice(None, None, 2)],
    ),
    "range": (lambda x, c: (x, list(c)), [range(3), range(0, 3), range(4), range(0, 3, 2)]),
    "nested": (lambda x, c: (x, c["a"][0], sorted(c["a"][1])), [{"a": [1, {2}]}, {"a": [1, {3}]}, {"a": [2, {3}]}]),
    "device": (
        lambda x, c: (x, c[0].type, c[0] == x.device, {c[0]: 1}),
        [[torch.device("cpu")], [torch.device("cpu", 0)], [torch.device("meta")], ["cpu"], [None]],
    ),
    "dict of devices": (
        lambda x, c: (x * sum(c.values()), list(c), c.get(x.device)),
        [
            {torch.device("cpu"): 1},
            {torch.device("cpu"): 2},
            {torch.device("cpu", 0): 1},
            {torch.device("meta"): 1},
            {},
        ],
    ),
    "unequal keys": (lambda x, c: (x, len(c)), [{Unequal(): 1}, {Unequal(): 1}, {}]),
}


def outcome(function: Any, container: Any) -> Any:
    try:
        return shown(function(X, container))
    except Exception as e:  # noqa: BLE001 - exceptions are compared too
        return type(e), str(e)


@pytest.mark.parametrize("name", SERIES)
def test_changes_are_noticed(name: str) -> None:
    function, containers = SERIES[name]
    compiled = fuselens.compile(function, backend="eager")
    for container in [*containers, *reversed(containers)]:
        expected, actual = outcome(function, container), outcome(compiled, container)
        difference = comparison.differ(expected, actual, f"{container!r}")
        assert difference is None, difference


@pytest.mark.parametrize("name", SERIES)
def test_changes_in_place_are_noticed(name: str) -> None:
    """One object whose contents change."""
    function, containers = SERIES[name]
    kinds = {type(c) for c in containers}
    if kinds - {set, dict, OrderedDict, defaultdict, list}:
        pytest.skip("these do not change")
    compiled = fuselens.compile(function, backend="eager")
    for kind in kinds:
        mine = [c for c in containers if type(c) is kind]
        container = kind()
        for wanted in [*mine, *mine]:
            container.clear()
            (container.extend if kind is list else container.update)(wanted)
            difference = comparison.differ(outcome(function, container), outcome(compiled, container), repr(wanted))
            assert difference is None, difference


class Placed:
    def __init__(self, here: Any, there: Any) -> None:
        self.here, self.there, self.held = here, there, {here: 1.5}


def test_devices_are_compared_by_value() -> None:
    """A tensor makes a device anew whenever it is asked for its own: ``GradScaler`` has such keys."""

    def f(x: Any, c: Placed) -> Any:
        return (x * c.held[x.device]).to(c.here), c.here == c.there, {x.device: c.there}

    compiled = fuselens.compile(f, backend="eager", fullgraph=True)
    for _ in range(3):
        placed = Placed(torch.device("cpu"), X.device)
        assert comparison.differ(f(X, placed), compiled(X, placed), "result") is None
    assert len(compiled.__fuselens__.recorder.report.graphs) == 1
    placed = Placed(torch.device("cpu"), torch.device("meta"))
    assert comparison.differ(f(X, placed), compiled(X, placed), "result") is None


def test_equal_devices_may_be_two_objects() -> None:
    def f(x: Any, c: Placed) -> Any:
        return x + 1, c.here is c.there, c.here is c.here, c.here

    compiled = fuselens.compile(f, backend="eager")
    one = torch.device("cpu")
    for placed in (Placed(one, one), Placed(one, torch.device("cpu")), Placed(torch.device("cpu"), one)):
        expected, actual = f(X, placed), compiled(X, placed)
        assert expected[1:3] == actual[1:3]
        assert actual[3] is placed.here


@pytest.mark.parametrize("make", [
    lambda: set(range(10_000)), lambda: {i: i for i in range(10_000)}, lambda: list(range(10_000)),
    lambda: tuple(str(i) for i in range(10_000)), lambda: {str(i) for i in range(10_000)}, lambda: deque(range(10_000)),
])  # fmt: skip
def test_huge_containers(make: Any) -> None:
    container = make()
    compiled = fuselens.compile(lambda x, c: (x * len(c), 5 in c, "5" in c), backend="eager")
    assert compiled(X, container)[1:] == (5 in container, "5" in container)
    start = time.perf_counter()
    for _ in range(20):
        compiled(X, container)
    assert (time.perf_counter() - start) / 20 < 0.1  # not for speed, but that it is no power of the size


def test_containers_that_hold_themselves() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    table: dict[str, Any] = {"n": 2}
    table["self"] = table

    def f(x: Any, c: Any, d: Any) -> Any:
        own: list[Any] = [x]
        own.append(own)
        return x * c[0], c[1][1] is c, d["self"]["self"]["n"], len(own[1]), own[1] is own, str([1, 2])

    expected, actual = f(X, ring, table), fuselens.compile(f, backend="eager")(X, ring, table)
    assert comparison.differ(expected, actual, "result") is None


def test_strings_of_containers_that_hold_themselves() -> None:
    def f(x: Any) -> Any:
        own: list[Any] = [1]
        own.append(own)
        return str(own), x + 1

    assert fuselens.compile(f, backend="eager")(X)[0] == f(X)[0]


def test_a_container_is_not_kept() -> None:
    import gc
    import weakref

    class Held(set[Any]):
        pass

    held = Held([1, 2])
    compiled = fuselens.compile(lambda x, c: x * len(c), backend="eager")
    compiled(X, held)
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None
