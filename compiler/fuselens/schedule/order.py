"""Order of execution and memory: nodes run so that little is alive at once, and dead buffers' memory is taken over.

Ordering is greedy: of the nodes whose operands are ready, the one that frees most (or allocates least) runs next; the
order that came in is kept where it is no worse. Then every buffer that a kernel writes first takes over the memory of
a dead intermediate of its size, or of one that the same kernel reads for the last time at the same index (in place).
A result, which is a tensor of its own, is written in place of another tensor: what an operator has made, or of any memory of a GPU.

New values of inputs take over the inputs' memory where whatever reads the old value can run before, or reads it at
the same index; elsewhere a kernel at the end copies them. Nothing that may raise runs after a write to an input, so a
graph that raises has written nothing.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from sympy import Expr

from fuselens import torch_private
from fuselens.ir.affine import integer_value, substitute
from fuselens.ir.loops import (
    ITEMSIZE,
    Attention,
    Buffer,
    Extern,
    Graph,
    Kernel,
    Node,
    element,
    extern_reads,
    may_fail,
    phases_of,
    symbol,
)
from fuselens.ir.verify import lies_in_tensor
from fuselens.record.report import Decision
from fuselens.schedule import overlap
from fuselens.schedule.launches import changed, copy, in_place, is_launch, may_take_over
from fuselens.schedule.updates import checks_of, computation, copies_whole, only_updates


def order(graph: Graph, donated: Iterable[str] = ()) -> Graph:
    """The graph reordered, with ``reuse`` filled in, and decisions: FL412 states the peak, FL413 tells of each write, FL418
    of each collective.

    ``donated`` are inputs that the call may overwrite when they were read."""
    graph = overlap.cut(graph)
    uses = [_Use.of(graph, node) for node in graph.nodes]
    sizes = {n: _bytes(graph, b) for n, b in graph.buffers.items() if not b.storage}
    dependencies = _dependencies(uses)
    communicates = any(overlap.starts(u.node) for u in uses)
    if communicates:
        overlap.keep_order(graph.nodes, (p for p, u in enumerate(uses) if may_raise(u.node)), dependencies)
    writes = _Writes(graph, uses, sizes, dependencies)
    writes.decide()
    graph = writes.graph
    uses += [_Use.of(graph, node) for node in graph.nodes[len(uses) :]]
    results = {graph.buffers[o].owner for o in graph.results()}
    free = {n for n in donated if n in sizes and n not in results and n not in graph.writes}
    kept = _kept(graph) - free
    before = _in_order(dependencies)
    positions = _greedy(uses, sizes, kept, dependencies)
    if _peak(uses, positions, sizes, kept) >= _peak(uses, before, sizes, kept):
        positions = before
    if communicates:
        apart = overlap.overlapped([u.node for u in uses], positions, dependencies)
        if overlap.is_worth(_peak(uses, apart, sizes, kept), _peak(uses, positions, sizes, kept)):
            positions = apart
    uses = _without_repeated_checks([uses[p] for p in positions])
    if communicates:
        graph = graph.replace(nodes=tuple(overlap.joined(u.node for u in uses)))
        uses = [_Use.of(graph, node) for node in graph.nodes]
    else:
        graph = graph.replace(nodes=tuple(u.node for u in uses))
    reuse = writes.reuse | _reuse(graph, uses, kept, free)
    graph = graph.replace(donated=tuple(n for n in graph.inputs if n in free))
    peak = _peak(uses, range(len(uses)), sizes, kept | free)
    held = sum(sizes[s] for u in uses for s in u.makes if s not in reuse)
    decision = Decision(
        "FL412", "planned", graph.name, f"intermediates take {held} bytes; {len(reuse)} buffers take over dead memory",
        None, {"peak_bytes": peak, "allocated_bytes": held, "reused": len(reuse)},
    )  # fmt: skip
    decisions = *graph.decisions, decision, *writes.decisions, *overlap.told(graph.nodes, sizes)
    return in_place(graph.replace(reuse=reuse, decisions=decisions))


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
            serial = not overlap.finishes(node) and (bool(mutates) or _random(node.target))
            return cls(node, reads, writes, mutates, serial)
        ops = [o for p in phases_of(node) for o in p.body]
        return cls(
            node,
            frozenset(o.args[0] for o in ops if o.op == "load" or o.update),
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


def _bytes(graph: Graph, buffer: Buffer) -> int:
    return storage_bytes(buffer, graph.hints)


def _extent(buffer: Buffer) -> Expr:
    if sympy.S.Zero in buffer.sizes:
        return sympy.S.Zero
    total = buffer.offset + 1
    for size, stride in zip(buffer.sizes, buffer.strides, strict=True):
        total = total + (size - 1) * stride
    return total


def _kept(graph: Graph) -> set[str]:
    """Storages that outlive the graph: inputs, constants, results."""
    kept = {*graph.inputs, *graph.constants}
    return kept | {graph.buffers[o].owner for o in graph.results()}


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


def _in_order(dependencies: list[set[int]]) -> list[int]:
    """Positions as they are, but for those that must wait for a later one."""
    waiting = [len(d) for d in dependencies]
    followers = _followers(dependencies)
    ready = [p for p, count in enumerate(waiting) if count == 0]
    result: list[int] = []
    while ready:
        position = heapq.heappop(ready)
        result.append(position)
        for follower in followers[position]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(ready, follower)
    return result


def _followers(dependencies: list[set[int]]) -> list[list[int]]:
    followers: list[list[int]] = [[] for _ in dependencies]
    for position, deps in enumerate(dependencies):
        for dep in deps:
            followers[dep].append(position)
    return followers


def _greedy(uses: list[_Use], sizes: dict[str, int], kept: set[str], dependencies: list[set[int]]) -> list[int]:
    waiting = [len(d) for d in dependencies]
    followers = _followers(dependencies)
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
    """The most bytes of intermediates, and of donated inputs, alive at once, without taking over memory."""
    sequence = [uses[p] for p in positions]
    last = {s: k for k, use in enumerate(sequence) for s in use.reads | use.writes}
    alive = last.keys() - kept - {s for use in sequence for s in use.writes}
    now = peak = sum(sizes[s] for s in alive)
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


# --- new values of inputs --------------------------------------------------------------------------------------

# Operators that, given what was traced, return: they check no values.
_RETURNING = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution", "convolution_backward",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "sort", "topk", "rand", "rand_like", "randn", "randn_like",
    "native_dropout", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward", "_flash_attention_forward", "_flash_attention_backward",
    "_efficient_attention_forward", "_efficient_attention_backward", "_cudnn_attention_forward",
    "_cudnn_attention_backward", "_linear_pointwise",
    "_convolution_pointwise", "_convolution_transpose_pointwise", "attention",
})  # fmt: skip


def may_raise(node: Node) -> bool:
    """Whether the node may refuse the values that it is given: an index out of range, an integer division by zero."""
    if isinstance(node, Attention):
        return may_fail(node.body)
    if isinstance(node, Extern):
        return node.target.split(".")[1] not in _RETURNING and not is_launch(node)
    return any(may_fail(p.body) for p in phases_of(node))


class _Writes:
    """Decides for each input that is given a new value whether the kernel that computes it writes it in place.

    ``graph`` is the graph with kernels added that copy the others, ``reuse`` the memory that is taken over. Edges are
    added to ``dependencies``, so that readers of an old value run before it is overwritten.
    """

    def __init__(self, graph: Graph, uses: list[_Use], sizes: dict[str, int], dependencies: list[set[int]]) -> None:
        self.graph = graph
        self.uses = uses
        self.sizes = sizes
        self.dependencies = dependencies
        self.reuse: dict[str, str] = {}
        self.decisions: list[Decision] = []
        self.outputs = {graph.buffers[o].owner for o in graph.outputs if isinstance(o, str)}
        self.raising = {p for p, u in enumerate(uses) if may_raise(u.node)} if graph.writes else set()

    def decide(self) -> None:
        graph = self.graph
        if not graph.writes:
            return
        self.followers = [set(f) for f in _followers(self.dependencies)]
        self.readers: dict[str, set[int]] = {}
        self.writers: dict[str, list[int]] = {}
        for position, use in enumerate(self.uses):
            for storage in use.reads:
                self.readers.setdefault(storage, set()).add(position)
            for storage in use.writes | use.mutates:
                self.writers.setdefault(storage, []).append(position)
        copies: list[Kernel] = []
        left: dict[str, str] = {}
        names = (f"write{k}" for k in itertools.count())
        rules: dict[str, str] = {}
        # the last first: where its positions are checked early, nothing raises any more after those before it
        for written, value in reversed(list(graph.writes.items())):
            rules[written] = self._refused(written, value)
            if not rules[written]:
                self.reuse[value] = written
        for written, value in graph.writes.items():
            rule = rules[written]
            saved = self.sizes[written]
            if rule:
                copies.append(copy(graph, next(names), value, written))
                text = f"its new value is copied to it at the end: {rule}"
                self.decisions.append(Decision("FL413", "refused", written, text, None, {"bytes": 2 * saved}))
            else:
                left[written] = value
                text = "its new value is computed in its memory"
                self.decisions.append(Decision("FL413", "taken", written, text, None, {"bytes_saved": 2 * saved}))
        for kernel in copies:
            (source,), (target,) = kernel.reads(), kernel.writes()
            self.dependencies.append(self.raising | self.readers.get(target, set()) | set(self.writers.get(source, ())))
        nodes = (u.node for u in self.uses)
        self.graph = graph.replace(nodes=(*nodes, *copies), writes=left)

    def _checked(self, written: str, value: str) -> Kernel | None:
        """Where the new value is a copy of which the next kernel changes a few elements: a kernel that checks their
        positions. In the copy's place it lets the changes be made to the input itself."""
        makers = self.writers.get(value, [])
        if len(makers) != 2:
            return None
        copy, update = (self.uses[m].node for m in makers)
        if not isinstance(copy, Kernel) or not isinstance(update, Kernel):
            return None
        whole = copies_whole(copy, written, value) and only_updates(update, value)
        return checks_of(update, copy.name) if whole and written not in self.uses[makers[1]].reads else None

    def _replace(self, position: int, check: Kernel, written: str, value: str) -> None:
        """Puts the check of positions in the place of the copy."""
        use = self.uses[position] = _Use.of(self.graph, check)
        self.readers[written].discard(position)
        for storage in use.reads:
            self.readers.setdefault(storage, set()).add(position)
            for maker in self.writers.get(storage, ()):
                self.followers[maker].add(position)
        self.dependencies[position] = {w for s in use.reads for w in self.writers.get(s, ())}
        update = self.writers[value].pop()
        self.writers[value] = [update]
        self.raising = (self.raising | {position}) - {update}

    def _refused(self, written: str, value: str) -> str:
        """The rule that keeps the new value from taking over its input's memory; "" when it may."""
        graph = self.graph
        old, new = graph.buffers[written], graph.buffers[value]
        if new.storage or (old.sizes, old.strides, old.offset) != (new.sizes, new.strides, new.offset):
            return "it is laid out in another way"
        if value in graph.inputs or value in graph.constants:
            return "it is another tensor's value"
        if value in self.outputs or value in self.reuse:
            return "it is used outside of the graph as well"
        makers = self.writers.get(value, [])
        check = self._checked(written, value)
        if len(makers) != 1 and check is None:
            return "it is computed by several kernels"
        maker, copies = makers[-1], set(makers[:-1])
        node = self.uses[maker].node
        if not isinstance(node, Kernel) and not is_launch(node):
            return "an operator of ATen computes it"
        if maker in self.raising and check is None:
            return "the kernel that computes it may raise"
        if isinstance(node, Extern) and written not in self.uses[maker].reads:
            return "a kernel of the program computes it elsewhere"
        if written in self.uses[maker].reads and not _at_its_place(graph, node, written, value):
            return "the old value is read elsewhere by the kernel that computes it"
        readers = self.readers.get(written, set()) - copies
        if any(
            isinstance(n := self.uses[p].node, Extern) and not torch_private.makes_new(_overload(n.target))
            for p in readers
        ):
            return "an operator of ATen may return its memory"
        before = (readers | self.raising | copies) - {maker}
        if self._reaches(maker, before):
            return "something that comes after it reads the old value or may raise"
        for position in copies:
            assert check is not None
            self._replace(position, check, written, value)
        self.dependencies[maker] |= before
        for position in before:
            self.followers[position].add(maker)
        return ""

    def _reaches(self, start: int, targets: set[int]) -> bool:
        if not targets:
            return False
        work, seen = [start], {start}
        while work:
            for follower in self.followers[work.pop()]:
                if follower in targets:
                    return True
                if follower not in seen:
                    seen.add(follower)
                    work.append(follower)
        return False


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """When the program of an ordered graph allocates and frees: for each node the storages whose memory it is the first to use,
    and those whose memory nothing uses after it, inputs among them. ``roots`` tells in whose memory a buffer lies."""

    roots: dict[str, str]
    steps: tuple[tuple[Node, tuple[str, ...], tuple[str, ...]], ...]

    @classmethod
    def of(cls, graph: Graph) -> Lifetimes:
        roots = graph.roots()
        given = {*graph.inputs, *graph.constants}
        results = {roots[o] for o in graph.results() if o in roots}
        used = [
            {roots[s]: None for s in sorted(u.reads | u.writes | u.mutates)}
            for u in (_Use.of(graph, n) for n in graph.nodes)
        ]
        last = {root: k for k, names in enumerate(used) for root in names}
        steps, there = [], set(given)
        for k, (node, names) in enumerate(zip(graph.nodes, used, strict=True)):
            made = tuple(root for root in names if root not in there)
            there.update(made)
            steps.append((node, made, tuple(root for root in names if last[root] == k and root not in results)))
        return cls(roots, tuple(steps))


def storage_bytes(buffer: Buffer, sizes: Mapping[str, int]) -> int:
    """The memory of a buffer that owns some, for the values of size symbols."""
    return ITEMSIZE[buffer.dtype] * integer_value(_extent(buffer), sizes)


def live_bytes(graph: Graph) -> list[int]:
    """For each node of an ordered graph the bytes that the graph holds while it runs, inputs and constants left out."""
    alive: dict[str, int] = {}
    found: list[int] = []
    for _, made, dead in Lifetimes.of(graph).steps:
        alive |= {root: storage_bytes(graph.buffers[root], graph.hints) for root in made}
        found.append(sum(alive.values()))
        for root in dead:
            alive.pop(root, None)
    return found


def _without_repeated_checks(uses: list[_Use]) -> list[_Use]:
    """All but kernels that write nothing and check what one before them has checked."""
    made = {s for use in uses for s in use.writes | use.mutates}
    seen: set[Any] = set()
    kept: list[_Use] = []
    for use in uses:
        if isinstance(use.node, Kernel) and not use.writes and made.isdisjoint(use.reads):
            checked = computation(use.node)
            if checked in seen:
                continue
            seen.add(checked)
        kept.append(use)
    return kept


# --- memory ----------------------------------------------------------------------------------------------------


def _reuse(graph: Graph, uses: list[_Use], kept: set[str], donated: set[str]) -> dict[str, str]:
    last = {s: k for k, use in enumerate(uses) for s in use.reads | use.writes}
    shared: set[str] = set()
    for use in uses:
        if overlap.finishes(use.node):
            continue
        if isinstance(use.node, Extern) and not torch_private.makes_new(_overload(use.node.target)):
            shared |= use.reads | use.writes
    pinned = kept | shared
    results = kept.difference(graph.inputs, graph.constants, shared, graph.writes.values())
    makers = {s: use.node for use in reversed(uses) for s in use.writes}
    free: dict[tuple[Any, ...], list[str]] = {}
    reuse: dict[str, str] = {}
    seen = set(donated)
    for k, use in enumerate(uses):
        made = sorted(use.writes - seen - set(graph.inputs) - set(graph.constants))
        use.makes = made
        seen.update(made)
        dying = {s for s in use.reads if last[s] == k and s not in pinned and s in seen and s not in use.writes}
        if isinstance(use.node, Kernel):
            for storage in made:
                if storage not in pinned:
                    _take(graph, use.node, storage, free, dying, reuse)
                elif storage in results:
                    tensors = {s for s in dying if lies_in_tensor(graph, s, reuse, makers)}
                    _take(graph, use.node, storage, {}, tensors, reuse)
                    dying.discard(reuse.get(storage, ""))
        elif is_launch(use.node):
            _change(graph, use.node, results, dying, reuse, makers)
        for storage in sorted(dying - donated):
            free.setdefault(_class(graph, storage), []).append(storage)
        for storage in made:
            if last[storage] == k and storage not in pinned:
                free.setdefault(_class(graph, storage), []).append(storage)
    return reuse


def _change(
    graph: Graph, node: Node, results: set[str], dying: set[str], reuse: dict[str, str], makers: Mapping[str, Node]
) -> None:
    """What a kernel of the program changes takes over the memory that it had before, where nothing reads that any more."""
    assert isinstance(node, Extern)
    for old, new in changed(node):
        mine = old in dying and new not in reuse and may_take_over(graph, node, old, new)
        if mine and (new not in results or (old not in graph.inputs and lies_in_tensor(graph, old, reuse, makers))):
            dying.discard(old)
            reuse[new] = old


def _class(graph: Graph, storage: str) -> tuple[Any, ...]:
    """Buffers of one class have the same number of bytes, whatever the sizes."""
    buffer = graph.buffers[storage]
    return buffer.device, ITEMSIZE[buffer.dtype] * _extent(buffer)


def _take(
    graph: Graph, kernel: Kernel, storage: str, free: dict[tuple[Any, ...], list[str]], dying: set[str],
    reuse: dict[str, str],
) -> None:  # fmt: skip
    wanted = _class(graph, storage)
    for old in sorted(dying, key=lambda s: (s in graph.inputs, s)):
        if _class(graph, old) == wanted and _in_place(graph, kernel, old, storage):
            dying.discard(old)
            reuse[storage] = old
            return
    pool = free.get(wanted)
    if pool:
        reuse[storage] = pool.pop()


def _at_its_place(graph: Graph, node: Node, old: str, new: str) -> bool:
    """Whether a node that computes ``new`` may write it where ``old`` is, which it reads."""
    if isinstance(node, Kernel):
        return _in_place(graph, node, old, new)
    return isinstance(node, Extern) and may_take_over(graph, node, old, new)


def _in_place(graph: Graph, kernel: Kernel, old: str, new: str) -> bool:
    """Whether every element of ``old`` is read where, and before, the same element of ``new`` is written."""
    if len({ITEMSIZE[element(graph.buffers[s].dtype)] for s in (old, new)}) > 1:
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
