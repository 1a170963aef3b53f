"""Order of execution and memory: nodes run so that little is alive at once, and dead buffers' memory is taken over.

Ordering is greedy: of the nodes whose operands are ready, the one that frees most (or allocates least) runs next; the
order that came in is kept where it is no worse. Then every buffer that a kernel writes first takes over the memory of
a dead intermediate of its size, or of one that the same kernel reads for the last time at the same index (in place).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from sympy import Expr

from fuselens.ir.affine import integer_value, substitute
from fuselens.ir.loops import ITEMSIZE, Buffer, Extern, Graph, Kernel, Node, extern_reads, phases_of, symbol
from fuselens.report import Decision


def order(graph: Graph) -> Graph:
    """The graph reordered, with ``reuse`` filled in and a decision FL412 that states the peak."""
    uses = [_Use.of(graph, node) for node in graph.nodes]
    sizes = {n: _bytes(graph, b) for n, b in graph.buffers.items() if not b.storage}
    kept = _kept(graph)
    before = list(range(len(uses)))
    positions = _greedy(uses, sizes, kept)
    if _peak(uses, positions, sizes, kept) >= _peak(uses, before, sizes, kept):
        positions = before
    uses = [uses[p] for p in positions]
    graph = graph.replace(nodes=tuple(graph.nodes[p] for p in positions))
    reuse = _reuse(graph, uses, sizes, kept)
    peak = _peak(uses, range(len(uses)), sizes, kept)
    held = sum(sizes[s] for u in uses for s in u.makes if s not in reuse)
    decision = Decision(
        "FL412", "planned", graph.name, f"intermediates take {held} bytes; {len(reuse)} buffers take over dead memory",
        None, {"peak_bytes": peak, "allocated_bytes": held, "reused": len(reuse)},
    )  # fmt: skip
    return graph.replace(reuse=reuse, decisions=(*graph.decisions, decision))


@dataclass(slots=True)
class _Use:
    """Storages that a node reads and writes; ``makes``: those it is the first to write (filled by position)."""

    node: Node
    reads: frozenset[str]
    writes: frozenset[str]
    mutates: frozenset[str]
    serial: bool = False  # keeps its place among others of its kind: random numbers, mutation
    makes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph, node: Node) -> _Use:
        if isinstance(node, Extern):
            owner = {n: graph.buffers[n].owner for n in (*extern_reads(node), *node.outputs, *node.mutates) if n}
            mutates = frozenset(owner[n] for n in node.mutates)
            reads = frozenset(owner[n] for n in extern_reads(node))
            writes = frozenset(owner[n] for n in node.outputs if n)
            return cls(node, reads, writes, mutates, bool(mutates) or _random(node.target))
        ops = [o for p in phases_of(node) for o in p.body]
        return cls(
            node,
            frozenset(o.args[0] for o in ops if o.op == "load"),
            frozenset(o.args[0] for o in ops if o.op == "store"),
            frozenset(),
        )


def _overload(target: str) -> Any:
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def _random(target: str) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(_overload(target), "tags", ())


def _aliases(target: str) -> bool:
    """Whether the operator may return memory of its arguments."""
    schema = getattr(_overload(target), "_schema", None)
    return schema is None or any(r.alias_info is not None for r in schema.returns)


def _bytes(graph: Graph, buffer: Buffer) -> int:
    return ITEMSIZE[buffer.dtype] * integer_value(_extent(buffer), graph.hints)


def _extent(buffer: Buffer) -> Expr:
    total = buffer.offset + 1
    for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
        total = total + (size - 1) * stride
    return total


def _kept(graph: Graph) -> set[str]:
    """Storages that outlive the graph: inputs, constants, outputs."""
    kept = {*graph.inputs, *graph.constants}
    return kept | {graph.buffers[o].owner for o in graph.outputs if isinstance(o, str)}


# --- order -----------------------------------------------------------------------------------------------------


def _dependencies(uses: list[_Use]) -> list[set[int]]:
    """For each node the nodes before it that must stay before it."""
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    last_serial = -1
    out: list[set[int]] = []
    for position, use in enumerate(uses):
        deps = {w for s in (*use.reads, *use.mutates) for w in writers.get(s, ())}
        deps |= {r for s in use.mutates for r in readers.get(s, ())}
        if use.serial:
            if last_serial >= 0:
                deps.add(last_serial)
            last_serial = position
        for storage in use.reads:
            readers.setdefault(storage, []).append(position)
        for storage in (*use.writes, *use.mutates):
            writers.setdefault(storage, []).append(position)
        deps.discard(position)
        out.append(deps)
    return out


def _greedy(uses: list[_Use], sizes: dict[str, int], kept: set[str]) -> list[int]:
    dependencies = _dependencies(uses)
    waiting = [len(d) for d in dependencies]
    followers: list[list[int]] = [[] for _ in uses]
    for position, deps in enumerate(dependencies):
        for dep in deps:
            followers[dep].append(position)
    touching: dict[str, set[int]] = {}
    for position, use in enumerate(uses):
        for storage in use.reads | use.writes:
            touching.setdefault(storage, set()).add(position)
    alive: set[str] = set()
    done: set[int] = set()
    heap: list[tuple[int, int]] = []

    def change(position: int) -> int:
        use = uses[position]
        made = sum(sizes[s] for s in use.writes if s not in alive and s not in kept)
        freed = sum(sizes[s] for s in use.reads | use.writes if s not in kept and touching[s] == {position})
        return made - freed

    def push(positions: Iterable[int]) -> None:
        for p in positions:
            heapq.heappush(heap, (change(p), p))

    push(p for p, count in enumerate(waiting) if count == 0)
    result: list[int] = []
    while heap:
        _, position = heapq.heappop(heap)
        if position in done:
            continue
        done.add(position)
        result.append(position)
        use = uses[position]
        alive |= use.writes
        for storage in use.reads | use.writes:
            touching[storage].discard(position)
            if len(touching[storage]) == 1:
                (only,) = touching[storage]
                if waiting[only] == 0:
                    push([only])
        for follower in followers[position]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                push([follower])
    return result


def _peak(uses: list[_Use], positions: Iterable[int], sizes: dict[str, int], kept: set[str]) -> int:
    """The most bytes of intermediates alive at once, without taking over memory."""
    sequence = [uses[p] for p in positions]
    last = {s: k for k, use in enumerate(sequence) for s in use.reads | use.writes}
    alive: set[str] = set()
    now = peak = 0
    for k, use in enumerate(sequence):
        for storage in use.writes - alive - kept:
            alive.add(storage)
            now += sizes[storage]
        peak = max(peak, now)
        for storage in (use.reads | use.writes) & alive:
            if last[storage] == k:
                alive.discard(storage)
                now -= sizes[storage]
    return peak


# --- memory ----------------------------------------------------------------------------------------------------


def _reuse(graph: Graph, uses: list[_Use], sizes: dict[str, int], kept: set[str]) -> dict[str, str]:
    last = {s: k for k, use in enumerate(uses) for s in use.reads | use.writes}
    pinned = set(kept)
    for use in uses:
        if isinstance(use.node, Extern) and _aliases(use.node.target):
            pinned |= use.reads | use.writes
    free: dict[tuple[Any, ...], list[str]] = {}
    reuse: dict[str, str] = {}
    seen: set[str] = set()
    for k, use in enumerate(uses):
        made = sorted(use.writes - seen - set(graph.inputs) - set(graph.constants))
        use.makes = made
        seen.update(made)
        dying = {s for s in use.reads if last[s] == k and s not in pinned and s in seen and s not in use.writes}
        if isinstance(use.node, Kernel):
            for storage in made:
                if storage not in pinned:
                    _take(graph, use.node, storage, free, dying, reuse)
        for storage in sorted(dying):
            free.setdefault(_class(graph, storage), []).append(storage)
        for storage in made:
            if last[storage] == k and storage not in pinned:
                free.setdefault(_class(graph, storage), []).append(storage)
    return reuse


def _class(graph: Graph, storage: str) -> tuple[Any, ...]:
    """Buffers of one class have the same number of bytes, whatever the sizes."""
    buffer = graph.buffers[storage]
    return buffer.device, ITEMSIZE[buffer.dtype] * _extent(buffer)


def _take(
    graph: Graph, kernel: Kernel, storage: str, free: dict[tuple[Any, ...], list[str]], dying: set[str],
    reuse: dict[str, str],
) -> None:  # fmt: skip
    wanted = _class(graph, storage)
    for old in sorted(dying):
        if _class(graph, old) == wanted and _in_place(graph, kernel, old, storage):
            dying.discard(old)
            reuse[storage] = old
            return
    pool = free.get(wanted)
    if pool:
        reuse[storage] = pool.pop()


def _in_place(graph: Graph, kernel: Kernel, old: str, new: str) -> bool:
    """Whether every element of ``old`` is read where, and before, the same element of ``new`` is written."""
    if ITEMSIZE[graph.buffers[old].dtype] != ITEMSIZE[graph.buffers[new].dtype]:
        return False
    index: Expr | None = None
    written = False
    for phase in kernel.phases:
        rename = {a.name: symbol(f"_r{k}") for k, a in enumerate(phase.axes)}
        for op in phase.body:
            if op.op in ("load", "store") and op.args[0] in (old, new):
                at = substitute(op.args[1], rename)
                if index is not None and at != index:
                    return False
                index = at
                if op.op == "load" and op.args[0] == old and written:
                    return False
                written = written or op.op == "store"
    return written
