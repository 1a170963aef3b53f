"""Views that differ by numbers alone, such as ``x[:, t]`` of each step of a loop. Where each is taken when it is needed, no two
steps do the same. Taken together, before the loop, they are given to steps that do."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ... import torch_private
from .units import computes, is_state


def views_first(nodes: Sequence[fx.Node], kinds: Mapping[fx.Node, int]) -> list[fx.Node]:
    """The nodes in an order in which such views follow what they are views of; ``kinds`` are equal for views by the same numbers. None
    is taken first of what the graph writes to, nor where modes change in the graph, which decide whether it has gradients."""
    if any(map(is_state, nodes)):
        return list(nodes)
    written = {_memory(n) for node in nodes if torch_private.writes(node) for n in node.all_input_nodes}
    alike: dict[Any, list[fx.Node]] = {}
    for node in nodes:
        of = _looked_at(node)
        if of is not None and _memory(of) not in written:
            alike.setdefault((of, node.target), []).append(node)
    early: dict[fx.Node, list[fx.Node]] = {}
    for (of, _), views in alike.items():
        if len({kinds[view] for view in views}) > 1:
            early.setdefault(of, []).extend(views)
    moved = {view for views in early.values() for view in views}
    found: list[fx.Node] = []
    waiting = [n for n in reversed(nodes) if n not in moved]
    waiting += [v for of in reversed(early) if of.op == "placeholder" for v in reversed(early[of])]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += reversed(early.get(node, ()))
    return found


def put_in_order(nodes: Sequence[fx.Node]) -> None:
    """Gives a graph, of which these are the nodes but for those where it begins and ends, their order."""
    for before, node in itertools.pairwise(nodes):
        if before.next is not node:
            before.append(node)


def _looked_at(node: fx.Node) -> fx.Node | None:
    """The tensor of which a node is a view by numbers; None where it is something else, or more."""
    if node.op not in ("call_function", "call_method") or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    of = node.args[0] if node.args else None
    if not isinstance(of, fx.Node) or len(node.all_input_nodes) > 1 or not isinstance(of.meta.get("val"), torch.Tensor):
        return None
    return None if computes(node) else of


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return torch_private.storage_key(value) if isinstance(value, torch.Tensor) else None
