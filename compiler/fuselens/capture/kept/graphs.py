"""A captured graph as plain data, and the graph again. What its nodes give is found out only where somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ... import torch_private
from ...ir import user_kernels
from .names import Nameless, Reader, Writer

_ImmutableList, _ImmutableDict = fx.immutable_collections.immutable_list, fx.immutable_collections.immutable_dict
_KEPT = frozenset({"val", "span", "source"})


def written(graph: fx.Graph) -> list[tuple[Any, ...]]:
    """The nodes of a graph. Raises Nameless where it holds something without a name."""
    numbers: dict[int, int] = {}

    def special(obj: Any) -> tuple[Any, ...] | None:
        if type(obj) is fx.Node:
            return "node", numbers[id(obj)]
        if type(obj) in (list, _ImmutableList):
            return "list", *map(write, obj)
        if type(obj) in (dict, _ImmutableDict):
            return "dict", *(write(part) for pair in obj.items() for part in pair)
        return None

    write = Writer(special)
    nodes = []
    for number, node in enumerate(graph.nodes):
        if node.op in ("get_attr", "call_module"):
            raise Nameless("a graph inside of the graph")
        if node.target is user_kernels.LAUNCH:
            raise Nameless(f"the Triton kernel {user_kernels.launch_of(str(node.args[0])).name}")
        if not node.meta.keys() <= _KEPT:
            raise Nameless(f"what is known of {node.name}")
        target = write(node.target) if node.op == "call_function" else node.target
        arguments = write(tuple(node.args)), [(name, write(value)) for name, value in node.kwargs.items()]
        nodes.append((node.op, node.name, target, *arguments, node.meta.get("span"), node.meta.get("source")))
        numbers[id(node)] = number
    return nodes


def read(nodes: Sequence[tuple[Any, ...]]) -> fx.Graph:
    """The graph of such nodes. Raises Gone where something in it has no such name any more."""
    graph = fx.Graph()
    made: list[fx.Node] = []
    find = Reader({
        "node": lambda number: made[number],
        "list": lambda *items: [find(item) for item in items],
        "dict": lambda *parts: {find(k): find(v) for k, v in zip(parts[::2], parts[1::2], strict=True)},
    })  # fmt: skip
    for op, name, target, args, kwargs, span, source in nodes:
        called = find(target) if op == "call_function" else target
        node = graph.create_node(op, called, find(args), {key: find(value) for key, value in kwargs}, name)
        node.meta["span"] = span
        if source is not None:
            node.meta["source"] = source
        made.append(node)
    return graph


def filling(module: fx.GraphModule, fakes: list[Any], mode: Any, grad_enabled: bool) -> Callable[[], None]:
    """What runs the graph on such fake tensors, so that each node knows its value. As after a trace, ``fakes`` are the values of its
    placeholders, but for those that the graph changes: these have others then, as they are before the graph runs."""

    def fill() -> None:
        before = torch.is_grad_enabled()
        unchanged = [torch_private.fake_of_layout(mode, fake, fake.shape, fake.stride()) for fake in fakes]
        try:
            with torch_private.without_torch_function():
                torch_private.set_grad_enabled(grad_enabled)
                torch_private.propagate(module, mode, fakes)
        finally:
            torch_private.set_grad_enabled(before)
        for i, fake in enumerate(unchanged):
            if torch_private.differs(fakes[i], fake):
                fakes[i] = fake

    return fill
