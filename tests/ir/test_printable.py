"""What a node is called with is what its code is called with: fx's, ours for graphs that run operator by operator."""

from __future__ import annotations

import enum
import math
import operator
import random
import struct
from typing import Any, NamedTuple

import pytest
import torch
from torch import fx

from fuselens import torch_private
from fuselens.ir.graphs import graph_text
from fuselens.ir.graphs.printable import graph_module
from fuselens.ir.graphs.straight_line import straight_line


class Colour(enum.IntFlag):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    first: Any
    second: Any


class Odd:
    def __repr__(self) -> str:
        return "<odd> (\n"


def function(x: Any) -> Any:
    return x


LEAVES = [
    None, True, False, 0, -1, 7, 2**63 - 1, -(2**63), 2**64, 10**5000, 0.0, -0.0, 1.5, -2.5, 1e-310, math.inf, -math.inf, math.nan,
    -math.nan, 1j, -1j, 0j, complex(-0.0, 2), complex(0, -2), complex(1, -0.0), complex(math.nan, math.inf), 1 - 2j,
    "", "a'b\"c", "line\nline\\", "\u2028\ud800", "{x} %s", b"\0\xff'", ..., NotImplemented, range(2, 9, 3),
    bool, int, float, complex, str, Odd, Odd(), function, torch.relu, math.sin, torch.float32, torch.bool, torch.strided,
    torch.sparse_coo, torch.channels_last, torch.preserve_format, torch.device("cpu"), torch.device("cuda", 3),
    torch.finfo(torch.float16), torch.iinfo(torch.int8), torch.ops.aten.add.Tensor, torch.ops.aten.add, Colour.RED,
    Colour.RED | Colour.BLUE, torch.Tensor, torch.nn.attention.SDPBackend.MATH, frozenset({1}), torch.qint8,
]  # fmt: skip


def drawn(rng: random.Random, node: Any, depth: int = 0) -> Any:
    """An argument: a leaf, the input, or a container of such."""
    kind = rng.choice(
        ["leaf", "leaf", "node", "tuple", "list", "slice", "pair", "dict", "size"] if depth < 3 else ["leaf"]
    )
    inner = lambda: drawn(rng, node, depth + 1)  # noqa: E731
    if kind == "leaf":
        return rng.choice(LEAVES)
    if kind == "node":
        return node
    if kind == "size":
        return torch.Size([rng.randrange(5) for _ in range(rng.randrange(3))])
    if kind == "slice":
        return slice(inner(), inner(), inner())
    if kind == "pair":
        return Pair(inner(), inner())
    if kind == "dict":
        return {name: inner() for name in rng.sample(["a", "from", "b c", ""], rng.randrange(4))}
    return (tuple if kind == "tuple" else list)(inner() for _ in range(rng.randrange(4)))


def same(a: Any, b: Any) -> bool:
    """The same bits, not merely equal."""
    if isinstance(a, float) and isinstance(b, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex) and isinstance(b, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, slice) and isinstance(b, slice):
        return all(same(getattr(a, n), getattr(b, n)) for n in ("start", "stop", "step"))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        kinds = [
            list if isinstance(v, list) else tuple if type(v) is torch.Size else type(v) for v in (a, b)
        ]  # as in fx
        return kinds[0] is kinds[1] and len(a) == len(b) and all(map(same, a, b))
    return a is b or (type(a) is type(b) and a == b)


def both_codes_give(args: Any, kwargs: Any) -> None:
    """Runs a node with these arguments by both codes, which get what the node has, the input in the node's place."""
    x, seen = object(), []

    def spy(*given: Any, **named: Any) -> None:
        seen.append((given, named))

    graph = fx.Graph()
    node = graph.placeholder("x")
    swap = lambda v: node if v is x else v  # noqa: E731
    graph.call_function(spy, fx.node.map_aggregate(args(x), swap), fx.node.map_aggregate(kwargs(x), swap))
    graph.output(node)
    graph_text.show(graph, "g")
    straight_line(torch_private.graph_module(torch.nn.Module(), graph))((x,))
    graph_module(graph).forward(x)
    expected = args(x), kwargs(x)
    for given, named in seen:
        assert same(given, expected[0]), (given, expected)
        assert same(dict(named), expected[1]), (named, expected)
    assert len(seen) == 2


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda v: f"{type(v).__name__}")
def test_each_kind_of_argument(leaf: Any) -> None:
    both_codes_give(
        lambda x: (leaf, x, (leaf,), [leaf, x], slice(leaf)), lambda x: {"a": leaf, "b": {"c": leaf, "d e": leaf}}
    )


@pytest.mark.parametrize("seed", range(150))
def test_arguments_drawn_at_random(seed: int) -> None:
    def args(x: Any) -> Any:
        rng = random.Random(seed)
        return tuple(drawn(rng, x) for _ in range(rng.randrange(4)))

    def kwargs(x: Any) -> Any:
        rng = random.Random(seed + 1000)
        names = rng.sample(["dtype", "from", "to", "a b", "é", "None"], rng.randrange(4))
        return {name: drawn(rng, x) for name in names}

    both_codes_give(args, kwargs)


def drawn_for(kind: str, rng: random.Random, x: Any) -> Any:
    """A value of a type of torch's schemas."""
    outer, _, inner = kind.removesuffix("]").partition("[")
    if outer == "Optional":
        return None if rng.random() < 0.3 else drawn_for(inner, rng, x)
    if outer == "List":
        return [drawn_for(inner, rng, x) for _ in range(rng.randrange(4))]
    table: dict[str, list[Any]] = {
        "Tensor": [x], "number": [1, -2, 0.5, -0.0, math.inf, 1 - 2j, True], "Scalar": [1, -0.5, 2j, math.nan],
        "int": [0, 3, -1, 2**62], "SymInt": [0, 3, -1], "float": [0.5, -0.0, math.nan, math.inf], "bool": [True, False],
        "str": ["mean", "a\n'b"], "ScalarType": [torch.float32, bool, float], "Layout": [torch.strided],
        "Device": [torch.device("cpu"), "cpu"], "MemoryFormat": [torch.channels_last, torch.preserve_format],
    }  # fmt: skip
    return rng.choice(table.get(kind, LEAVES))


def test_arguments_of_every_overload() -> None:
    overloads = [
        getattr(packet, name)
        for packet in (getattr(torch.ops.aten, n) for n in dir(torch.ops.aten) if not n.startswith("__"))
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for name in packet.overloads()
    ]
    assert len(overloads) > 1000
    for number, overload in enumerate(overloads):
        if number % 5:
            continue
        schema = overload._schema.arguments

        def values(x: Any, named: bool, number: int = number, schema: Any = schema) -> list[tuple[str, Any]]:
            rng = random.Random(number)
            made = [(a, drawn_for(str(a.type), rng, x)) for a in schema]
            return [(a.name, v) for a, v in made if a.kwarg_only == named]

        both_codes_give(lambda x, v=values: tuple(a for _, a in v(x, False)), lambda x, v=values: dict(v(x, True)))


@pytest.mark.parametrize("base", [-2, -2.5, -0.0, -math.inf, 2, -(2**63)])
def test_powers_of_negative_numbers(base: float) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(operator.pow, (base, x)))
    assert graph_module(graph).forward(2) == base**2


def test_arguments_that_are_no_keywords_in_methods() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    threes = torch.full((3,), 3.0)
    graph.output(graph.call_method("random_", (x,), {"from": 3, "to": 4}))
    assert torch.equal(straight_line(torch_private.graph_module(torch.nn.Module(), graph))((torch.zeros(3),)), threes)
    assert torch.equal(graph_module(graph).forward(torch.zeros(3)), threes)
