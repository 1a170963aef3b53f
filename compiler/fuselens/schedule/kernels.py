"""Writing the kernel of a group: phases, forwarding of values, recomputation, row scratch, merged axes.

A member runs at a level: after as many passes over the inner axes as reductions stand before it. Each level is a phase
over the inner axes (folds, stores of elements) and one without axes (what has one value per outer point). Phases are
written on demand from what must leave them: a store, a fold. A value that was made in the same phase is forwarded; one
of an earlier pass is computed again, or kept in memory when that is dearer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sympy import Expr

from fuselens.ir.affine import linear, substitute
from fuselens.ir.card import PERSISTENT
from fuselens.ir.loops import ITEMSIZE, Axis, Graph, Kernel, Op, Phase, symbol
from fuselens.ir.processor import L2_BYTES
from fuselens.record.report import Span
from fuselens.schedule.emit import Scope, remember_unrounded, translate, translated, without_dead
from fuselens.schedule.groups import Group, Member
from fuselens.schedule.inline import solved
from fuselens.schedule.items import Item, points
from fuselens.schedule.phases import Written, find_picked, hoist, join_scratch, merge_axes, numbered, share

KEEP = 20  # cost (ir units, all passes together) above which a value is kept in memory between passes
KEEP_ROW = 8  # the same on a CPU, where the row stays in cache and an output of the kernel can hold the value
KEEP_BYTE = 6  # the same on a GPU, for each byte of what is stored, and read once: memory moves it in as much time


class Unbuildable(Exception):
    """A group turned out to need a value that is not at hand where it is read."""


@dataclass(slots=True)
class Plan:
    """What holds for the whole graph: which storages are kept in memory, and the loops behind those that are not."""

    graph: Graph
    stored: set[str]
    items: Mapping[str, Item]


@dataclass(slots=True)
class _Kept:
    """Where an inner value that later passes need lies in memory, and the level that stores it."""

    storage: str
    index: Expr
    level: int
    dtype: str


def build(plan: Plan, group: Group, name: str) -> Kernel:
    """The kernel of ``group``. Storages that end up as row scratch are added to ``plan.stored``."""
    return _Builder(plan, group, name).kernel()


@dataclass(slots=True)
class _Builder:
    plan: Plan
    group: Group
    name: str
    members: dict[str, Member] = field(default_factory=dict)  # by loop
    sources: dict[str, Member] = field(default_factory=dict)  # by storage, where one loop of the group writes it all
    levels: dict[str, int] = field(default_factory=dict)
    kept: dict[str, _Kept] = field(default_factory=dict)
    crossing: dict[str, str] = field(default_factory=dict)
    folds: dict[str, dict[str, str]] = field(default_factory=dict)
    inlined: dict[str, Item] = field(default_factory=dict)
    sizes: dict[str, Expr] = field(default_factory=dict)
    level: int = 0

    def kernel(self) -> Kernel:
        outer, inner = self._final_axes()
        self.sizes = {a.name: a.size for a in (*outer, *inner)}
        self._set_levels()
        self._keep_values(inner)
        names = (f"v{k}" for k in itertools.count())
        unrounded: dict[str, tuple[str, str]] = {}
        phases: list[Written] = []
        for level in range(-1, max(self.levels.values(), default=0) + 1):
            self.level = level
            if inner:
                scope = Scope(names, unrounded)
                self._inner_phase(scope, level)
                phases.append((inner, scope.ops))
            scope = Scope(names, unrounded)
            self._outer_phase(scope, level, everything=not inner)
            phases.append(((), scope.ops))
        if inner:
            hoist(phases)
            share(phases)
            find_picked(phases)
            join_scratch(phases)
        bodies = without_dead([ops for _, ops in phases])
        merged = merge_axes(outer, [(axes, body) for (axes, _), body in zip(phases, bodies, strict=True) if body])
        return self._finish(*merged)

    # --- the space ---------------------------------------------------------------------------------------------

    def _final_axes(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """Outer axes become i0, i1, …, inner ones r0, r1, …; members' maps follow."""
        group = self.group
        inner_names = group.inner or frozenset()
        rename: dict[str, Expr] = {}
        outer: list[Axis] = []
        inner: list[Axis] = []
        for old, size in group.axes.items():
            kind, axes = ("r", inner) if old in inner_names else ("i", outer)
            axes.append(Axis(f"{kind}{len(axes)}", size))
            rename[old] = axes[-1].symbol
        moving = {old: new for old, new in rename.items() if symbol(old) != new}
        for member in group.members:
            mapping = {}
            for axis in member.item.sizes:
                value = member.mapping.get(axis, symbol(axis))
                value = substitute(value, moving) if moving else value
                if value != symbol(axis):
                    mapping[axis] = value
            moved = Member(member.item, mapping, member.row)
            self.members[member.item.loop.name] = moved
            if member.item.storage in self.plan.items or self._is_read_before_it_changes(member.item):
                self.sources[member.item.storage] = moved
        return tuple(outer), tuple(inner)

    def _is_read_before_it_changes(self, item: Item) -> bool:
        """Whether the kernel reads what ``item`` wrote of a buffer that other kernels write to later."""
        others = [m.item for m in self.group.members if m.item is not item]
        readers = [o for o in others if any(op.args[0] == item.storage for op in o.loads)]
        alone = not item.update and all(o.storage != item.storage for o in others)
        return alone and bool(readers) and all(o.position > item.position for o in readers)

    def _set_levels(self) -> None:
        """Passes that must be over before a member runs; -1 is before the first, for values per outer point."""
        for name, member in self.members.items():
            level = -1 if member.row else 0
            for source in self._sources(member):
                known = self.levels[source.item.loop.name]
                once = source.row or source.item.reduction
                level = max(level, known if member.row or not once else known + 1)
            self.levels[name] = level

    def _sources(self, member: Member) -> Iterator[Member]:
        """Members of the kernel whose values the member reads."""
        for storage in dict.fromkeys(o.args[0] for o in member.item.loads):
            if storage in self.sources:
                yield self.sources[storage]

    def _level(self, member: Member) -> int:
        return self.levels[member.item.loop.name]

    def _keep_values(self, inner: tuple[Axis, ...]) -> None:
        """Chooses inner values that stay in memory between passes, because computing them again costs more.

        Candidates are values that a loop of a later pass reads; what only they are made from follows from them.
        """
        if not inner:
            return
        demands = self._demands()
        spare = self._spare_outputs()
        costs: dict[str, int] = {}
        for storage, member in self.sources.items():
            if member.row or member.item.reduction:
                continue
            level = self._level(member)
            later = {k for k in demands.get(storage, ()) if k > level}
            below = (m.item.storage for m in self._sources(member))
            costs[storage] = member.item.cost + sum(1 if s in self.kept else costs.get(s, 0) for s in below)
            if not later:
                continue
            if storage in self.plan.stored:
                self.kept[storage] = _Kept(storage, member.target, level, member.item.store.dtype)
            elif self._read_later(storage, level):
                output = self._output_for(member, max(later), spare)
                if costs[storage] * len(later) > self._least_to_keep(member, len(later), output, inner):
                    self._keep(storage, member, level, output)
                    spare = [m for m in spare if m is not output]

    def _least_to_keep(self, member: Member, passes: int, output: Member | None, inner: tuple[Axis, ...]) -> float:
        if self.plan.graph.buffers[member.item.storage].device == "cpu":
            return KEEP_ROW if output and self._row_in_cache(member, inner) else KEEP
        steps, length = self._steps(member), points(self.plan.graph, (a.size for a in inner))
        if length <= PERSISTENT and any(steps.get(a.name) == 1 for a in inner):
            return KEEP  # in registers
        return KEEP_BYTE * ITEMSIZE[member.item.store.dtype] * (1 + passes) / 2

    def _demands(self) -> dict[str, set[int]]:
        """For each storage the levels of the passes that need its values, if nothing but stored ones is kept."""
        demands: dict[str, set[int]] = {}
        for member in reversed(self.members.values()):
            storage = member.item.storage
            once = member.row or member.item.reduction or storage in self.plan.stored
            runs_at = {self._level(member)} if once else demands.get(storage, set())
            for source in self._sources(member):
                demands.setdefault(source.item.storage, set()).update(runs_at)
        return demands

    def _read_later(self, storage: str, level: int) -> bool:
        return any(
            self._level(m) > level for m in self.members.values() if any(o.args[0] == storage for o in m.item.loads)
        )

    def _keep(self, storage: str, member: Member, level: int, output: Member | None) -> None:
        """In an output of the kernel, where there is one; else in its own storage."""
        dtype = member.item.store.dtype
        if output is None:
            self.plan.stored.add(storage)
        place = output or member
        self.kept[storage] = _Kept(place.item.storage, place.target, level, dtype)

    def _output_for(self, member: Member, last: int, spare: list[Member]) -> Member | None:
        """The kernel's own output, of pass ``last`` or a later one, that the member's values can lie in until then. A GPU's threads
        read neighbours in the memory of the values; so that of the output has them in the same order."""
        dtype, gpu = member.item.store.dtype, self.plan.graph.buffers[member.item.storage].device != "cpu"
        fitting = (m for m in spare if m.item.store.dtype == dtype and self._level(m) >= last)
        return next((m for m in fitting if not gpu or self._steps(m) == self._steps(member)), None)

    def _steps(self, member: Member) -> dict[str, Expr]:
        """How far apart neighbours along each axis are in memory, of what the member makes."""
        form = linear(member.target, frozenset(self.sizes))
        return {} if form is None else dict(form.terms)

    def _row_in_cache(self, member: Member, inner: tuple[Axis, ...]) -> bool:
        graph, dtype = self.plan.graph, member.item.store.dtype
        cpu = graph.buffers[member.item.storage].device == "cpu"
        return cpu and points(graph, (a.size for a in inner)) * ITEMSIZE[dtype] <= L2_BYTES

    def _spare_outputs(self) -> list[Member]:
        """Stored outputs of later passes that no pass after their own reads back."""
        return [
            m for s, m in self.sources.items()
            if s in self.plan.stored and not m.row and not m.item.reduction and self._level(m) > 0
            and not self._read_later(s, self._level(m))
        ]  # fmt: skip

    # --- phases ------------------------------------------------------------------------------------------------

    def _inner_phase(self, scope: Scope, level: int) -> None:
        for kept in self.kept.values():
            # an output that doubles as scratch is read before this pass overwrites it
            output = self.sources.get(kept.storage)
            if kept.level < level and output is not None and self._level(output) == level:
                scope.emit("load", (kept.storage, kept.index), kept.dtype, output.item.store.spans)
        for name, member in self.members.items():
            if member.row or self.levels[name] != level:
                continue
            if member.item.update:
                self._update(scope, member)
            elif member.item.reduction:
                names: dict[str, str] = {}
                translate(scope, member.item.before, member.mapping, self._resolve, names, exact=member.item.rounds)
                self.folds[name] = names
            else:
                self._store(scope, member)

    def _outer_phase(self, scope: Scope, level: int, *, everything: bool) -> None:
        for name, member in self.members.items():
            if self.levels[name] != level:
                continue
            if member.item.update:
                if everything or member.row:
                    self._update(scope, member)
            elif member.item.reduction:
                self._after_fold(scope, name, member)
            elif member.row:
                self.crossing[member.item.storage] = self._value(scope, member)
                self._store_value(scope, member, self.crossing[member.item.storage])
            elif everything:
                self._store(scope, member)

    def _after_fold(self, scope: Scope, name: str, member: Member) -> None:
        item = member.item
        folded = {o.name: self.folds[name][o.name] for o in item.before if o.op == "reduce"}
        translate(scope, item.after, member.mapping, self._resolve, folded)
        self._remember_unrounded(scope, item, folded)
        self.crossing[item.storage] = folded[item.value]
        self._store_value(scope, member, folded[item.value])

    def _store(self, scope: Scope, member: Member) -> None:
        kept = self.kept.get(member.item.storage)
        if member.item.storage in self.plan.stored:
            self._store_value(scope, member, self._value(scope, member))
        elif kept is not None:
            scope.store(kept.storage, kept.index, self._value(scope, member), kept.dtype, member.item.store.spans)

    def _update(self, scope: Scope, member: Member) -> None:
        item, names = member.item, {}
        translate(scope, item.loop.body, member.mapping, self._resolve, names)
        store = translated(item.store, member.mapping, names)
        scope.store(store.args[0], store.index, store.args[2], store.dtype, store.spans, store.update)

    def _store_value(self, scope: Scope, member: Member, value: str) -> None:
        if member.item.storage in self.plan.stored:
            store = member.item.store
            scope.store(store.args[0], member.target, value, store.dtype, store.spans)

    # --- values ------------------------------------------------------------------------------------------------

    def _value(self, scope: Scope, member: Member) -> str:
        """The member's value at the phase's own point."""
        key = (member.item.storage, member.target)
        found = scope.values.get(key)
        if found is None:
            found = scope.values[key] = self._inline(scope, member.item, member.mapping)
        return found

    def _inline(self, scope: Scope, item: Item, mapping: Mapping[str, Expr]) -> str:
        names: dict[str, str] = {}
        translate(scope, item.loop.body, mapping, self._resolve, names, exact=item.rounds)
        self._remember_unrounded(scope, item, names)
        return names[item.value]

    def _remember_unrounded(self, scope: Scope, item: Item, names: Mapping[str, str]) -> None:
        """What is stored as well is rounded for all: a backward that reads it must find what the forward computed with, and a later
        phase what the one before it has folded."""
        if not item.rounds and item.storage not in self.plan.stored and item.storage not in self.kept:
            remember_unrounded(scope, item.loop.body, item.value, names)

    def _resolve(self, scope: Scope, storage: str, index: Expr, op: Op) -> str:
        """The value of an element: forwarded, carried from an earlier phase, computed, or loaded."""
        member = self.sources.get(storage)
        if member is None:
            if storage in self.plan.stored or storage not in self.plan.items:
                return scope.emit("load", (storage, index), op.dtype, op.spans)
            self.inlined[storage] = self.plan.items[storage]
            return self._elsewhere(scope, self.plan.items[storage], index)
        if member.row or member.item.reduction:
            if index != member.target or storage not in self.crossing:
                raise Unbuildable(f"{storage} is not at hand where it is read")
            return self.crossing[storage]
        if index != member.target:
            return self._elsewhere(scope, member.item, index)
        kept = self.kept.get(storage)
        if kept is not None and kept.level < self.level:
            return scope.emit("load", (kept.storage, kept.index), kept.dtype, op.spans)
        return self._value(scope, member)

    def _elsewhere(self, scope: Scope, item: Item, index: Expr) -> str:
        """Computes an element of a loop that does not run at this point."""
        key = (item.storage, index)
        found = scope.values.get(key)
        if found is None:
            mapping = solved(self.plan.graph, item, index, self.sizes, scope.limits)
            if mapping is None or item.reduction:
                raise Unbuildable(f"{item.storage} cannot be computed where it is read")
            found = scope.values[key] = self._inline(scope, item, mapping)
        return found

    # --- the end -----------------------------------------------------------------------------------------------

    def _finish(self, outer: tuple[Axis, ...], phases: list[Written]) -> Kernel:
        items = [m.item for m in self.members.values()] + list(self.inlined.values())
        items.sort(key=lambda i: i.position)
        spans: dict[Span, None] = {}
        for item in items:
            spans.update(dict.fromkeys(item.loop.spans))
        return Kernel(
            self.name, outer, tuple(Phase(a, tuple(b)) for a, b in numbered(phases)),
            tuple(i.loop.name for i in items), tuple(dict.fromkeys(i.loop.origin for i in items if i.loop.origin)),
            tuple(spans),
        )  # fmt: skip
