"""How many bytes a kernel moves per call: what the memory-bound limit of its time is computed from."""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from sympy import Expr

from ..ir.loops import ITEMSIZE, Axis, Graph, Kernel, indirect_names
from .expressions import names_in


def bytes_moved(kernel: Kernel, graph: Graph) -> tuple[Expr, Expr]:
    """Bytes read and written per call, each element counted once per access pattern (caches are assumed to work: what a kernel wrote
    before is in one)."""
    return _bytes(kernel, graph, "load"), _bytes(kernel, graph, "store")


def seconds_to_move(kernel: Kernel, graph: Graph) -> float:
    """How long a kernel takes on the graph's card, if its bytes are its time."""
    return sum(graph.hint(n) for n in bytes_moved(kernel, graph)) / graph.card.bandwidth


def _bytes(kernel: Kernel, graph: Graph, kind: str) -> Expr:
    most: dict[str, Expr] = {}
    seen: set[tuple[str, Expr]] = set()
    written: set[str] = set()
    for phase in kernel.phases:
        axes = (*kernel.axes, *phase.axes)
        here: dict[str, Expr] = {}
        for op in phase.body:
            if op.op == "store":
                written.add(op.args[0])
            if op.op != kind or (kind == "load" and op.args[0] in written):
                continue
            storage, index = op.args[0], sympy.sympify(op.args[1])
            if (storage, index) in seen:
                continue
            seen.add((storage, index))
            buffer = graph.buffers[storage]
            count = _points(axes, index, bool(indirect_names(index)))
            total = here.get(storage, sympy.S.Zero) + count * ITEMSIZE[buffer.dtype]
            here[storage] = min(total, buffer.numel() * ITEMSIZE[buffer.dtype], key=graph.hint)
        for storage, total in here.items():
            # phases name their axes differently, so equal traversals look different: count the largest one
            most[storage] = max(most.get(storage, total), total, key=graph.hint)
    return sympy.Add(*most.values())


def _points(axes: Iterable[Axis], index: Expr, indirect: bool) -> Expr:
    used = names_in(index)
    return sympy.Mul(*(a.size for a in axes if indirect or a.name in used))
