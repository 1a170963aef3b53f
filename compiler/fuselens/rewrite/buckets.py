"""Collectives in buckets: several small ones that do not need each other's results become one, whose latency is that of one.

What each rank gives is put into one buffer, and what comes back is taken apart. Every rank has to do so: ranks compare what they
do before a graph communicates (``pipeline/refusals.py``), and buckets are part of that.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import fx

from fuselens.ir.collectives import OWN
from fuselens.ir.dtypes import short_name
from fuselens.record.report import Decision

from .find_attention import Maker

aten = torch.ops.aten


def _one(_: Sequence[Any]) -> int:
    return 1


_ROWS: dict[Any, tuple[Callable[[Sequence[Any]], int], Callable[[Sequence[Any]], int]]] = {
    torch.ops.fuselens.all_reduce.default: (_one, _one),
    torch.ops.fuselens.all_gather_into_tensor.default: (_one, lambda args: args[1]),
    torch.ops.fuselens.reduce_scatter_tensor.default: (lambda args: args[2], _one),
}
"""By collective, how many rows its operand has, one for each rank that it is for, and how many its result."""


@dataclass
class _Bucket:
    """Collectives that are one. ``late`` is what reads their results, and so comes after the last."""

    key: tuple[Any, ...]
    nodes: list[fx.Node]
    bytes: int
    late: set[fx.Node] = field(default_factory=set)

    def takes(self, node: fx.Node, key: tuple[Any, ...], size: int, most: int) -> bool:
        return self.key == key and self.bytes + size <= most and node.args[0] not in self.late

    def add(self, node: fx.Node, size: int) -> None:
        self.nodes.append(node)
        self.bytes += size
        self.late.add(node)


def bucket_collectives(module: fx.GraphModule, most: int) -> list[Decision]:
    """Rewrites collectives of a functional graph in place: those that follow each other, are alike and do not need each other's
    results are one, if their operands take ``most`` bytes together. FL419 tells of each bucket."""
    several = [b for b in _buckets(module.graph, most) if len(b.nodes) > 1]
    for bucket in several:
        _join(bucket)
    if several:
        _sort(module.graph)
        module.graph.eliminate_dead_code()
    return [_told(bucket) for bucket in several]


def _buckets(graph: fx.Graph, most: int) -> list[_Bucket]:
    found: list[_Bucket] = []
    now: _Bucket | None = None
    for node in graph.nodes:
        if node.target in OWN:
            key = _key(node)
            size = 0 if key is None else _value(node).numel() * _value(node).element_size()
            if now is None or key is None or not now.takes(node, key, size, most):
                now = None if key is None or size > most else _Bucket(key, [], 0)
                found += [] if now is None else [now]
            if now is not None:
                now.add(node, size)
        elif now is not None and not now.late.isdisjoint(node.all_input_nodes):
            now.late.add(node)
            if _has_place(node):
                now = None
    return found


def _value(node: fx.Node) -> torch.Tensor:
    return node.args[0].meta["val"]  # type: ignore[union-attr]


def _key(node: fx.Node) -> tuple[Any, ...] | None:
    """What is the same of collectives that can be one; None for one that cannot."""
    if node.target not in _ROWS or not all(type(n) is int for n in _value(node).shape) or not _value(node).numel():
        return None
    return node.target, _value(node).dtype, _value(node).device, node.args[1:-1]


def _has_place(node: fx.Node) -> bool:
    """Whether it may not run later than where it is: it draws random numbers, or has effects."""
    draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return node.op != "output" and (draws or node.is_impure())


def _join(bucket: _Bucket) -> None:
    args = bucket.nodes[0].args
    given, taken = (count(args) for count in _ROWS[bucket.nodes[0].target])
    make = Maker(bucket.nodes[-1])
    flat = [make(aten.view.default, _contiguous(node.args[0], make), [given, -1]) for node in bucket.nodes]
    operand = make(aten.view.default, make(aten.cat.default, flat, 1), [-1])
    together = make(bucket.nodes[0].target, operand, *args[1:])
    table = make(aten.view.default, together, [taken, -1])
    start = 0
    for node in bucket.nodes:
        shape = list(node.meta["val"].shape)
        end = start + prod(shape) // taken
        part = make(aten.slice.Tensor, table, 1, start, end)
        apart = make(aten.view.default, _copied(part, make), shape)  # results do not share memory
        for user in list(node.users):
            if user.target in OWN and user.args[-1] is node:  # the group's next one comes after all of these
                user.args = (*user.args[:-1], together)
        node.replace_all_uses_with(apart)
        start = end
    for node in reversed(bucket.nodes):
        node.graph.erase_node(node)


def _contiguous(value: Any, make: Maker) -> fx.Node:
    return value if value.meta["val"].is_contiguous() else _copied(value, make)


def _copied(value: fx.Node, make: Maker) -> fx.Node:
    return make(aten.clone.default, value, memory_format=torch.contiguous_format)


def _told(bucket: _Bucket) -> Decision:
    target, dtype, _, (*_, group) = bucket.key
    name, count = str(target).split(".")[1], len(bucket.nodes)
    reason = f"{count} that follow each other and do not need each other's results are one of {bucket.bytes} bytes"
    data = {"bytes": bucket.bytes, "collectives": count, "group": str(group), "dtype": short_name(dtype)}
    return Decision("FL419", "together", f"{count} × {name}", reason, bucket.nodes[0].meta.get("span"), data)


def _sort(graph: fx.Graph) -> None:
    """Moves nodes behind what they read; where they may come in several orders, in that of before."""
    place = {node: k for k, node in enumerate(graph.nodes)}
    missing = {node: len(set(node.all_input_nodes)) for node in place}
    ready = [k for node, k in place.items() if not missing[node]]
    nodes, order = list(place), []
    while ready:
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        for user in node.users:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, place[user])
    for before, node in itertools.pairwise(order):
        before.append(node)
