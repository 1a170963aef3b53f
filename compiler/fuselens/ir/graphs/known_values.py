"""Values of a graph that are the same in every call, since they are made of nothing but numbers: what they are."""

from __future__ import annotations

import torch
from torch import fx

from fuselens import torch_private

MOST_ELEMENTS = 1 << 24  # of a value that is looked at, in memory


def is_known_from(node: fx.Node) -> bool:
    """Whether the value is known where those of its operands are."""
    if node.op != "call_function" or not isinstance(node.target, torch_private.OpOverload):
        return False
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or node.meta.get("random") or node.target._schema.is_mutable:
        return False
    plain = all(type(n) is int for n in (*value.shape, *value.stride()))
    return plain and _elements(value) <= MOST_ELEMENTS and torch.Tag.nondeterministic_seeded not in node.target.tags


def known_value(
    wanted: fx.Node, most_nodes: int, kept: dict[fx.Node, torch.Tensor] | None = None
) -> torch.Tensor | None:
    """The value of ``wanted``, on the CPU; None where inputs take part, or chance, or more than ``most_nodes`` nodes. ``kept`` are
    values that are known already, and takes those that are found on the way. No mode may be active that takes part in operators."""
    values = {} if kept is None else kept
    order: list[fx.Node] = []
    stack = [wanted]
    found: set[fx.Node] = set(values)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        if len(order) == most_nodes or not is_known_from(node):
            return None
        found.add(node)
        order.append(node)
        stack += node.all_input_nodes
    position = {n: k for k, n in enumerate(wanted.graph.nodes) if n in found}
    for node in sorted(order, key=position.__getitem__):
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        kwargs = {k: torch.device("cpu") if k == "device" else v for k, v in kwargs.items() if k != "pin_memory"}
        values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[wanted]


def _elements(value: torch.Tensor) -> int:
    """How many a tensor has in memory: along a stride of 0 it has one."""
    count = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        count *= size if stride else 1
    return count
