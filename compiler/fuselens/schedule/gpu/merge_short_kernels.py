"""Short kernels that read the same and do not need each other become one: the queries' product by a vector beside that of the keys
and values, which has fewer rows. Points of the larger one are shared out: each of the merged kernel's has several of them.

So do kernels of the same points that write pieces of one buffer: the tables whose rows a model puts side by side. And all kernels of
one point of which no other node has anything: the counters of batch norms, each of which would be a launch.

A kernel of a few microseconds spends as long to start and to end as to read, and the card is idle between two of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from sympy import Expr

from fuselens.ir.affine import linear, substitute
from fuselens.ir.loops import ITEMSIZE, Axis, Extern, Graph, Kernel, Node, Op, Phase, indirect_names
from fuselens.record.report import Decision
from fuselens.schedule.emit import translated
from fuselens.schedule.sites.products import fresh, used, written

MOST = 8  # folds of the merged kernel, and how many times as many points a kernel may have as another
OPS = 512  # of the merged kernel: compilers slow down on longer ones
NEAR = 8  # nodes among which kernels are looked for
FOLDED = 40e-6  # seconds that both take together, up to which one launch less is worth it: where they fold,
POINTS = 0.4e-6  # and where they do not
PIECES = 10e-6  # seconds of the shorter of two that write pieces of one buffer, and
LOADS = 32  # of the merged kernel then, all of which wait for memory at once
FILLED = 4  # programs of a multiprocessor that are left


def merge_short_kernels(graph: Graph) -> Graph:
    """``graph`` with such kernels merged."""
    graph = _with_lone_points_together(graph)
    nodes = list(graph.nodes)
    decisions: list[Decision] = []
    first = 0
    while first < len(nodes):
        node = nodes[first]  # again after each that it was merged with
        for second in range(first + 1, min(first + NEAR, len(nodes))):
            other = nodes[second]
            if not (isinstance(node, Kernel) and isinstance(other, Kernel)):
                continue
            pieces, between = _are_pieces(node, other), nodes[first + 1 : second]
            times = 1 if pieces else _ratio(*_by_points(node, other))
            if times is None or not _independent(graph, other, [node]):
                continue
            up, down = (not _changes(k) and _independent(graph, k, between) for k in (other, node))
            merged = _merged(graph, node, other, times, bool(pieces)) if up or down or not between else None
            if merged is not None:
                nodes[first : second + 1] = [merged, *between] if up or not between else [*between, merged]
                does = f"writes another piece of {pieces[0]}" if pieces else "reads the same and is as short"
                reason = f"{other.name} {does}: one launch does both"
                span = next(iter(merged.spans), None)
                decisions.append(Decision("FL410", "taken", merged.name, reason, span, {"rule": "beside"}))
                break
        else:
            first += 1
    return graph.replace(nodes=tuple(nodes), decisions=(*graph.decisions, *decisions)) if decisions else graph


def _with_lone_points_together(graph: Graph) -> Graph:
    """``graph`` whose kernels of one point are in few kernels, where no other node has what they load or store."""
    if not all(isinstance(n, Extern | Kernel) for n in graph.nodes):
        return graph
    touched = [used(graph, n) for n in graph.nodes if isinstance(n, Extern | Kernel)]
    times = Counter(storage for storages in touched for storage in storages)
    lone = [
        n for n, storages in zip(graph.nodes, touched, strict=True)
        if isinstance(n, Kernel) and _is_a_point(n) and all(times[s] == 1 for s in storages)
    ]  # fmt: skip
    merged: dict[str, Kernel | None] = {}
    decisions: list[Decision] = []
    while len(lone) > 1:
        together = lone.pop(0)
        names = [together.name]
        while lone and _loads(together) + _loads(lone[0]) <= LOADS:
            names.append(lone[0].name)
            together = _together(together, lone.pop(0), 1)
        if len(names) > 1:
            merged |= dict.fromkeys(names) | {names[0]: together}
            reason = f"{len(names)} kernels have one point each: one launch does all"
            decisions.append(Decision("FL410", "taken", names[0], reason, None, {"rule": "points"}))
    kept = [merged.get(n.name, n) for n in graph.nodes]
    nodes = tuple(n for n in kept if n is not None)
    return graph.replace(nodes=nodes, decisions=(*graph.decisions, *decisions)) if decisions else graph


def _is_a_point(kernel: Kernel) -> bool:
    plain = not any(p.axes for p in kernel.phases) and not _changes(kernel) and not _unusual(kernel)
    return plain and all(a.size == 1 for a in kernel.axes)


def _loads(kernel: Kernel) -> int:
    return sum(o.op == "load" for o in kernel.ops())


def _independent(graph: Graph, kernel: Kernel, others: list[Node]) -> bool:
    """Whether a kernel could run before or after all of these."""
    uses, writes = used(graph, kernel), written(graph, kernel)
    for node in others:
        if not isinstance(node, Extern | Kernel):
            return False
        met = (uses & written(graph, node)) | (writes & used(graph, node))
        if met and not (isinstance(node, Kernel) and met <= set(_shared(kernel, node))):
            return False
    return True


def _are_pieces(one: Node, other: Node) -> list[str]:
    """The buffers of which both kernels write pieces, where they have the same points and nothing but points; else none."""
    if not (isinstance(one, Kernel) and isinstance(other, Kernel)):
        return []
    if any(p.axes for k in (one, other) for p in k.phases) or _changes(one) or _changes(other):
        return []
    return _shared(one, other)


def _shared(one: Kernel, other: Kernel) -> list[str]:
    """The buffers that both kernels write, and only write, at places of their own."""
    found = {*one.writes()} & {*other.writes()} - {*one.reads(), *other.reads()}
    if not found or [a.size for a in one.axes] != [a.size for a in other.axes]:
        return []
    stores = [[o for o in k.ops() if o.op == "store"] for k in (one, other)]
    mapping = {b.name: a.symbol for a, b in zip(one.axes, other.axes, strict=True)}
    return [
        name for name in sorted(found)
        if all(
            _are_apart(a.args[1], substitute(b.args[1], mapping), one.axes)
            for a in stores[0] for b in stores[1] if a.args[0] == b.args[0] == name
        )
    ]  # fmt: skip


def _are_apart(one: Expr, other: Expr, axes: tuple[Axis, ...]) -> bool:
    """Whether two places never meet, whatever points of ``axes`` they belong to: they differ by more than the points of the
    small strides reach, and by less than the next stride, of which the others are multiples."""
    names = frozenset(a.name for a in axes)
    if indirect_names(one) or indirect_names(other):  # values of two kernels, which may have one name
        return False
    a, b = linear(one, names), linear(other, names)
    if a is None or b is None or a.terms != b.terms or not (distance := a.constant - b.constant).is_Integer:
        return False
    strides = [(int(abs(c)), axis.size) for axis in axes if (c := a.coefficient(axis.name)).is_Integer and c != 0]
    if len(strides) != len(a.terms) or not all(size.is_Integer for _, size in strides):
        return False
    gap, reach = abs(int(distance)), 0
    strides.sort()
    for k, (stride, size) in enumerate(strides):
        if reach < gap < stride - reach and not any(c % stride for c, _ in strides[k:]):
            return True
        reach += stride * (int(size) - 1)
    return reach < gap


def _changes(kernel: Kernel) -> bool:
    """Whether it changes elements, which it does in place where it is, and may not elsewhere."""
    return any(o.update for o in kernel.ops())


def _merged(graph: Graph, one: Kernel, other: Kernel, times: int, pieces: bool) -> Kernel | None:
    few, many = _by_points(one, other)
    worth = _is_worth_a_piece(graph, one, other) if pieces else _is_worth_it(graph, few, many, times)
    if not worth or not (pieces or _read_alike(one, other)) or _unusual(one) or _unusual(other):
        return None
    return _together(one, other, times)


def _together(one: Kernel, other: Kernel, times: int) -> Kernel:
    """One kernel that does what both do; the one with more points ``times`` over."""
    few, many = _by_points(one, other)
    axes = _columns(few)
    bodies = _once(_joined(few, many, times), axes, {*one.writes(), *other.writes()})
    phases = tuple(Phase(a, tuple(b)) for a, b in zip(axes, bodies, strict=True) if b)
    return dataclasses.replace(
        one, axes=few.axes, phases=phases, loops=(*one.loops, *other.loops),
        origins=tuple(dict.fromkeys((*one.origins, *other.origins))), spans=tuple(dict.fromkeys((*one.spans, *other.spans))),
    )  # fmt: skip


def _read_alike(one: Kernel, other: Kernel) -> bool:
    """Whether they read the same and pass over the same columns."""
    return bool(set(one.reads()) & set(other.reads())) and _folded_sizes(one) == _folded_sizes(other)


def _is_worth_a_piece(graph: Graph, one: Kernel, other: Kernel) -> bool:
    ops = [*one.ops(), *other.ops()]
    if len(ops) > OPS or _loads(one) + _loads(other) > LOADS:
        return False
    return min(_loaded_bytes(graph, k) for k in (one, other)) <= PIECES * graph.card.bandwidth


def _is_worth_it(graph: Graph, few: Kernel, many: Kernel, times: int) -> bool:
    """Whether one launch less saves more than a longer kernel of fewer programs costs."""
    folds, others = (sum(o.op == "reduce" for o in k.ops()) for k in (few, many))
    if bool(folds) != bool(others) or folds + times * others > MOST:
        return False
    if len([*few.ops()]) + times * len([*many.ops()]) > OPS:
        return False
    seconds = (_loaded_bytes(graph, few) + _loaded_bytes(graph, many)) / graph.card.bandwidth
    if folds:
        return seconds <= FOLDED and _points(few) >= FILLED * graph.card.processors
    return seconds <= POINTS


def _joined(few: Kernel, many: Kernel, times: int) -> list[list[Op]]:
    """The ops of each section: those of ``few``, then of ``many``, ``times`` over, each for other points."""
    bodies, axes = _sections(few), _columns(few)
    taken = {o.name for o in few.ops()} | {a.name for k in (few, many) for a in k.all_axes()}
    for k in range(times):
        names = {o.name: fresh(o.name, taken) for o in many.ops()}
        points: dict[str, Expr] = {}
        for mine, theirs in zip(few.axes, many.axes, strict=True):
            points[theirs.name] = mine.symbol + (k * mine.size if mine.size != theirs.size else 0)
        for body, added, mine, theirs in zip(bodies, _sections(many), axes, _columns(many), strict=True):
            mapping = points | {b.name: a.symbol for a, b in zip(mine, theirs, strict=True)}
            body += [translated(o, mapping, names) for o in added]
    return bodies


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


def _loaded_bytes(graph: Graph, kernel: Kernel) -> int:
    """Bytes that points load of their own: what short kernels spend their time on. What all points load comes from a cache, and
    results are few. So it is less than ``codegen.traffic`` counts."""
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
            op = op.renamed(names)
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
