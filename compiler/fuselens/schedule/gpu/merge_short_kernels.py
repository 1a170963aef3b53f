"""Short kernels that read the same and do not need each other become one: the queries' product by a vector beside that of the keys
and values, which has fewer rows. Points of the larger one are shared out: each of the merged kernel's has several of them.

A kernel of a few microseconds spends as long to start and to end as to read, and the card is idle between two of them.
"""

from __future__ import annotations

import dataclasses
import math

from sympy import Expr

from fuselens.ir.loops import ITEMSIZE, Axis, Extern, Graph, Kernel, Node, Op, Phase
from fuselens.record.report import Decision
from fuselens.schedule.gpu.product_kernels import changed
from fuselens.schedule.sites.products import fresh, used, written

MOST = 8  # folds of the merged kernel, and how many times as many points a kernel may have as another
OPS = 512  # of the merged kernel: compilers slow down on longer ones
NEAR = 8  # nodes among which kernels are looked for
FOLDED = 40e-6  # seconds that both take together, up to which one launch less is worth it: where they fold,
POINTS = 0.4e-6  # and where they do not
FILLED = 4  # programs of a multiprocessor that are left


def beside(graph: Graph) -> Graph:
    """``graph`` with such kernels merged."""
    nodes = list(graph.nodes)
    decisions: list[Decision] = []
    first = 0
    while first < len(nodes):
        node = nodes[first]  # again after each that it was merged with
        for second in range(first + 1, min(first + NEAR, len(nodes))):
            other = nodes[second]
            if not (isinstance(node, Kernel) and isinstance(other, Kernel)):
                continue
            times, between = _ratio(*_by_points(node, other)), nodes[first + 1 : second]
            if times is None or not _independent(graph, other, [node]):
                continue
            up, down = (not _changes(k) and _independent(graph, k, between) for k in (other, node))
            merged = _merged(graph, node, other, times) if up or down or not between else None
            if merged is not None:
                nodes[first : second + 1] = [merged, *between] if up or not between else [*between, merged]
                reason = f"{other.name} reads the same and is as short: one launch does both"
                span = next(iter(merged.spans), None)
                decisions.append(Decision("FL410", "taken", merged.name, reason, span, {"rule": "beside"}))
                break
        else:
            first += 1
    return graph.replace(nodes=tuple(nodes), decisions=(*graph.decisions, *decisions)) if decisions else graph


def _independent(graph: Graph, kernel: Kernel, others: list[Node]) -> bool:
    """Whether a kernel could run before or after all of these."""
    reads, writes = used(graph, kernel), written(graph, kernel)
    return all(
        isinstance(n, Extern | Kernel) and reads.isdisjoint(written(graph, n)) and writes.isdisjoint(used(graph, n))
        for n in others
    )


def _changes(kernel: Kernel) -> bool:
    """Whether it changes elements, which it does in place where it is, and may not elsewhere."""
    return any(o.update for o in kernel.ops())


def _merged(graph: Graph, one: Kernel, other: Kernel, times: int) -> Kernel | None:
    few, many = _by_points(one, other)
    if not set(one.reads()) & set(other.reads()) or _folded_sizes(one) != _folded_sizes(other):
        return None
    folds = [sum(o.op == "reduce" for o in k.ops()) for k in (few, many)]
    if (folds[0] == 0) != (folds[1] == 0) or folds[0] + times * folds[1] > MOST or _unusual(one) or _unusual(other):
        return None
    if len([*few.ops()]) + times * len([*many.ops()]) > OPS:
        return None
    seconds = sum(_bytes(graph, k) for k in (one, other)) / graph.card.bandwidth
    if seconds > (FOLDED if folds[0] else POINTS) or (folds[0] and _points(few) < FILLED * graph.card.processors):
        return None
    taken = {o.name for o in few.ops()} | {a.name for k in (few, many) for a in k.all_axes()}
    sections, axes = [_sections(few)], _columns(few)
    for k in range(times):
        names = {o.name: fresh(o.name, taken) for o in many.ops()}
        points: dict[str, Expr] = {}
        for mine, theirs in zip(few.axes, many.axes, strict=True):
            points[theirs.name] = mine.symbol + (k * mine.size if mine.size != theirs.size else 0)
        sections.append([])
        for body, mine, theirs in zip(_sections(many), axes, _columns(many), strict=True):
            mapping = points | {b.name: a.symbol for a, b in zip(mine, theirs, strict=True)}
            sections[-1].append([changed(o, names, mapping) for o in body])
    bodies = [[o for part in parts for o in part] for parts in zip(*sections, strict=True)]
    phases = tuple(
        Phase(a, tuple(b))
        for a, b in zip(axes, _once(bodies, axes, {*one.writes(), *other.writes()}), strict=True)
        if b
    )
    return dataclasses.replace(
        one, axes=few.axes, phases=phases, loops=(*one.loops, *other.loops),
        origins=tuple(dict.fromkeys((*one.origins, *other.origins))), spans=tuple(dict.fromkeys((*one.spans, *other.spans))),
    )  # fmt: skip


def _by_points(one: Kernel, other: Kernel) -> tuple[Kernel, Kernel]:
    return (one, other) if _points(one) <= _points(other) else (other, one)


def _ratio(few: Kernel, many: Kernel) -> int | None:
    """How many points of ``many`` each of ``few`` would have, along one axis."""
    if len(few.axes) != len(many.axes):
        return None
    pairs = [(a.size, b.size) for a, b in zip(few.axes, many.axes, strict=True)]
    if not all(size.is_Integer for pair in pairs for size in pair):
        return None
    other = [(int(a), int(b)) for a, b in pairs if a != b]
    if len(other) > 1 or any(b % a or b // a > MOST for a, b in other if a) or not all(a for a, _ in other):
        return None
    return other[0][1] // other[0][0] if other else None  # the same points: fusing has had its say


def _unusual(kernel: Kernel) -> bool:
    """What has an order that merging could change, or stores that other points' loads could meet."""
    return any(o.op in ("scan", "random") for o in kernel.ops()) or bool({*kernel.reads()} & {*kernel.writes()})


def _folded_sizes(kernel: Kernel) -> list[tuple[Expr, ...]]:
    return [tuple(a.size for a in p.axes) for p in kernel.phases if p.axes]


def _points(kernel: Kernel) -> int:
    return math.prod(int(a.size) if a.size.is_Integer else 1 for a in kernel.axes)


def _bytes(graph: Graph, kernel: Kernel) -> int:
    total = 0
    for phase in kernel.phases:
        points = _points(kernel) * math.prod(graph.hint(a.size) for a in phase.axes)
        total += sum(
            points * ITEMSIZE[graph.buffers[o.args[0]].dtype]
            for o in phase.body
            if o.op == "load" and _varies(o, kernel)
        )
    return total


def _varies(op: Op, kernel: Kernel) -> bool:
    """Whether points of the kernel load elements of their own."""
    return not kernel.axes or bool({s.name for s in op.args[1].free_symbols} & {a.name for a in kernel.axes})


def _columns(kernel: Kernel) -> list[tuple[Axis, ...]]:
    """The axes of each of its sections."""
    return [axes for p in kernel.phases if p.axes for axes in ((), p.axes)] + [()]


def _sections(kernel: Kernel) -> list[list[Op]]:
    """What a kernel does before, in and after each of its passes over columns."""
    sections: list[list[Op]] = [[]]
    for phase in kernel.phases:
        if phase.axes:
            sections += [list(phase.body), []]
        else:
            sections[-1] += phase.body
    return sections


def _once(bodies: list[list[Op]], axes: list[tuple[Axis, ...]], written_to: set[str]) -> list[list[Op]]:
    """``bodies`` in which nothing is computed or loaded twice."""
    names: dict[str, str] = {}
    everywhere: dict[object, str] = {}
    out: list[list[Op]] = []
    for body, columns in zip(bodies, axes, strict=True):
        here: dict[object, str] = {}
        kept: list[Op] = []
        for op in body:
            op = changed(op, names, {}) if any(n in names for n in op.operands()) else op
            if op.op != "store" and not (op.op == "load" and op.args[0] in written_to):
                known = everywhere if not columns or op.op == "reduce" else here
                key = (op.op, repr(op.args[0]) if op.op == "const" else op.args, op.dtype)
                earlier = everywhere.get(key) or here.get(key)
                if earlier is not None:
                    names[op.name] = earlier
                    continue
                known[key] = op.name
            kept.append(op)
        out.append(kept)
    return out
