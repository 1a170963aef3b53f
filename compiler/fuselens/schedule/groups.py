"""Deciding which loops become one kernel.

A :class:`Group` has an iteration space (named axes with sizes) and members, each a loop with the map from its own
axes to the group's. Once a reduction is in it, the space is split into outer axes (the kernel's, parallel) and inner
ones (those the phases add); members then cover all points, or one point per outer point (``row``). Every loop starts
as a group of its own; groups merge where they meet at memory: :func:`merged` finds the correspondence of their points
or says by which rule there is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from sympy import Expr

from fuselens.ir.affine import linear, substitute
from fuselens.ir.loops import Graph, indirect_names, may_fail, symbol
from fuselens.schedule.inline import solved
from fuselens.schedule.items import Item, points, repetitions
from fuselens.schedule.matching import axes_in, covers, solve

MAX_MEMBERS = 96  # loops of one kernel: compilers of generated code slow down on longer bodies
MAX_STORAGES = 64  # buffers that one kernel reads from outside
RECOMPUTE = 16  # cost (ir units) up to which an element is computed again where other points read it
REPEATED = 8  # elements of a row, for each RECOMPUTE of what is computed again for it
SERIAL = 4096  # elements that one thread may go through when a fused kernel has nothing else to run in parallel


@dataclass(frozen=True, slots=True)
class Member:
    item: Item
    mapping: Mapping[str, Expr]  # own axis → expression of the group's axes; axes that are left out keep their name
    row: bool = False  # one value per outer point

    def at(self, index: Expr) -> Expr:
        return substitute(index, self.mapping) if self.mapping else index

    @property
    def target(self) -> Expr:
        return self.at(self.item.store.args[1])


@dataclass(slots=True, eq=False)
class Group:
    id: int
    axes: dict[str, Expr]
    inner: frozenset[str] | None  # None: not decided yet, every member covers all points
    members: list[Member]
    deps: set[int] = field(default_factory=set)  # groups (before merging) that it reads from
    produced: dict[str, Member] = field(default_factory=dict)
    read: dict[str, Expr] = field(default_factory=dict)  # storage → the first index it is read at, over the axes
    several: bool = False  # writes regions of a storage that other loops write, too

    @property
    def first(self) -> int:
        return self.members[0].item.position

    @property
    def last(self) -> int:
        return self.members[-1].item.position

    @property
    def updates(self) -> bool:
        """Whether a member changes elements at positions of its choice."""
        return any(m.item.update for m in self.members)

    @property
    def outer(self) -> dict[str, Expr]:
        inner = self.inner or frozenset()
        return {a: s for a, s in self.axes.items() if a not in inner}


@dataclass(frozen=True, slots=True)
class Refused:
    """Why two groups stay apart: the rule's short name and a sentence."""

    rule: str
    reason: str


def single(number: int, item: Item) -> Group:
    """The group of one loop."""
    inner = frozenset(a.name for a in item.loop.reduction) or None
    member = Member(item, {})
    group = Group(number, dict(item.sizes), inner, [member], produced={item.storage: member})
    for op in item.loads:
        group.read.setdefault(op.args[0], op.args[1])
    return group


@dataclass(frozen=True, slots=True)
class Anchor:
    """A meeting at memory: the element index over ``b``'s axes, and over ``a``'s."""

    storage: str
    over_b: Expr
    over_a: Expr
    dependency: bool  # one side computes what the other one reads


def anchors(a: Group, b: Group) -> Iterator[Anchor]:
    """Meetings of two groups, dependencies first."""
    for storage, member in a.produced.items():
        if storage in b.read:
            yield Anchor(storage, b.read[storage], member.target, True)
    for storage, member in b.produced.items():
        if storage in a.read:
            yield Anchor(storage, member.target, a.read[storage], True)
    for storage, index in b.read.items():
        if storage in a.read:
            yield Anchor(storage, index, a.read[storage], False)


def merged(
    graph: Graph, a: Group, b: Group, limit: int = 4, private: Callable[[str], bool] = lambda _: False
) -> Group | Refused:
    """One group of both, with the axes of ``a`` (split where ``b`` needs it). ``a`` and ``b`` stay as they are. A storage is
    ``private`` that nothing outside of the two reads."""
    if len(a.members) + len(b.members) > MAX_MEMBERS:
        return Refused("size", f"a kernel takes at most {MAX_MEMBERS} operations")
    if len((a.read.keys() | b.read.keys()) - a.produced.keys() - b.produced.keys()) > MAX_STORAGES:
        return Refused("size", f"a kernel reads at most {MAX_STORAGES} buffers")
    if (a.updates or b.updates) and any(m.item.reduction and not m.item.update for m in (*a.members, *b.members)):
        return Refused("update", "a reduction and updates in turn want different loops")
    refused = Refused("unrelated", "they share no memory")
    for _, anchor in zip(range(limit), anchors(a, b), strict=False):
        result = _attempt(graph, a, b, anchor, private)
        if isinstance(result, Group):
            return result
        refused = result
    return refused


def _attempt(graph: Graph, a: Group, b: Group, anchor: Anchor, private: Callable[[str], bool]) -> Group | Refused:
    if indirect_names(anchor.over_a) or indirect_names(anchor.over_b):
        return Refused("gather", "elements are read at computed positions")
    placed = _place(graph, a, b, anchor)
    if isinstance(placed, Refused):
        return placed
    values, axes, splits = placed
    shape = _partition(graph, a, b, values, axes, splits, private)
    if isinstance(shape, Refused):
        return shape
    inner, a_rows, b_rows = shape
    a_members = [_moved(m, splits, a_rows) for m in a.members]
    b_members = [_moved(m, values, b_rows) for m in b.members]
    problem = _parallel(graph, axes, inner, [*a_members, *b_members])
    problem = problem or _order_of_folds([*a_members, *b_members], axes, inner)
    own = {m.item.storage for m in (*a_members, *b_members)}
    problem = problem or _reads(graph, a_members, b_members, axes, own)
    problem = problem or _reads(graph, b_members, a_members, axes, own)
    if problem:
        return problem
    members = sorted((*a_members, *b_members), key=lambda m: m.item.position)
    group = Group(a.id, axes, inner, members, a.deps | b.deps, several=a.several or b.several)
    for member in members:
        group.produced[member.item.storage] = member
        for op in member.item.loads:
            group.read.setdefault(op.args[0], member.at(op.args[1]))
    return group


def _moved(member: Member, values: Mapping[str, Expr], rows: bool) -> Member:
    if values:
        mapping = {a: substitute(member.mapping.get(a, symbol(a)), values) for a in member.item.sizes}
        mapping = {a: e for a, e in mapping.items() if e != symbol(a)}
        member = dataclasses.replace(member, mapping=mapping)
    return dataclasses.replace(member, row=True) if rows else member


def _place(
    graph: Graph, a: Group, b: Group, anchor: Anchor
) -> tuple[dict[str, Expr], dict[str, Expr], dict[str, Expr]] | Refused:
    """Where b's axes lie: expressions over a's axes (grown by axes that only b has), and a's axes that were split."""
    if a.axes == b.axes and anchor.over_a == anchor.over_b:
        return {}, dict(a.axes), {}
    over_b = linear(anchor.over_b, frozenset(b.axes))
    over_a = linear(anchor.over_a, frozenset(a.axes))
    if over_a is None or over_b is None:
        return Refused("index", f"{anchor.storage} is read at positions that are not linear in the loops")
    solution = solve(over_b, b.axes, over_a, a.axes, graph.hints, split=True)
    if solution is None:
        return Refused("points", f"they touch different points of {anchor.storage}")
    values, axes, splits = dict(solution.values), dict(solution.sizes), solution.splits
    missing = [x for x in b.axes if x not in values]
    used = axes_in(values, frozenset(axes))
    free = [x for x in axes if x not in used]
    for x in list(missing):
        # broadcast on both sides: equal sizes in the same order are the same axis
        if free and axes[free[0]] == b.axes[x]:
            values[x] = symbol(free.pop(0))
            missing.remove(x)
    if missing and free:
        return Refused("sizes", "their iteration spaces differ")
    for x in b.axes:
        if x in values and not covers(values[x], b.axes[x], axes):
            return Refused("points", f"they touch different points of {anchor.storage}")
    for x in missing:
        name = x
        while name in axes:
            name += "_"
        axes[name] = b.axes[x]
        values[x] = symbol(name)
    return {x: e for x, e in values.items() if e != symbol(x)}, axes, splits


def _images(names: frozenset[str] | None, values: Mapping[str, Expr], axes: Mapping[str, Expr]) -> frozenset[str]:
    if not names:
        return frozenset()
    known = frozenset(axes)
    return axes_in({x: values.get(x, symbol(x)) for x in names}, known)


def _partition(
    graph: Graph, a: Group, b: Group, values: Mapping[str, Expr], axes: Mapping[str, Expr], splits: Mapping[str, Expr],
    private: Callable[[str], bool],
) -> tuple[frozenset[str] | None, bool, bool] | Refused:  # fmt: skip
    """The inner axes of the merged group, and whether a's or b's members come down to one value per outer point."""
    a_axes = _images(frozenset(a.axes), splits, axes)
    b_axes = _images(frozenset(b.axes), values, axes)
    a_inner = None if a.inner is None else _images(a.inner, splits, axes)
    b_inner = None if b.inner is None else _images(b.inner, values, axes)
    if a_axes == b_axes:
        if a_inner is not None and b_inner is not None and a_inner != b_inner:
            for rows, inner, others in ((a, a_inner, b_inner), (b, b_inner, a_inner)):
                if others < inner and _repeats(graph, rows, others, axes, private):
                    return others, False, False
            return Refused("reduction", "they reduce over different axes")
        return (a_inner if a_inner is not None else b_inner), False, False
    if b_axes < a_axes:
        return _under(a_axes - b_axes, a_inner, b_inner, "b")
    if a_axes < b_axes:
        return _under(b_axes - a_axes, b_inner, a_inner, "a")
    return Refused("sizes", "their iteration spaces differ")


def _repeats(
    graph: Graph, group: Group, inner: frozenset[str], axes: Mapping[str, Expr], private: Callable[[str], bool]
) -> bool:
    """Whether what the group has one value of per outer point can be computed again, for each of the more outer points that it
    has when only ``inner`` axes are folded: the scale of a channel, for each line of it."""
    rows = [m for m in group.members if m.row]
    if any(m.item.reduction or m.item.update for m in group.members) or not all(private(m.item.storage) for m in rows):
        return False
    return points(graph, (axes[a] for a in inner)) * RECOMPUTE >= REPEATED * sum(m.item.cost for m in rows)


def _under(
    extra: frozenset[str], large: frozenset[str] | None, small: frozenset[str] | None, rows: str
) -> tuple[frozenset[str] | None, bool, bool] | Refused:
    """The smaller side has one value per outer point of the larger one: the axes it lacks become the inner ones."""
    if small is not None and small:
        return Refused("reduction", "a reduction lies inside the loops of another")
    if large is not None and large != extra:
        return Refused("reduction", "they reduce over different axes")
    return extra, rows == "a", rows == "b"


def _parallel(
    graph: Graph, axes: Mapping[str, Expr], inner: frozenset[str] | None, members: list[Member]
) -> Refused | None:
    """A kernel's outer points run in parallel: with hardly any, a pass that stores a lot would run alone."""
    if not inner:
        return None
    outer = points(graph, (s for a, s in axes.items() if a not in inner))
    if outer > 1 or points(graph, (axes[a] for a in inner)) <= SERIAL:
        return None
    if any(m.item.update for m in members) and any(m.item.cost > RECOMPUTE for m in members):
        return Refused(
            "parallel", "updates come one after the other, what they are made of can be computed in parallel"
        )
    folded = [m.item.position for m in members if m.item.reduction or m.row]
    if any(not m.row and not m.item.reduction and m.item.position > min(folded, default=0) for m in members):
        return Refused("parallel", "it needs the result of a reduction over everything, which all threads wait for")
    return None


def _order_of_folds(members: list[Member], axes: Mapping[str, Expr], inner: frozenset[str] | None) -> Refused | None:
    """argmax and argmin give a flat index, scans and updates run along it: their axes must be the inner axes in order."""
    if not inner:
        return None
    order = [a for a in axes if a in inner]
    for member in members:
        scan = member.item.scan
        if (
            scan
            or member.item.update
            or any(o.op == "reduce" and o.args[0].startswith("arg") for o in member.item.before)
        ):
            folded = [member.mapping.get(a.name, symbol(a.name)) for a in member.item.loop.reduction]
            if folded != [symbol(a) for a in order]:
                what = "a scan" if scan else "the last update" if member.item.update else "the position of an extremum"
                return Refused("order", f"{what} depends on the order of its axes")
    return None


def _reads(
    graph: Graph, readers: list[Member], writers: list[Member], axes: Mapping[str, Expr], own: set[str]
) -> Refused | None:
    """Whether every element that readers take from writers is at hand at their point, or cheap to compute again."""
    produced = {m.item.storage: m for m in writers}
    for reader in readers:
        for op in reader.item.loads:
            writer = produced.get(op.args[0])
            if writer is None:
                continue
            index = reader.at(op.args[1])
            if index == writer.target:
                continue
            name = writer.item.loop.name
            if writer.row or writer.item.reduction:
                return Refused("rows", f"the results of {name} for other rows are needed")
            if any(o.args[0] in own for o in writer.item.loads):
                return Refused("points", f"other points of {name} are read, which depend on more of the kernel")
            if writer.item.cost * repetitions(reader.item.loop, op.args[0]) > RECOMPUTE:
                return Refused("points", f"other points of {name} are read, too expensive to compute again")
            if may_fail(writer.item.loop.body) and indirect_names(index):
                return Refused("gather", f"{name} may raise where it is not read")
            if solved(graph, writer.item, index, axes, reader.item.limits) is None:
                return Refused("points", f"it cannot be told which points of {name} are read")
    return None
