"""What a kernel of several passes over each row asks memory for while it computes: its next row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.loops import ITEMSIZE, Axis, Graph, Kernel, Phase, element, indirect_names
from ....ir.processor import L2_BYTES
from ...expressions import linear
from ...nest import Nest

ROW = range(1 << 10, L2_BYTES)  # bytes of rows of which the next one is worth fetching
FAR = 1 << 23  # bytes of a kernel from which on they are: caches hold less


@dataclass(frozen=True, slots=True)
class Fetch:
    """A row's element in memory, to be asked for before it is needed."""

    storage: str
    index: Expr
    write: bool


def dearest_pass(kernel: Kernel, dear: Collection[str]) -> Phase | None:
    """The phase that memory waits for, if there are several passes over the same row: one with ``dear`` operations, else
    the last that folds. The next row is fetched meanwhile, because processors do not look beyond a page themselves."""
    passes = [p for p in kernel.phases if p.axes]
    sizes = {a.size for p in passes for a in p.axes}
    if len(passes) < 2 or not kernel.axes or len(sizes) != 1 or any(len(p.axes) != 1 for p in passes):
        return None
    folding = [p for p in passes if any(o.op == "reduce" for o in p.body)]
    return next((p for p in passes if any(o.op in dear for o in p.body)), folding[-1] if folding else None)


def next_row(nest: Nest, graph: Graph, inner: Axis, streams: Collection[str]) -> tuple[Fetch, ...]:
    """What the kernel reads and writes along its rows, one row further, at position ``inner``; not what goes past caches."""
    outer, found = nest.kernel.axes[-1], dict[str, Fetch]()
    for phase in nest.kernel.phases:
        for op in phase.body if phase.axes else ():
            if op.op not in ("load", "store") or op.update or op.name in streams:
                continue
            own, index = phase.axes[0], sympy.sympify(op.args[1])
            form = linear(index, frozenset((own.name, outer.name)))
            step = form.coefficient(outer.name)
            size = nest.hint(own.size) * ITEMSIZE[element(graph.buffers[op.args[0]].dtype)]
            if form.coefficient(own.name) == 1 and step not in (None, 0) and size in ROW and not indirect_names(index):
                index = index.xreplace({own.symbol: inner.symbol}) + step
                found.setdefault(op.args[0], Fetch(op.args[0], index, op.op == "store"))
    items = sum(ITEMSIZE[element(graph.buffers[n].dtype)] for n in found)
    whole = nest.hint(sympy.Mul(inner.size, *(a.size for a in nest.kernel.axes))) * items
    return tuple(found.values()) if whole >= FAR else ()
