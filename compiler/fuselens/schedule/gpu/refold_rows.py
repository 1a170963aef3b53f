"""Folds of one short row that the kernels which read the result could do themselves: the norm before a product by a vector,
whose programs all read that row anyway. A launch less, for a fold more in each program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import sympy
from sympy import Expr

from fuselens.ir.loops import Extern, Graph, Kernel, Loop, Phase
from fuselens.schedule.emit import translated
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


def refold(graph: Graph, found: Refold) -> Graph:
    """``graph`` with the fold in each of its readers."""
    readers = {r.name for r in found.readers}
    nodes = [
        _joined(found.kernel, n) if isinstance(n, Kernel) and n.name in readers else n
        for n in graph.nodes if n.name != found.kernel.name
    ]  # fmt: skip
    return graph.replace(nodes=tuple(nodes))


def _refold(graph: Graph, kernel: Kernel) -> Refold | None:
    if not _folds_a_row(kernel) or not _are_numbers(graph, kernel.writes()):
        return None
    readers = _readers(graph, kernel)
    return Refold(kernel, readers) if readers else None


def _folds_a_row(kernel: Kernel) -> bool:
    """Whether a kernel does nothing but fold one short row, to the results of which it does things in any order."""
    sizes = [sympy.Mul(*(a.size for a in p.axes)) for p in kernel.phases if p.axes]
    if not sizes or any(a.size != 1 for a in kernel.axes) or not all(n.is_Integer and n <= MOST for n in sizes):
        return False
    if any(o.op in ("scan", "bounds", "random") or o.update for o in kernel.ops()):
        return False
    stores_row = any(o.op == "store" for p in kernel.phases if p.axes for o in p.body)
    return not stores_row and set(kernel.writes()).isdisjoint(kernel.reads())


def _are_numbers(graph: Graph, storages: Iterable[str]) -> bool:
    """Whether each holds one number, for the graph's own use."""
    outside = {*wanted(graph), *graph.inputs, *graph.constants}
    return all(s not in outside and graph.buffers[s].numel() == 1 for s in storages)


def _readers(graph: Graph, kernel: Kernel) -> tuple[Kernel, ...]:
    """The kernels that read what ``kernel`` writes, if all of them could fold the row for themselves; else none."""
    start = next(k for k, n in enumerate(graph.nodes) if n is kernel)
    rows, numbers = set(kernel.reads()), set(kernel.writes())
    readers: list[Kernel] = []
    changed_since: set[str] = set()
    for node in graph.nodes[start + 1 :]:
        if isinstance(node, Loop):
            return ()
        if used(graph, node) & numbers:
            if isinstance(node, Extern) or changed_since & rows or not _reads_rows(node, rows, numbers):
                return ()
            readers.append(node)
        changed_since |= written(graph, node)
    return tuple(readers)


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
        body = [translated(o, mapping, names) for o in phase.body]
        values |= {o.args[0]: o.args[2] for o in body if o.op == "store"}
        phases.append(Phase(axes, tuple(o for o in body if o.op != "store")))
    known = {o.name: values[o.args[0]] for o in reader.ops() if o.op == "load" and o.args[0] in values}
    for phase in reader.phases:
        body = (o.renamed(known) for o in phase.body if o.name not in known)
        phases.append(Phase(phase.axes, tuple(body)))
    return dataclasses.replace(
        reader, phases=tuple(p for p in phases if p.axes or p.body), loops=(*fold.loops, *reader.loops),
        origins=(*fold.origins, *reader.origins), spans=tuple(dict.fromkeys((*reader.spans, *fold.spans))),
    )  # fmt: skip
