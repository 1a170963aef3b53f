"""A part of a fused graph as a graph of its own, named so that equal parts of a network are equal: what is measured alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import sympy

from .loops import Attention, Axis, Buffer, Extern, Graph, Kernel, Loop, Op, Phase, Ref, extern_reads, symbol


def part(graph: Graph, nodes: Iterable[Kernel | Extern]) -> Graph:
    """``nodes`` of ``graph``, in their order. Its inputs are the storages that others fill, then size symbols; it returns what
    others read of it. Buffers and nodes are numbered, spans and origins left out."""
    nodes = tuple(nodes)
    there = set(map(id, nodes))
    others = [n for n in graph.nodes if id(n) not in there and not isinstance(n, Loop)]
    renamed = _numbered(graph, nodes)
    inputs, made = _inputs(graph, nodes, others)
    names = {s: symbol(f"n{k}") for k, s in enumerate(_symbols(graph, nodes))}
    mapping = {symbol(s): n for s, n in names.items()}
    buffers = [_buffer(graph, name, renamed, mapping, name in inputs) for name in renamed]
    integers = [n.name for n in names.values()]
    return Graph(
        name="part",
        inputs=(*(renamed[n] for n in inputs), *integers),
        buffers={b.name: b for b in buffers} | {n: Buffer(n, "i64", (), ()) for n in integers},
        nodes=tuple(_renamed(node, f"part{k}", renamed, mapping) for k, node in enumerate(nodes)),
        outputs=tuple(renamed[n] for n in _outputs(graph, made, others)),
        symbols={n: (len(inputs) + k, -1) for k, n in enumerate(integers)},
        hints={n.name: graph.hint(symbol(s)) for s, n in names.items()},
        card=graph.card,
    )


def _numbered(graph: Graph, nodes: tuple[Kernel | Extern, ...]) -> dict[str, str]:
    """The new names of buffers and their storages, in the order in which nodes use them."""
    renamed: dict[str, str] = {}
    for node in nodes:
        for name in _touched(node):
            for each in (graph.buffers[name].owner, name):
                renamed.setdefault(each, f"buf{len(renamed)}")
    return renamed


def _inputs(
    graph: Graph, nodes: tuple[Kernel | Extern, ...], others: list[Kernel | Extern]
) -> tuple[list[str], list[str]]:
    """The storages that nodes use, in order: those that are filled elsewhere, and those that are made here."""
    filled = {*graph.inputs, *graph.constants} | {s for n in others for s in _stored(graph, n)}
    used = dict.fromkeys(graph.buffers[name].owner for node in nodes for name in _touched(node))
    return [s for s in used if s in filled], [s for s in used if s not in filled]


def _outputs(graph: Graph, made: list[str], others: list[Kernel | Extern]) -> list[str]:
    """What others read of what is made here; else the last of that, so that there is a result."""
    read = {graph.buffers[n].owner for o in others for n in _loaded(o)}
    read |= {graph.buffers[n].owner for n in graph.results()}
    return [s for s in made if s in read] or made[-1:]


def _loaded(node: Kernel | Extern) -> tuple[str, ...]:
    return extern_reads(node) if isinstance(node, Extern) else node.reads()


def _stored(graph: Graph, node: Kernel | Extern) -> set[str]:
    names = [o for o in node.outputs if o] if isinstance(node, Extern) else node.writes()
    return {graph.buffers[n].owner for n in names}


def _touched(node: Kernel | Extern) -> tuple[str, ...]:
    stored = tuple(o for o in node.outputs if o) if isinstance(node, Extern) else node.writes()
    return (*_loaded(node), *stored)


def _symbols(graph: Graph, nodes: tuple[Kernel | Extern, ...]) -> list[str]:
    """The size symbols that nodes and their buffers use."""
    used: set[str] = set()
    for node in nodes:
        if isinstance(node, Kernel):
            used |= set(node.size_symbols())
        else:
            _visit((node.args, node.kwargs), used)
            if isinstance(node, Attention):
                _visit((tuple(a.size for a in node.axes), tuple(o.args for o in node.body)), used)
        for name in _touched(node):
            buffer = graph.buffers[name]
            for each in (buffer, graph.buffers[buffer.owner]):
                _visit((*each.sizes, *each.strides, each.offset), used)
    return sorted(used & graph.symbols.keys())


def _visit(value: Any, found: set[str]) -> None:
    if isinstance(value, sympy.Expr):
        found |= {s.name for s in value.free_symbols}  # type: ignore[attr-defined]
    elif isinstance(value, tuple):
        for v in value:
            _visit(v, found)


def _buffer(graph: Graph, name: str, renamed: dict[str, str], mapping: dict[Any, Any], given: bool) -> Buffer:
    buffer = graph.buffers[name]
    return dataclasses.replace(
        buffer,
        name=renamed[name],
        sizes=tuple(s.xreplace(mapping) for s in buffer.sizes),
        strides=tuple(s.xreplace(mapping) for s in buffer.strides),
        offset=sympy.S.Zero if given else buffer.offset.xreplace(mapping),
        storage=renamed[buffer.storage] if buffer.storage else "",
    )


def _renamed(node: Kernel | Extern, name: str, renamed: dict[str, str], mapping: dict[Any, Any]) -> Kernel | Extern:
    def value(v: Any) -> Any:
        if isinstance(v, Ref):
            return Ref(renamed[v.name])
        if isinstance(v, tuple):
            return tuple(value(e) for e in v)
        return v.xreplace(mapping) if isinstance(v, sympy.Expr) else v

    def op(o: Op) -> Op:
        return dataclasses.replace(o.mapped(index=value, storage=renamed.__getitem__), spans=())

    def axes(given: Iterable[Axis]) -> tuple[Axis, ...]:
        return tuple(dataclasses.replace(a, size=value(a.size)) for a in given)

    if isinstance(node, Extern):
        outputs = tuple(renamed[o] if o else "" for o in node.outputs)
        if isinstance(node, Attention):
            args, body = value(node.args), tuple(map(op, node.body))
            return dataclasses.replace(
                node, name=outputs[0] if node.outputs == (node.name,) else name, args=args, outputs=outputs,
                axes=axes(node.axes), body=body, product="", origin="", spans=(),
            )  # fmt: skip
        return Extern(
            outputs[0] if node.outputs == (node.name,) else name,
            node.target, value(node.args), tuple((k, value(v)) for k, v in node.kwargs), outputs,
            tuple(renamed[m] for m in node.mutates),
        )  # fmt: skip

    phases = tuple(Phase(axes(p.axes), tuple(map(op, p.body))) for p in node.phases)
    return Kernel(name, axes(node.axes), phases)
