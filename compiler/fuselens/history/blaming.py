"""Which commit made a difference: each state of the program between two revisions, the newest first.

A state is told apart from its neighbours by what the files mean that a function depends on, so commits that touch none of these
cost nothing. From the newest state on it is asked what the function was compiled to, until it is as good, or as bad, as it was
at the old revision. So what came, went and came again is of the commit that brought it last. A bisection asks a handful of many
states, and is right where a difference stayed once it had come: where states that are known say otherwise, it goes on after them.

A merge brings what the merged branch has: where the branch has the difference already, its own commits are asked.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..record import figures
from . import changes, timing
from .changes import Change, FunctionChange, Value
from .comparing import Comparison
from .git import NOT_COMMITTED, Commit
from .snapshots import Snapshots, Wanted

How = Literal["auto", "walk", "bisect"]
HOWS: tuple[How, ...] = ("auto", "walk", "bisect")
_PROCESSES = 3  # in which a function is timed at one state
_MOST_WALKED = 32  # states; beyond that they are bisected, unless a walk is asked for


@dataclass(frozen=True, slots=True)
class Step:
    """What one commit did to one difference. ``merged_by`` is the merge that brought it here. ``bisected``: not every state after it
    was looked at. ``perhaps``: commits after it, or before, of which one may have done it: they cannot be checked. ``elsewhere``: no
    commit here did it, but some of the old revision's own, since ``commit``, which both have behind them."""

    commit: Commit
    before: Value
    after: Value
    merged_by: Commit | None = None
    bisected: bool = False
    perhaps: tuple[Commit, ...] = ()
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Blamed:
    """The steps of a change, the newest first; none where it cannot be told."""

    function: FunctionChange
    change: Change
    steps: tuple[Step, ...]


Blaming = Generator[list[Wanted], list[Any], list[Blamed]]


@dataclass(frozen=True, slots=True)
class _Boundary:
    """Between two states: the commit that made the newer one, and the file's name in each."""

    commit: Commit
    newer: str | None
    older: str
    path: str
    older_path: str
    elsewhere: bool = False


def blame(snapshots: Snapshots, comparison: Comparison, how: How = "auto") -> Blaming:
    """Raises GitError."""
    walks: dict[str, list[_Boundary]] = {}
    out = []
    for function in comparison.functions:
        for change in function.changes:
            if function.file not in walks:
                walks[function.file] = _boundaries_since(snapshots, comparison, function)
            traced = _Trace(snapshots, function, change)
            steps = yield from traced.steps(walks[function.file], how)
            out.append(Blamed(function, change, tuple(steps)))
    return out


def _boundaries_since(snapshots: Snapshots, comparison: Comparison, function: FunctionChange) -> list[_Boundary]:
    repository = snapshots.repository
    new = comparison.new if comparison.new is not None else repository.commit("HEAD")
    start: list[tuple[Commit, str | None]] = [] if comparison.new is not None else [(NOT_COMMITTED, None)]
    commits = repository.first_parents(comparison.old, new)
    made = [*start, *((c, c.identity) for c in commits)]
    old, end = comparison.old.identity, _end(commits, comparison.old.identity)
    out = _boundaries(snapshots, made, end, function.file, function.old_file)
    path = out[-1].older_path if out else function.file
    older = _path_before(snapshots, end, old, path, function.old_file)
    if end != old and snapshots.at(end).meaning(path) != snapshots.at(old).meaning(older):
        out.append(_Boundary(repository.commit(end), end, old, path, older, elsewhere=True))
    return out


def _end(commits: Sequence[Commit], old: str) -> str:
    """Where a line of first parents begins: at the old revision, or where that one went another way."""
    return commits[-1].parents[0] if commits and commits[-1].parents else old


def _boundaries(
    snapshots: Snapshots, made: Sequence[tuple[Commit, str | None]], last: str, path: str, old_path: str
) -> list[_Boundary]:
    """Where neighbouring states differ, the newest first. ``made`` are commits with the names of their trees."""
    out = []
    befores = [name for _, name in made[1:]] + [last]
    for (commit, newer), older in zip(made, befores, strict=True):
        assert older is not None
        older_path = _path_before(snapshots, newer, older, path, old_path)
        if older_path != path or snapshots.at(newer).meaning(path) != snapshots.at(older).meaning(older_path):
            out.append(_Boundary(commit, newer, older, path, older_path))
        path = older_path
    return out


def _path_before(snapshots: Snapshots, newer: str | None, older: str, path: str, old_path: str) -> str:
    entries = snapshots.at(older).tree.entries
    if path in entries or path not in snapshots.at(newer).tree.entries:
        return path
    moved = snapshots.repository.renames(older, newer).get(path)
    return moved or (old_path if old_path in entries else path)


class _Trace:
    """The history of one change."""

    def __init__(self, snapshots: Snapshots, function: FunctionChange, change: Change) -> None:
        self.snapshots, self.function, self.change = snapshots, function, change

    def steps(self, boundaries: Sequence[_Boundary], how: How) -> Generator[list[Wanted], list[Any], list[Step]]:
        if not boundaries:
            return []
        if how == "bisect" or (how == "auto" and len(boundaries) > _MOST_WALKED):
            return (yield from self._bisected(boundaries))
        return (yield from self._walked(boundaries, self.change.after))

    def _walked(self, boundaries: Sequence[_Boundary], now: Value) -> Generator[list[Wanted], list[Any], list[Step]]:
        out: list[Step] = []
        unknown: list[Commit] = []
        for boundary in boundaries:
            known, value = yield from self._value(boundary.older, boundary.older_path)
            if not known:
                unknown.append(boundary.commit)
                continue
            if value != now:
                step = yield from self._step(boundary, value, now)
                out.append(replace(step, perhaps=tuple(unknown)))
                if self._was(value):
                    break
            unknown, now = [], value
        return out

    def _bisected(self, boundaries: Sequence[_Boundary]) -> Generator[list[Wanted], list[Any], list[Step]]:
        """The newest commit that states which were looked at allow: on its one side the difference is whole, on the other not."""
        newest, oldest = 0, len(boundaries) - 1  # the older state of the oldest boundary is that of the old revision
        asked: dict[int, Value] = {}
        unknown: set[int] = set()
        while newest < oldest:
            middle = (newest + oldest) // 2
            while middle in unknown and middle > newest:
                middle -= 1
            if middle in unknown:
                break
            known, value = yield from self._value(boundaries[middle].older, boundaries[middle].older_path)
            if not known:
                unknown.add(middle)
                continue
            asked[middle] = value
            if changes.is_as(self.change.kind, value, self.change.after, self.change.before):
                newest = middle + 1
            else:
                oldest = middle
        boundary = boundaries[oldest]
        known, value = yield from self._value(boundary.older, boundary.older_path)
        after = asked.get(oldest - 1, self.change.after)
        step = yield from self._step(boundary, value if known else None, after)
        perhaps = tuple(boundaries[i].commit for i in range(newest, oldest)) if newest < oldest else ()
        return [replace(step, bisected=True, perhaps=perhaps)]

    def _step(self, boundary: _Boundary, value: Value, now: Value) -> Generator[list[Wanted], list[Any], Step]:
        """Of a merge, that of the branch's commit which did it, where one did."""
        commit = boundary.commit
        for parent in () if boundary.elsewhere else commit.parents[1:]:
            known, there = yield from self._value(parent, boundary.path)
            if not known or not changes.is_as(self.change.kind, there, now, value):
                continue
            repository = self.snapshots.repository
            tip, first = repository.commit(parent), repository.commit(commit.parents[0])
            base = repository.merge_base(first, tip)
            commits = repository.first_parents(base, tip)
            made, end = [(c, c.identity) for c in commits], _end(commits, base.identity)
            inner = _boundaries(self.snapshots, made, end, boundary.path, boundary.older_path)
            steps = yield from self._walked(inner, there)
            for step in steps:
                if changes.is_as(self.change.kind, step.after, now, value):
                    return replace(step, merged_by=step.merged_by or commit)
        return Step(commit, value, now, elsewhere=boundary.elsewhere)

    def _was(self, value: Value) -> bool:
        """Whether a value is as it was at the old revision, or beyond."""
        return value is None or changes.is_as(self.change.kind, value, self.change.before, self.change.after)

    def _value(self, commit: str | None, path: str) -> Generator[list[Wanted], list[Any], tuple[bool, Value]]:
        """What the change is about at a commit, and whether that is known: a file that cannot be imported tells nothing."""
        if commit is not None and path not in self.snapshots.at(commit).tree.entries:
            return True, self._absent()
        reports = yield from self.snapshots.reports(commit, [path])
        file = reports.get(path)
        if file is None:
            return False, None
        errors = [d for d in file.diagnostics if d.severity == "error"]
        if not self.function.function:
            return True, sum(figures.key(d) == self.change.what for d in errors)
        names = (self.function.function, self.function.old_name)
        if self.change.kind == "time":
            return (
                yield from self._time(
                    commit, path, next((n for n in names if any(r.function == n for r in file.functions)), "")
                )
            )
        report = next((r for name in names for r in file.functions if name and r.function == name), None)
        if report is None:
            return not errors, self._absent()
        return True, changes.value(self.change.kind, self.change.what, report)

    def _time(self, commit: str | None, path: str, name: str) -> Generator[list[Wanted], list[Any], tuple[bool, Value]]:
        """The time at one of both ends that the time at a commit is nearer to: what lies between is noise as well."""
        before, after = self.change.before, self.change.after
        assert isinstance(before, float)
        assert isinstance(after, float)
        found: list[float] = []
        for _ in range(_PROCESSES if name else 0):
            times = yield from timing.times_of(self.snapshots, commit, path, name)
            found += [times[self.change.what]] if self.change.what in times else []
        return (True, timing.nearer(statistics.median(found), before, after)) if found else (not name, None)

    def _absent(self) -> Value:
        return 0 if self.change.kind in ("break", "finding", "fusion") else None
