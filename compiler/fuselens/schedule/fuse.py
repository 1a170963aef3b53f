"""Fusion: loops become kernels. What is legal follows from memory accesses, what is worth it from bytes saved.

1. Cheap producers are inlined into their readers (``inline``).
2. Loops are visited in order. Each tries to merge with the groups it reads from and with recent groups that read the
   same memory, most bytes saved first. Merging needs corresponding points (``groups``) and no path between the two
   through a third node.
3. Buffers that only loops of other groups read are computed again there when that moves fewer bytes than storing.
4. Each group is written as a kernel (``kernels``); what nobody outside reads is not stored.

Every merge taken is a decision FL410, every one refused FL411, with the rule and the bytes at stake. Work per loop is
bounded, so time grows linearly with the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import sympy

from fuselens.ir.affine import integer_value, symbol_names
from fuselens.ir.card import KERNEL_BYTES
from fuselens.ir.loops import Buffer, Extern, Graph, Kernel, Loop, Node, extern_reads, indirect_names, most_places
from fuselens.record.report import Decision, Span
from fuselens.schedule.groups import RECOMPUTE, Group, Refused, merged, single
from fuselens.schedule.inline import fixed_storages, inline, needed, solved, with_inlined
from fuselens.schedule.items import Item, analyse, bytes_of, repetitions
from fuselens.schedule.kernels import Plan, Unbuildable, build
from fuselens.schedule.names import named

NEIGHBOURS = 3  # groups tried for each storage that is read
CANDIDATES = 8  # groups tried for each loop
SMALL = 8  # a buffer this many times smaller than another is stored for its sake
EVEN = 1.125  # traffic of recomputing against storing that still counts as even: recomputing lets readers meet
WINDOW = 8  # places of one storage that a point reads, which are many in common with its neighbours
LIMIT = "limit"  # the rule of fusions that were left out because no more were asked for
SEARCH = 400  # groups looked at when proving that a merge makes no cycle


def fuse(graph: Graph, most: int | None = None) -> Graph:
    """The graph with its loops fused into kernels. ``most`` fusions are made, where it is given: inlining counts as one, and so
    does each merge and each buffer that is not stored."""
    decisions: list[Decision] = []
    if most != 0:
        graph, decisions = inline(graph)
    left = math.inf if most is None else most - 1
    fusion, plan = _grouped(graph, left)
    again = list(_recompute(graph, fusion, plan))
    if again:
        # readers now compute those values themselves: they may meet other groups, so grouping starts over
        graph = _spread(graph, fusion, plan)
        fusion, plan = _grouped(graph, left)
        again += _recompute(graph, fusion, plan)
    nodes, refused = _kernels(fusion, plan)
    fused = graph.replace(
        nodes=nodes,
        buffers=_used_buffers(graph, nodes),
        decisions=(*graph.decisions, *decisions, *fusion.decisions.values(), *again, *refused),
    )
    return named(fused)


@dataclass(slots=True)
class _Fusion:
    graph: Graph
    left: float  # how many merges are still made
    groups: dict[int, Group] = field(default_factory=dict)  # by number; externs have groups without members
    parent: dict[int, int] = field(default_factory=dict)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)  # first and last position of each group
    writers: dict[str, list[int]] = field(default_factory=dict)
    touched: dict[str, list[int]] = field(default_factory=dict)  # storage → recent readers
    reductions: dict[str, list[Item]] = field(default_factory=dict)  # storage → reductions that read it
    items: dict[str, Item] = field(default_factory=dict)
    readers: dict[str, set[int]] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    wide: dict[int, tuple[int, int]] = field(default_factory=dict)  # spans of merged groups, by their ends

    def run(self) -> None:
        self.fixed = fixed_storages(self.graph)
        for position, node in enumerate(self.graph.nodes):
            if isinstance(node, Loop):
                item = analyse(self.graph, node, position)
                self.items[item.storage] = item
                for storage in {o.args[0] for o in item.loads}:
                    self.readers.setdefault(storage, set()).add(position)
                    if item.reduction:
                        self.reductions.setdefault(storage, []).append(item)
        analysed = {i.position: i for i in self._all_items()}
        for position, node in enumerate(self.graph.nodes):
            self.parent[position] = position
            self.spans[position] = (position, position)
            if isinstance(node, Loop):
                self._visit(analysed[position])
            elif isinstance(node, Extern):
                self._visit_extern(position, node)

    def _all_items(self) -> Iterator[Item]:
        for position, node in enumerate(self.graph.nodes):
            if isinstance(node, Loop):
                found = self.items[self.graph.buffers[node.name].owner]
                yield found if found.loop is node else analyse(self.graph, node, position)

    # --- the graph of groups -----------------------------------------------------------------------------------

    def find(self, number: int) -> int:
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    def bytes(self, storage: str) -> int:
        found = self.sizes.get(storage)
        if found is None:
            found = self.sizes[storage] = bytes_of(self.graph, self.graph.buffers[storage])
        return found

    def _visit_extern(self, position: int, node: Extern) -> None:
        buffers = self.graph.buffers
        reads = {buffers[n].owner for n in extern_reads(node)}
        writes = {buffers[n].owner for n in (*node.outputs, *node.mutates) if n}
        group = Group(position, {}, None, [])
        group.deps = {w for s in reads | writes for w in self.writers.get(s, ())}
        for storage in (buffers[n].owner for n in node.mutates):  # earlier readers come before the write
            group.deps |= set(self.touched.get(storage, ()))
        self.groups[position] = group
        for storage in reads:
            self.touched.setdefault(storage, []).append(position)
        for storage in writes:
            self.writers.setdefault(storage, []).append(position)

    def _visit(self, item: Item) -> None:
        group = single(item.position, item)
        group.deps = {w for s in group.read for w in self.writers.get(s, ())}
        if item.update:
            group.deps.update(self.writers.get(item.storage, ()))
        group.several = len(self.writers.get(item.storage, ())) > 0 or item is not self.items[item.storage]
        self.groups[item.position] = group
        self._merge_with_neighbours(item)
        self.writers.setdefault(item.storage, []).append(item.position)
        for storage in {o.args[0] for o in item.loads}:
            self.touched.setdefault(storage, []).append(item.position)

    def _merge_with_neighbours(self, item: Item) -> None:
        scores: dict[int, tuple[int, str]] = {}
        for storage in dict.fromkeys(o.args[0] for o in item.loads):
            wrote = self.writers.get(storage, ())
            size = self.bytes(storage)
            alone = storage not in self.fixed and self.readers[storage] == {item.position}
            for position in wrote:
                self._score(scores, position, size * (2 if alone else 1), storage)
            for position in self.touched.get(storage, ())[-NEIGHBOURS:]:
                self._score(scores, position, size, storage)
        ranked = sorted(scores.items(), key=lambda s: (-s[1][0], -s[0]))[:CANDIDATES]
        for number, (score, storage) in ranked:
            self._try(number, item, score, storage)

    def _score(self, scores: dict[int, tuple[int, str]], position: int, size: int, storage: str) -> None:
        number = self.find(position)
        if self.groups[number].members:
            known, best = scores.get(number, (0, storage))
            scores[number] = (known + size, best)

    def _try(self, number: int, item: Item, score: int, storage: str) -> None:
        other, own = self.groups[self.find(number)], self.groups[self.find(item.position)]
        if other is own:
            return
        subject = f"{_name(other)} + {item.loop.name}"
        earlier = _place(_meeting(other, storage))
        refused = self._refused(other, own, item, score, storage)
        inside = {m.item.position for g in (other, own) for m in g.members}

        def private(storage: str) -> bool:
            return storage not in self.fixed and self.readers.get(storage, set()) <= inside

        result = refused or merged(self.graph, other, own, private=private)
        if isinstance(result, Refused):
            self._decide("FL411", "refused", subject, item, earlier, result.reason, score, result.rule)
            return
        if self.left <= 0:
            self._decide("FL411", "refused", subject, item, earlier, "no more fusions are asked for", score, LIMIT)
            return
        self.left -= 1
        result.deps -= {m.item.position for m in result.members}
        self.parent[self.find(own.id)] = other.id
        self.groups[other.id] = result
        del self.groups[own.id]
        first, last = self.spans[other.id], self.spans[own.id]
        self.spans[other.id] = (min(first[0], last[0]), max(first[1], last[1]))
        self.wide.pop(own.id, None)
        self.wide.pop(other.id, None)
        self.wide[other.id] = self.spans[other.id]
        rule, reason = _kind(other, own, self.graph.buffers[storage].owner)
        self._decide("FL410", "taken", subject, item, earlier, reason, score, rule)

    def _decide(
        self,
        code: str,
        verdict: str,
        subject: str,
        item: Item,
        earlier: Span | None,
        reason: str,
        score: int,
        rule: str,
    ) -> None:
        data = {"bytes_saved": score, "rule": rule}
        self.decisions[subject] = Decision(code, verdict, subject, reason, _place(item), data, earlier)

    def _refused(self, a: Group, b: Group, item: Item, score: int, storage: str) -> Refused | None:
        if storage in b.read and storage not in a.produced and self._too_little(a, b, score, storage):
            return Refused("score", "they share too little memory traffic")
        for group in (a, b):
            read = (b if group is a else a).read
            if group.several and any(s in group.produced and len(self.writers[s]) > 1 for s in read):
                return Refused("pieces", "it reads a buffer that several loops write")
        if a.produced.keys() & b.produced.keys() and (a.updates or b.updates):
            return Refused("pieces", "one changes what all of the other has written")
        if self._waits_for_rows(a, b) or self._waits_for_rows(b, a):
            return Refused("rows first", "a reduction along the rows of the same data saves more")
        if self._parts_window(a, b) or self._parts_window(b, a):
            return Refused("window", "what neighbours have in common is read once where nothing is folded")
        if self._cyclic(a, b):
            return Refused("cycle", "another operation must run between them")
        return None

    def _too_little(self, a: Group, b: Group, score: int, storage: str) -> bool:
        """Whether two groups that read the same are better left apart. On a GPU, one launch is saved as well: what small
        kernels take, and worth it for those that fold rows of one shape with the same vector."""
        traffic = min(self._traffic(a), self._traffic(b))
        if score * 4 >= traffic:
            return False
        if self.graph.buffers[storage].device == "cpu":
            return True
        if not a.inner or not b.inner:
            return traffic > KERNEL_BYTES
        folded = [{n for n in symbol_names(g.read[storage]) if n in g.axes} <= g.inner for g in (a, b) if g.inner]
        return not all(folded) or list(a.axes.values()) != list(b.axes.values())

    def _traffic(self, group: Group) -> int:
        return sum(self.bytes(s) for s in {*group.read, *group.produced})

    def _waits_for_rows(self, pointwise: Group, columns: Group) -> bool:
        """Whether merging would tie pointwise work to a column reduction although a row reduction reads it, too."""
        if pointwise.inner is not None or not columns.inner:
            return False
        if not any(m.item.reduction and not _along_rows(self.graph, m.item) for m in columns.members):
            return False
        return any(
            _along_rows(self.graph, r) for s in pointwise.produced for r in self.reductions.get(s, ())
        )  # fmt: skip

    def _parts_window(self, pointwise: Group, columns: Group) -> bool:
        """Whether points that read windows, of which a program on a GPU computes neighbours together, would be columns of a fold."""
        if pointwise.inner is not None or not columns.inner:
            return False
        windows = [m.item for m in pointwise.members if most_places(m.item.loads) >= WINDOW]
        return any(self.graph.buffers[item.storage].device != "cpu" for item in windows)

    def _cyclic(self, a: Group, b: Group) -> bool:
        """Whether a third group lies on a path between the two. Gives up, as if so, after ``SEARCH`` groups."""
        ends = {a.id, b.id}
        start = min(self.spans[a.id][0], self.spans[b.id][0])
        least = start  # what ends before leads to nothing that reaches beyond the start
        for number, (first, last) in reversed(self.wide.items()):
            if last < start:
                break
            if number not in ends:
                least = min(least, first)
        seen: set[int] = set()
        work = [g for g in map(self.find, (*a.deps, *b.deps)) if g not in ends]
        while work:
            number = work.pop()
            if number in seen or self.spans[number][1] < least:
                continue
            seen.add(number)
            if len(seen) > SEARCH:
                return True
            for dep in self.groups[number].deps:
                dep = self.find(dep)
                if dep in ends:
                    return True
                if dep not in seen and dep != number:
                    work.append(dep)
        return False


def _name(group: Group) -> str:
    return group.members[-1].item.loop.name


def _meeting(group: Group, storage: str) -> Item:
    """The operation of ``group`` that makes ``storage``, or the last that reads it."""
    if storage in group.produced:
        return group.produced[storage].item
    readers = [m.item for m in group.members if any(o.args[0] == storage for o in m.item.loads)]
    return (readers or [group.members[-1].item])[-1]


def _place(item: Item) -> Span | None:
    return item.loop.spans[0] if item.loop.spans else None


def _kind(a: Group, b: Group, storage: str) -> tuple[str, str]:
    if storage in a.produced:
        if a.produced[storage].item.reduction:
            return "epilogue", f"the result of the reduction {storage} is used while its row is at hand"
        return "vertical", f"{storage} is {'folded' if b.inner else 'used'} where it is computed"
    return "horizontal", f"both read {storage}"


def _along_rows(graph: Graph, item: Item) -> bool:
    """Whether the reduction folds the axis that is contiguous in what it reads."""
    folded = {a.name for a in item.loop.reduction}
    for op in item.loads:
        form = item.form(op.args[1])
        if form is None or not form.terms or len(form.terms) < len(item.sizes):
            continue
        nearest = min(form.terms, key=lambda t: abs(integer_value(t[1], graph.hints)))
        return nearest[0] in folded
    return True


# --- from groups to kernels ------------------------------------------------------------------------------------


def _grouped(graph: Graph, left: float) -> tuple[_Fusion, Plan]:
    """The groups, and what must be stored given them: results, and what one group makes and another reads."""
    fusion = _Fusion(graph, left)
    fusion.run()
    stored = set(fusion.fixed) | {s for s, w in fusion.writers.items() if len(w) > 1}
    for group in fusion.groups.values():
        stored.update(s for s in group.read if s not in group.produced)
    return fusion, Plan(graph, stored, {s: i for s, i in fusion.items.items() if len(fusion.writers[s]) == 1})


def _spread(graph: Graph, fusion: _Fusion, plan: Plan) -> Graph:
    """Loops that read, from another group, what is not stored any more, rewritten to compute it."""
    nodes: list[Node] = []
    dropped = {s: i for s, i in plan.items.items() if s not in plan.stored}
    for position, node in enumerate(graph.nodes):
        if isinstance(node, Loop):
            group = fusion.groups[fusion.find(position)]
            own = group.produced
            wanted = {
                o.args[0] for o in node.body if o.op == "load" and o.args[0] in dropped and o.args[0] not in own
            }  # fmt: skip
            if wanted:
                elsewhere = {s: i for s, i in dropped.items() if s not in own}
                node = with_inlined(graph, node, elsewhere)
        nodes.append(node)
    return graph.replace(nodes=tuple(needed(graph, nodes)))


def _kernels(fusion: _Fusion, plan: Plan) -> tuple[tuple[Node, ...], list[Decision]]:
    """The program after fusion, in dependency order."""
    nodes: list[Node] = []
    refused: list[Decision] = []
    count = 0
    order = _ordered(fusion)
    for number in order:
        group = fusion.groups[number]
        if not group.members:
            nodes.append(plan.graph.nodes[number])
            continue
        try:
            kernels = [build(plan, group, f"kernel{count}")]
        except Unbuildable as problem:
            kernels = _separately(plan, group, count)
            refused.append(Decision("FL411", "refused", _name(group), str(problem), None, {"rule": "build"}))
        kernels = [k for k in kernels if k.phases]
        count += len(kernels)
        nodes.extend(kernels)
    return tuple(nodes), refused


def _separately(plan: Plan, group: Group, count: int) -> list[Kernel]:
    plan.stored |= set(group.produced)
    return [
        build(plan, single(m.item.position, m.item), f"kernel{count + k}") for k, m in enumerate(group.members)
    ]  # fmt: skip


def _recompute(graph: Graph, fusion: _Fusion, plan: Plan) -> Iterable[Decision]:
    """Drops stored buffers that their readers in other kernels had better compute themselves."""
    outside: dict[str, list[Group]] = {}
    for group in fusion.groups.values():
        for storage in group.read:
            if storage not in group.produced:
                outside.setdefault(storage, []).append(group)
    for storage, item in fusion.items.items():
        if storage in fusion.fixed or storage not in plan.stored or storage not in plan.items or item.reduction:
            continue
        readers = outside.get(storage, [])
        cone = _cone(fusion, plan, item, any(g.inner for g in readers))
        if cone is None or not readers:
            continue
        cost, loads, rows = cone
        cost *= max(repetitions(m.item.loop, storage) for g in readers for m in g.members)
        saved = fusion.bytes(storage) * (1 + len(readers))
        spent = sum(fusion.bytes(s) for g in readers for s in loads if s not in g.read and s not in g.produced)
        if cost > RECOMPUTE or spent > EVEN * saved or not all(_solvable(graph, g, storage, item) for g in readers):
            continue
        if fusion.left <= 0:
            return
        fusion.left -= 1
        plan.stored.discard(storage)
        plan.stored |= rows
        span = item.loop.spans[0] if item.loop.spans else None
        yield Decision(
            "FL410", "taken", item.loop.name, "its readers compute it from what they read anyway; it is not stored",
            span, {"bytes_saved": saved - spent, "rule": "recompute"},
        )  # fmt: skip


def _cone(fusion: _Fusion, plan: Plan, item: Item, folded: bool) -> tuple[int, set[str], set[str]] | None:
    """Cost of computing one element from memory, the storages that takes, and those among them (small results of
    reductions) that are not stored yet; None when it cannot be done, or not by vectors where its readers have to
    (``folded``: they are reductions of a GPU, whose threads hold neighbours)."""
    folded = folded and fusion.graph.buffers[item.storage].device != "cpu"
    loads: set[str] = set()
    rows: set[str] = set()
    cost = 0
    work, seen = [item], {item.storage}
    while work:
        current = work.pop()
        cost += current.cost
        if current.reduction or cost > RECOMPUTE:
            return None
        for op in current.loads:
            storage = op.args[0]
            if indirect_names(op.args[1]) or (folded and op.args[1].has(sympy.Min)):
                return None
            if storage in plan.stored or storage not in plan.items:
                loads.add(storage)
            elif storage not in seen:
                producer = plan.items[storage]
                if producer.bytes * SMALL <= item.bytes:
                    rows.add(storage)
                    loads.add(storage)
                    continue
                if producer.reduction or solved(fusion.graph, producer, op.args[1], dict(current.sizes)) is None:
                    return None
                seen.add(storage)
                work.append(producer)
    return cost, loads, rows


def _solvable(graph: Graph, group: Group, storage: str, item: Item) -> bool:
    """Whether every read of the storage in the group tells the point of the loop that computes it."""
    for member in group.members:
        for op in member.item.loads:
            limits = member.item.limits if indirect_names(op.args[1]) else {}
            if op.args[0] == storage and solved(graph, item, op.args[1], member.item.sizes, limits) is None:
                return False
    return True


def _ordered(fusion: _Fusion) -> list[int]:
    """Groups in dependency order, otherwise by the position of their last node."""
    order: list[int] = []
    state: dict[int, int] = {}
    for root in sorted(fusion.groups, key=lambda g: fusion.spans[g][1]):
        work = [(root, False)]
        while work:
            number, leaving = work.pop()
            if leaving:
                order.append(number)
                continue
            if state.get(number):
                continue
            state[number] = 1
            work.append((number, True))
            deps = {fusion.find(d) for d in fusion.groups[number].deps} - {number}
            work.extend((d, False) for d in sorted(deps, reverse=True) if not state.get(d))
    return order


def _used_buffers(graph: Graph, nodes: tuple[Node, ...]) -> dict[str, Buffer]:
    used: set[str] = {*graph.inputs, *graph.constants}
    used.update(graph.results())
    for node in nodes:
        if isinstance(node, Extern):
            used.update(n for n in (*node.outputs, *node.mutates, *extern_reads(node)) if n)
        elif isinstance(node, Kernel):
            used.update((*node.reads(), *node.writes()))
    used |= {graph.buffers[n].owner for n in used if n in graph.buffers}
    return {n: b for n, b in graph.buffers.items() if n in used}
