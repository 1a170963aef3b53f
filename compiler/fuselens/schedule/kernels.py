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

from fuselens.ir.affine import ZERO, linear, substitute, symbol_names
from fuselens.ir.loops import ITEMSIZE, Axis, Graph, Kernel, Op, Phase, indirect_names, symbol, value_symbol
from fuselens.ir.ops import OPS
from fuselens.record.report import Span
from fuselens.schedule.emit import Scope, remember_unrounded, translate, translated, without_dead
from fuselens.schedule.groups import Group, Member
from fuselens.schedule.inline import solved
from fuselens.schedule.items import Item, points

KEEP = 20  # cost (ir units, all passes together) above which a value is kept in memory between passes
KEEP_ROW = 8  # the same on a CPU, where the row stays in cache and an output of the kernel can hold the value
ROW = 1 << 18  # bytes of such a row


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
        phases: list[tuple[tuple[Axis, ...], list[Op]]] = []
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
            _hoist(phases)
            _share(phases)
            _find_picked(phases)
            _join_scratch(phases)
        bodies = without_dead([ops for _, ops in phases])
        merged = _merge_axes(outer, [(axes, body) for (axes, _), body in zip(phases, bodies, strict=True) if body])
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
                if costs[storage] * len(later) > (KEEP_ROW if output and self._row_in_cache(member, inner) else KEEP):
                    self._keep(storage, member, level, output)
                    spare = [m for m in spare if m is not output]

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
        """The kernel's own output, of pass ``last`` or a later one, that the member's values can lie in until then."""
        dtype = member.item.store.dtype
        return next((m for m in spare if m.item.store.dtype == dtype and self._level(m) >= last), None)

    def _row_in_cache(self, member: Member, inner: tuple[Axis, ...]) -> bool:
        graph, dtype = self.plan.graph, member.item.store.dtype
        cpu = graph.buffers[member.item.storage].device == "cpu"
        return cpu and points(graph, (a.size for a in inner)) * ITEMSIZE[dtype] <= ROW

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
        storage, index, value, kind = item.store.args
        at = translated(index, member.mapping, names)
        scope.store(storage, at, names[value], item.store.dtype, item.store.spans, kind)

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
        """What is stored as well is rounded for all: a backward that reads it must find what the forward computed with."""
        if not item.rounds and item.storage not in self.plan.stored:
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

    def _finish(self, outer: tuple[Axis, ...], phases: list[tuple[tuple[Axis, ...], list[Op]]]) -> Kernel:
        items = [m.item for m in self.members.values()] + list(self.inlined.values())
        items.sort(key=lambda i: i.position)
        spans: dict[Span, None] = {}
        for item in items:
            spans.update(dict.fromkeys(item.loop.spans))
        return Kernel(
            self.name, outer, tuple(Phase(a, tuple(b)) for a, b in _renamed(phases)),
            tuple(i.loop.name for i in items), tuple(dict.fromkeys(i.loop.origin for i in items if i.loop.origin)),
            tuple(spans),
        )  # fmt: skip


def _hoist(phases: list[tuple[tuple[Axis, ...], list[Op]]]) -> None:
    """Moves what does not vary along an inner pass into the phase without axes before it.

    Phases come in pairs (pass, no axes), the first pair is the work before the first pass. What a hoisted op uses
    crosses phases already; constants are repeated where they are used.
    """
    written = {o.args[0] for _, body in phases for o in body if o.op == "store"}
    crossing: set[str] = set()
    for position, (axes, body) in enumerate(phases):
        if not axes:
            crossing |= {o.name for o in body if o.op != "store"}
            continue
        inner = {a.name for a in axes}
        constants = {o.name: o for o in body if o.op == "const"}
        fixed: list[Op] = []
        rest: list[Op] = []
        names: set[str] = set()
        for op in body:
            if op.op in ("store", "reduce", "scan", "const") or (op.op == "load" and op.args[0] in written):
                rest.append(op)
                continue
            operands = op.operands()
            varies = any(isinstance(a, Expr) and inner & symbol_names(a) for a in op.args)
            ready = all(n in crossing or n in names or n in constants for n in operands)
            trivial = op.op != "load" and all(n in constants for n in operands)
            if ready and not varies and not trivial:
                fixed.append(op)
                names.add(op.name)
            else:
                rest.append(op)
        if fixed and position > 0:
            repeated = {n: f"{n}_" for n in dict.fromkeys(n for o in fixed for n in o.operands() if n in constants)}
            target = phases[position - 1][1]
            target += [Op(new, "const", constants[n].args, constants[n].dtype, constants[n].spans)
                       for n, new in repeated.items()]  # fmt: skip
            target += [Op(o.name, o.op, _renamed_args(o, repeated), o.dtype, o.spans) for o in fixed]
            phases[position] = (axes, rest)
            crossing |= names
        crossing |= {o.name for o in body if o.op == "reduce"}


def _find_picked(phases: list[tuple[tuple[Axis, ...], list[Op]]]) -> None:
    """Replaces sums along an axis of which all terms but one, at a position below the axis' size, are zero."""
    limits = {o.name: o.args[1] for _, body in phases for o in body if o.op == "bounds"}
    found: dict[str, str] = {}
    for axes, body in phases:
        own = {o.name: o for o in body}
        for op in body:
            if op.op != "reduce" or op.args[0] != "sum" or len(axes) != 1 or op.args[1] not in own:
                continue
            choice = own[op.args[1]]
            if choice.op != "where" or choice.args[1] in own or choice.args[0] not in own:
                continue
            test, other = own[choice.args[0]], own.get(choice.args[2])
            if test.op != "eq" or other is None or other.op != "const" or other.args[0] != 0:
                continue
            for place, position in (test.args, test.args[::-1]):
                along = own.get(place)
                if (
                    along is not None and along.op == "index" and along.args[0] == axes[0].symbol
                    and limits.get(position) == axes[0].size
                ):  # fmt: skip
                    found[op.name] = choice.args[1]
    for number, (axes, body) in enumerate(phases) if found else ():
        kept = (o for o in body if o.name not in found)
        phases[number] = (axes, [Op(o.name, o.op, _renamed_args(o, found), o.dtype, o.spans) for o in kept])


def _join_scratch(phases: list[tuple[tuple[Axis, ...], list[Op]]]) -> None:
    """Moves a pass that nothing is left of but its scratch to the later pass that reads that back, and overwrites it."""
    written = {o.args[0] for _, body in phases for o in body if o.op == "store"}
    for number, (axes, body) in enumerate(phases):
        scratch = {o.args[0]: o for o in body if o.op == "store"}
        loaded = {o.args[0] for o in body if o.op == "load"}
        if not axes or not scratch or loaded & written or any(o.op in ("reduce", "scan") or o.update for o in body):
            continue
        readers = [k for k, (_, b) in enumerate(phases) if any(o.op == "load" and o.args[0] in scratch for o in b)]
        if len(readers) != 1 or readers[0] <= number or phases[readers[0]][0] != axes:
            continue
        dtypes = {o.name: o.dtype for o in body}
        reader = phases[readers[0]][1]
        names: dict[str, str] = {}
        overwritten: set[str] = set()
        for op in reader:
            stored = scratch.get(op.args[0]) if op.op in ("load", "store") else None
            if stored is None:
                continue
            value = stored.args[2]
            if op.args[1] != stored.args[1] or op.update or (op.op == "load" and dtypes.get(value) != op.dtype):
                break
            if op.op == "load" and op.args[0] not in overwritten:
                names[op.name] = value
            elif op.op == "store":
                overwritten.add(op.args[0])
        else:
            if overwritten == scratch.keys():
                kept = (
                    Op(o.name, o.op, _renamed_args(o, names), o.dtype, o.spans) for o in reader if o.name not in names
                )
                phases[readers[0]] = (axes, [*(o for o in body if o.op != "store"), *kept])
                phases[number] = (axes, [])


def _share(phases: list[tuple[tuple[Axis, ...], list[Op]]]) -> None:
    """Equal ops of phases without axes are computed in the first of them only: their values cross phases."""
    written = {o.args[0] for _, body in phases for o in body if o.op == "store"}
    known: dict[tuple[object, ...], str] = {}
    names: dict[str, str] = {}
    for position, (axes, body) in enumerate(phases):
        out: list[Op] = []
        for op in body:
            args = _renamed_args(op, names) if names else op.args
            if not axes and op.op != "store" and not (op.op == "load" and op.args[0] in written):
                key = (op.op, repr(args[0]) if op.op == "const" else args, op.dtype)
                found = known.setdefault(key, op.name)
                if found != op.name:
                    names[op.name] = found
                    continue
            out.append(op if args is op.args else Op(op.name, op.op, args, op.dtype, op.spans))
        phases[position] = (axes, out)


def _renamed(phases: list[tuple[tuple[Axis, ...], list[Op]]]) -> Iterator[tuple[tuple[Axis, ...], list[Op]]]:
    """Ops numbered in order; stores as the text form names them."""
    names: dict[str, str] = {}
    values, stores = itertools.count(), itertools.count()
    for axes, body in phases:
        out: list[Op] = []
        for op in body:
            new = names[op.name] = f"store{next(stores)}" if op.op == "store" else f"t{next(values)}"
            out.append(Op(new, op.op, _renamed_args(op, names), op.dtype, op.spans))
        yield axes, out


def _renamed_args(op: Op, names: Mapping[str, str]) -> tuple[object, ...]:
    if op.op in OPS or op.op in ("cast", "bitcast", "bounds"):
        return tuple(names.get(a, a) if isinstance(a, str) else a for a in op.args)
    if op.op in ("reduce", "scan"):
        return (op.args[0], names.get(op.args[1], op.args[1]))
    if op.op == "store":
        return (op.args[0], _renamed_index(op.args[1], names), names.get(op.args[2], op.args[2]), *op.args[3:])
    if op.op == "load":
        return (op.args[0], _renamed_index(op.args[1], names))
    if op.op == "index":
        return (_renamed_index(op.args[0], names),)
    if op.op == "random":
        keys = (names.get(k, k) for k in op.args[:2])
        return (*keys, op.args[2], _renamed_index(op.args[3], names))
    return op.args


def _renamed_index(index: Expr, names: Mapping[str, str]) -> Expr:
    found = [n for n in indirect_names(index) if n in names]
    return index.xreplace({value_symbol(n): value_symbol(names[n]) for n in found}) if found else index  # pyright: ignore


def _merge_axes(
    outer: tuple[Axis, ...], phases: list[tuple[tuple[Axis, ...], list[Op]]]
) -> tuple[tuple[Axis, ...], list[tuple[tuple[Axis, ...], list[Op]]]]:
    """Neighbouring axes that every access walks as one become one: longer inner loops, fewer of them.

    The passes of a kernel have the same axes and stay alike: one may read what another stored.
    """
    everything = [op for _, body in phases for op in body]
    outer, replaced = _merged(outer, everything)
    inner, own = _merged(next((axes for axes, _ in phases if axes), ()), everything)
    mapping = {**replaced, **own}
    if not mapping:
        return outer, phases
    return outer, [
        (
            inner if axes else (),
            [Op(o.name, o.op, tuple(substitute(a, mapping) if isinstance(a, Expr) else a for a in o.args), o.dtype,
                o.spans) for o in body],
        )
        for axes, body in phases
    ]  # fmt: skip


def _merged(axes: tuple[Axis, ...], body: list[Op]) -> tuple[tuple[Axis, ...], dict[str, Expr]]:
    if len(axes) < 2:
        return axes, {}
    names = frozenset(a.name for a in axes)
    forms = []
    tangled: set[str] = set()
    for expression in dict.fromkeys(a for op in body for a in op.args if isinstance(a, Expr)):
        form = linear(expression, names)
        if form is None:
            tangled |= symbol_names(expression) & names
        else:
            forms.append(dict(form.terms))
    groups: list[list[Axis]] = [[axes[0]]]
    for axis in axes[1:]:
        previous = groups[-1][-1]
        together = not tangled & {previous.name, axis.name} and all(
            f.get(previous.name, ZERO) == f.get(axis.name, ZERO) * axis.size for f in forms
        )
        if together:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) == len(axes):
        return axes, {}
    prefix = axes[0].name[0]
    merged: list[Axis] = []
    mapping: dict[str, Expr] = {}
    for group in groups:
        size = group[0].size
        for axis in group[1:]:
            size = size * axis.size
        merged.append(Axis(f"{prefix}{len(merged)}", size))
        mapping |= dict.fromkeys((a.name for a in group[:-1]), ZERO)
        mapping[group[-1].name] = merged[-1].symbol
    return tuple(merged), mapping
