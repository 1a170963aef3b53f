"""Which nodes of a graph share memory."""

from __future__ import annotations

import operator

from torch import fx

from fuselens import torch_private


def is_view(node: fx.Node) -> bool:
    """Whether ``node``'s value shares memory with its first argument."""
    return torch_private.is_view(node.target)


def storage_root(node: fx.Node) -> fx.Node:
    """The node whose memory ``node``'s value is in."""
    while is_view(node) or (node.target is operator.getitem and is_view(node.args[0])):  # type: ignore[arg-type]
        node = node.args[0]  # type: ignore[assignment]
    return node
