"""What the nodes of a captured graph do: which write to operands, draw random numbers, turn gradients on.

It is asked before a node runs, so names, keywords and what the capture saw must tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from ..random_numbers import is_functional_draw
from .layouts import overlaps


def every_node(gm: fx.GraphModule) -> Iterator[fx.Node]:
    """The nodes of a graph and of the graphs that its operators run."""
    for node in gm.graph.nodes:
        yield node
        for body in getattr(node.target, "bodies", ()):
            yield from every_node(body)


def may_write(gm: fx.GraphModule) -> bool:
    """Whether any node could write to an operand: in-place names, item assignment, ``out=``."""
    return any(map(writes, every_node(gm)))


def writes(node: fx.Node) -> bool:
    """Whether a node may write to operands."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return torch_private.writes(node) or name in (
        "batch_norm", "instance_norm", "relu", "dropout", "leaky_relu", "elu", "hardtanh", "silu", "apply"
    )  # fmt: skip


def through_overlap(node: fx.Node) -> bool:
    """Whether what a node writes to was reached through a tensor with several elements in one place, or through
    ``unfold``, of which torch's functional form zeroes the elements that lie between its windows."""
    at: Any = next((a for a in node.args if isinstance(a, fx.Node)), None)
    if not torch_private.writes(node):
        made, given = (n.meta.get("val") if n is not None else None for n in (node, at))
        if not (isinstance(made, torch.Tensor) and isinstance(given, torch.Tensor)):
            return False
        if torch_private.storage_key(made) != torch_private.storage_key(given):
            return False
    while at is not None and (values := _tensors_of(at)):
        if any(map(overlaps, values)) or "unfold" in (at.target, getattr(at.target, "__name__", "")):
            return True
        key = torch_private.storage_key(values[0])
        operands = ((a, _tensors_of(a)) for a in at.args if isinstance(a, fx.Node))
        at = next((a for a, given in operands if given and torch_private.storage_key(given[0]) == key), None)
    return False


def _tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """What a node gave: a tensor, or several views of one."""
    value = node.meta.get("val")
    return [t for t in (value if isinstance(value, (list, tuple)) else (value,)) if isinstance(t, torch.Tensor)]


def draws_inside(node: fx.Node) -> bool:
    """Whether a function that the node runs calls what also stands for operators that write random numbers."""
    bodies = getattr(node.target, "bodies", ())
    return any(is_functional_draw(n.target) or draws_inside(n) for body in bodies for n in body.graph.nodes)


def turns_grad_on(gm: fx.GraphModule) -> bool:
    return any(n.target is torch_private.SET_GRAD_ENABLED and n.args[0] is True for n in gm.graph.nodes)


def needs_python_rules(gm: fx.GraphModule) -> bool:
    """Batch norm's C++ form writes its statistics behind its schema's back; the Python form says so."""
    return any("norm" in getattr(n.target, "__name__", "") for n in every_node(gm) if n.op == "call_function")
