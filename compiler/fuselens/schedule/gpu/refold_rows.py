"""Folds of one short row that the kernels which read the result could do themselves: the norm before a product by a vector,
whose programs all read that row anyway. A launch less, for a fold more in each program."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import sympy
from sympy import Expr

from fuselens.ir.loops import Extern, Graph, Kernel, Loop, Phase
from fuselens.schedule.gpu.product_kernels import changed
from fuselens.schedule.sites.products import fresh, used, wanted, written

MOST = 8192  # elements of the row


@dataclass(frozen=True, slots=True)
class Refold:
    """A kernel that folds a row and stores numbers, and the kernels that read them."""

    kernel: Kernel
    readers: tuple[Kernel, ...]

    @property
    def nodes(self) -> tuple[Kernel, ...]:
        return (self.kernel, *self.readers)


def refolds(graph: Graph) -> list[Refold]:
    """The folds of a fused graph whose readers could do them, each for itself."""
    return [found for kernel in graph.kernels() if (found := _refold(graph, kernel)) is not None]


def refolded(graph: Graph, refold: Refold) -> Graph:
    """``graph`` with the fold in each of its readers."""
    readers = {r.name for r in refold.readers}
    nodes = [
        _joined(refold.kernel, n) if isinstance(n, Kernel) and n.name in readers else n
        for n in graph.nodes if n.name != refold.kernel.name
    ]  # fmt: skip
    return graph.replace(nodes=tuple(nodes))


def _refold(graph: Graph, kernel: Kernel) -> Refold | None:
    numbers = set(kernel.writes())
    sizes = [sympy.Mul(*(a.size for a in p.axes)) for p in kernel.phases if p.axes]
    if not sizes or any(a.size != 1 for a in kernel.axes) or not all(n.is_Integer and n <= MOST for n in sizes):
        return None
    if any(o.op in ("scan", "bounds", "random") or o.update for o in kernel.ops()):
        return None
    if any(o.op == "store" for p in kernel.phases if p.axes for o in p.body) or not numbers.isdisjoint(kernel.reads()):
        return None
    if numbers & {*wanted(graph), *graph.inputs, *graph.constants} or any(
        graph.buffers[n].numel() != 1 for n in numbers
    ):
        return None
    start = next(k for k, n in enumerate(graph.nodes) if n is kernel)
    rows = set(kernel.reads())
    readers: list[Kernel] = []
    changed_since: set[str] = set()
    for node in graph.nodes[start + 1 :]:
        if isinstance(node, Loop):
            return None
        touched = used(graph, node)
        if touched & numbers:
            if isinstance(node, Extern) or changed_since & rows or not _reads_rows(node, rows, numbers):
                return None
            readers.append(node)
        changed_since |= written(graph, node)
    return Refold(kernel, tuple(readers)) if readers else None


def _reads_rows(reader: Kernel, rows: set[str], numbers: set[str]) -> bool:
    """Whether a kernel folds what the row goes into, and does not write any of it."""
    folding = [p for p in reader.phases if p.axes and any(o.op == "reduce" for o in p.body)]
    read = {o.args[0] for p in folding for o in p.body if o.op == "load"}
    return bool(read & rows) and not set(reader.writes()) & (rows | numbers)


def _joined(fold: Kernel, reader: Kernel) -> Kernel:
    """``reader`` with the phases of ``fold`` before its own."""
    taken = {o.name for o in reader.ops()} | {a.name for a in reader.all_axes()}
    names = {o.name: fresh(o.name, taken) for o in fold.ops()}
    # the same axes where it has them, so that what the reader loads is asked for before the fold
    theirs = {tuple(a.size for a in p.axes): p.axes for p in reader.phases}
    values: dict[str, str] = {}
    phases = []
    for phase in fold.phases:
        axes = theirs.get(tuple(a.size for a in phase.axes))
        axes = axes or tuple(dataclasses.replace(a, name=fresh(a.name, taken)) for a in phase.axes)
        mapping: dict[str, Expr] = {a.name: sympy.S.Zero for a in fold.axes}
        mapping |= {a.name: b.symbol for a, b in zip(phase.axes, axes, strict=True)}
        body = [changed(o, names, mapping) for o in phase.body]
        values |= {o.args[0]: o.args[2] for o in body if o.op == "store"}
        phases.append(Phase(axes, tuple(o for o in body if o.op != "store")))
    known = {o.name: values[o.args[0]] for o in reader.ops() if o.op == "load" and o.args[0] in values}
    for phase in reader.phases:
        body = (changed(o, known, {}) for o in phase.body if o.name not in known)
        phases.append(Phase(phase.axes, tuple(body)))
    return dataclasses.replace(
        reader, phases=tuple(p for p in phases if p.axes or p.body), loops=(*fold.loops, *reader.loops),
        origins=(*fold.origins, *reader.origins), spans=tuple(dict.fromkeys((*reader.spans, *fold.spans))),
    )  # fmt: skip
