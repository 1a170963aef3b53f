"""Triton kernels of the program, once memory is planned: calls that write where they find the old values.

Until then a call gives new values of the tensors that it writes to, so that no pass needs to know of writes. Where the old value
is dead then, the new one takes over its memory (``order``). Elsewhere a kernel copies it before the call.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import sympy

from fuselens.ir.loops import PARTS, Axis, Extern, Graph, Kernel, Node, Op, Phase, Ref, extern_reads, phases_of
from fuselens.ir.user_kernels import LAUNCH, LAUNCHED

_EMPTY = ("aten.empty", "aten.new_empty")
_NOT_COPIED = frozenset({*PARTS, "f8e4m3", "f8e5m2"})  # by loops on each device


def is_launch(node: Node) -> bool:
    return isinstance(node, Extern) and node.target == str(LAUNCHED)


def changed(node: Extern) -> list[tuple[str, str]]:
    """Each buffer that a launch writes to, and the one that is its new value."""
    _, tensors, written, *_ = node.args
    return [(tensors[i].name, new) for i, new in zip(written, node.outputs, strict=True)]


def may_take_over(graph: Graph, node: Extern, old: str, new: str) -> bool:
    """Whether the new value may lie where the old one does, if nothing else reads that from then on."""
    a, b = graph.buffers[old], graph.buffers[new]
    given = [ref.name for ref in node.args[1]]
    alone = sum(graph.buffers[name].owner == a.owner for name in given) == 1
    laid_out = (a.sizes, a.strides, a.offset, a.dtype, a.device) == (b.sizes, b.strides, b.offset, b.dtype, b.device)
    return alone and laid_out and not a.storage and not b.storage and (old, new) in changed(node)


def in_place(graph: Graph) -> Graph:
    """The ordered graph with launches that write to their operands."""
    if not any(map(is_launch, graph.nodes)):
        return graph
    names = (f"copy{k}" for k in itertools.count() if f"copy{k}" not in graph.buffers)
    empty = _only_allocated(graph)
    reuse = {
        new: graph.reuse.get(old, "") if old in empty else old for new, old in graph.reuse.items() if new not in empty
    }
    graph = graph.replace(reuse={new: old for new, old in reuse.items() if old})
    kept = (n for n in graph.nodes if empty.isdisjoint(n.writes() if isinstance(n, Kernel) else ()))
    return graph.replace(nodes=tuple(n for node in kept for n in _settled(graph, node, names, empty)))


def _only_allocated(graph: Graph) -> set[str]:
    """Storages that the program left empty, and that launches alone change: nothing needs to fill them."""
    users = Counter(s for node in graph.nodes for s in _read(graph, node))
    launches = [n for n in graph.nodes if isinstance(n, Extern) and is_launch(n)]
    given = Counter(
        graph.buffers[old].owner for n in launches for old, _ in changed(n) if not graph.buffers[old].storage
    )
    results = {graph.buffers[o].owner for o in graph.results()}
    filled: set[str] = set()
    for node in graph.nodes:
        if isinstance(node, Kernel) and node.origins and all(o.startswith(_EMPTY) for o in node.origins):
            filled.update(node.writes() if not node.reads() else ())
    return {s for s in filled if s not in results and users[s] == given[s] == 1}


def _read(graph: Graph, node: Node) -> set[str]:
    if isinstance(node, Extern):
        return {graph.buffers[n].owner for n in extern_reads(node)}
    return {o.args[0] for p in phases_of(node) for o in p.body if o.op == "load" or o.update}


def _settled(graph: Graph, node: Node, names: Iterator[str], empty: set[str]) -> Iterator[Node]:
    pairs = changed(node) if isinstance(node, Extern) and is_launch(node) else []
    if not pairs or any(graph.buffers[new].dtype in _NOT_COPIED for _, new in pairs):
        yield node  # the operator copies by itself
        return
    assert isinstance(node, Extern)
    kernel, tensors, written, *numbers = node.args
    given: list[Any] = list(tensors)
    for i, (old, new) in zip(written, pairs, strict=True):
        if old not in empty and graph.reuse.get(new) != graph.buffers[old].owner:
            yield copy(graph, next(names), old, new, node.spans)
        given[i] = Ref(new)
    yield replace(
        node, target=str(LAUNCH), args=(kernel, tuple(given), written, *numbers), outputs=("",), mutates=node.outputs
    )


def copy(graph: Graph, name: str, value: str, written: str, spans: tuple[Any, ...] = ()) -> Kernel:
    """A kernel that copies a buffer to another."""
    source, target = graph.buffers[value], graph.buffers[written]
    axes = tuple(Axis(f"i{k}", size) for k, size in enumerate(target.sizes) if size != 1)
    point = iter(a.symbol for a in axes)
    at = tuple(sympy.S.Zero if size == 1 else next(point) for size in target.sizes)
    load = Op("t0", "load", (source.owner, source.index(at)), source.dtype, spans=spans)
    store = Op("store0", "store", (target.owner, target.index(at), "t0"), target.dtype, spans=spans)
    return Kernel(name, axes, (Phase((), (load, store)),), (), ("aten.copy_.default",), spans)
