"""What became of each operation of a lowered graph: the nodes and edges that pictures of fusion show."""

from __future__ import annotations

import math
from collections import defaultdict

from ..ir.loops import ITEMSIZE, Extern, Graph, Kernel, Loop, extern_reads
from ..record.report import Operation


def operations(lowered: Graph, ordered: Graph, phase: str) -> list[Operation]:
    """The inputs that something reads, the operations of ``lowered``, and the kernels of ``ordered`` that were made from none
    of them, in order. Of an operation that no kernel has as its own (a constant, say, which is written where it is used), those
    that read it read what it reads."""
    parts: defaultdict[str, list[str]] = defaultdict(list)
    for node in ordered.nodes:
        for name in node.loops if isinstance(node, Kernel) else (node.name,):
            parts[name].append(node.name)
    known = {node.name for node in lowered.nodes}
    made = [n for n in ordered.nodes if isinstance(n, Kernel) and known.isdisjoint(n.loops)]
    sources: dict[str, tuple[str, ...]] = {}  # of a storage: what wrote it last, or what stands for that
    results = {lowered.buffers[name].owner for name in lowered.results() if name in lowered.buffers}
    found: list[Operation] = []
    read: set[str] = set()
    for graph, node in (*((lowered, n) for n in lowered.nodes), *((ordered, n) for n in made)):
        reads, writes = _storages(graph, node)
        before = tuple(dict.fromkeys(name for s in reads for name in sources.get(s, (s,))))
        kernels = tuple(parts[node.name]) if graph is lowered else (node.name,)
        if not kernels:
            sources |= dict.fromkeys(writes, before)
            continue
        sources |= dict.fromkeys(writes, (node.name,))
        read.update(before)
        origin = ", ".join(node.origins) if isinstance(node, Kernel) else node.origin or getattr(node, "target", "")
        size = _size(graph, next(iter(writes), ""))
        returned = not results.isdisjoint(writes)
        found.append(Operation(node.name, origin, phase, *size, before, kernels, returned, node.spans))
    given = [n for n in dict.fromkeys((*lowered.inputs, *lowered.constants)) if n in lowered.buffers and n in read]
    return [*(Operation(n, "", phase, *_size(lowered, n)) for n in given), *found]


def _storages(graph: Graph, node: Loop | Extern | Kernel) -> tuple[dict[str, None], dict[str, None]]:
    """Those that a node reads, and those that it writes, in the order of their first use."""
    if isinstance(node, Extern):
        owners = [graph.buffers[name].owner for name in extern_reads(node)]
        made = [graph.buffers[name].owner for name in (*node.outputs, *node.mutates) if name]
        return dict.fromkeys(owners), dict.fromkeys(made)
    ops = node.body if isinstance(node, Loop) else tuple(node.ops())
    loads = (o.args[0] for o in ops if o.op == "load" or o.update)
    return dict.fromkeys(loads), dict.fromkeys(o.args[0] for o in ops if o.op == "store")


def _size(graph: Graph, name: str) -> tuple[str, int]:
    """The type of a buffer, and its bytes with the example's sizes."""
    buffer = graph.buffers.get(name)
    if buffer is None:
        return "", 0
    count = math.prod(graph.hint(size) for size in buffer.sizes)
    return f"{buffer.dtype}[{', '.join(map(str, buffer.sizes))}]", ITEMSIZE[buffer.dtype] * count
