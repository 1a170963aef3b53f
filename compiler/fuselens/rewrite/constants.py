"""Tensors of a graph that are known while it is compiled: frozen inputs, constants, and what they look like through views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

aten = torch.ops.aten
_COPIES = (aten._to_copy.default, aten.clone.default)


class Constants:
    """Knows values of ``module``, given those of the inputs ``frozen`` (by position), and adds constants to it."""

    def __init__(self, module: fx.GraphModule, frozen: Mapping[int, torch.Tensor]) -> None:
        self.module = module
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        self.frozen = {placeholders[i]: t for i, t in frozen.items()}

    def value(self, node: Any) -> torch.Tensor | None:
        """The tensor that ``node`` has in every call; None where it is not known."""
        if not isinstance(node, fx.Node):
            return None
        if node.op == "placeholder":
            return self.frozen.get(node)
        if node.op == "get_attr":
            return getattr(self.module, str(node.target), None)
        if node.op != "call_function" or not (torch_private.shares_memory(node.target) or node.target in _COPIES):
            return None
        operands = {n: self.value(n) for n in node.all_input_nodes}
        if not operands or any(v is None for v in operands.values()):
            return None
        args, kwargs = fx.map_arg((node.args, node.kwargs), operands.__getitem__)
        with torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def add(self, at: fx.Node, value: torch.Tensor, like: fx.Node) -> fx.Node:
        """A node before ``at`` with ``value``, whose shape, strides and dtype are those of ``like``, as far as loops see."""
        node = constant(self.module, at, value)
        node.meta = {k: v for k, v in like.meta.items() if k in ("span", "stack", "captured", "val")}
        return node


def constant(root: torch.nn.Module, at: fx.Node, value: torch.Tensor) -> fx.Node:
    """A node before ``at`` that is ``value`` in every call; ``root`` holds it for the graph."""
    name = f"_frozen_{len(at.graph.nodes)}"
    while hasattr(root, name):
        name += "_"
    root.register_buffer(name, value, persistent=False)
    with at.graph.inserting_before(at):
        return at.graph.get_attr(name)
