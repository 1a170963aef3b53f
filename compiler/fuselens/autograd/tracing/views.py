"""Which nodes of a graph share memory."""

from __future__ import annotations

import operator

from torch import fx

# Operators whose result shares memory with their first operand.
VIEW_OPERATORS = frozenset({
    "view", "_unsafe_view", "_reshape_alias", "expand", "permute", "transpose", "t", "squeeze", "unsqueeze", "slice",
    "select", "as_strided", "diagonal", "split", "split_with_sizes", "unbind", "unfold", "view_as_real",
    "view_as_complex", "_conj", "_neg_view", "alias", "detach", "narrow", "movedim", "real", "imag",
})  # fmt: skip


def is_view(node: fx.Node) -> bool:
    """Whether ``node``'s value shares memory with its first argument."""
    packet = getattr(node.target, "overloadpacket", None)
    return packet is not None and packet.__name__ in VIEW_OPERATORS


def storage_root(node: fx.Node) -> fx.Node:
    """The node whose memory ``node``'s value is in."""
    while is_view(node) or (node.target is operator.getitem and is_view(node.args[0])):  # type: ignore[arg-type]
        node = node.args[0]  # type: ignore[assignment]
    return node
