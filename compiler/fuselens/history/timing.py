"""Which functions and kernels take longer than at a revision: measured, each side in processes of its own, which take turns.

A difference counts where every process of one side was slower than every one of the other, and the medians differ by more than a
part of them. Where nothing differs, five processes each are so by chance in one of 126 measurements, and the machine's own slow
moments fall on both sides alike.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from ..record.report import Report, RunResult
from .changes import Change, Direction, FunctionChange
from .comparing import Comparison
from .snapshots import Snapshots, Wanted

PROCESSES = 5  # of each side
LEAST = 0.03  # of the median
Times = Mapping[str, float]
Measuring = Generator[list[Wanted], list[RunResult | None], list[FunctionChange]]


def measure(snapshots: Snapshots, comparison: Comparison) -> Measuring:
    """The functions of the comparison with what became of their times. Only those are called of which kernels or calls of libraries
    are others than before. Raises GitError."""
    changed = {(f.file, f.function): f for f in comparison.functions}
    new = comparison.new.identity if comparison.new is not None else None
    for function, before, after in comparison.pairs:
        if not _may_differ(before, after):
            continue
        sides: tuple[list[Times], list[Times]] = [], []
        for _ in range(PROCESSES):
            for side, commit, path, name in (
                (0, comparison.old.identity, function.old_file or function.file, before.function),
                (1, new, function.file, after.function),
            ):  # fmt: skip
                times = yield from times_of(snapshots, commit, path, name)
                sides[side].append(times)
        found = tuple(_changes(*sides, after))
        if found:
            known = changed.get((function.file, function.function), function)
            changed[function.file, function.function] = replace(known, changes=(*known.changes, *found))
    return sorted(changed.values(), key=lambda f: (f.file, f.span.line if f.span else 0, f.function))


def _may_differ(before: Report, after: Report) -> bool:
    if "not compiled" in (before.status, after.status) or str(before.inputs) != str(after.inputs):
        return False
    made = [[(k.name, k.phase, k.bytes_read, k.bytes_written) for k in r.kernels] for r in (before, after)]
    called = [[g.externs for g in r.graphs] for r in (before, after)]
    return made[0] != made[1] or called[0] != called[1]


def times_of(
    snapshots: Snapshots, commit: str | None, path: str, function: str
) -> Generator[list[Wanted], list[RunResult | None], Times]:
    """The median of calls in one process, and of each kernel; nothing where the function cannot be run."""
    (result,) = yield [snapshots.wanted_run(commit, path, function)]
    if result is None or result.error is not None or result.compiled_seconds is None:
        return {}
    kernels = {f"{k.name} ({k.phase})": k.seconds for k in result.kernels if k.seconds}
    return {"": result.compiled_seconds, **kernels}


def _changes(old: Sequence[Times], new: Sequence[Times], after: Report) -> list[Change]:
    out = []
    places = {f"{k.name} ({k.phase})": next(iter(k.spans), after.span) for k in after.kernels}
    for name in new[0]:
        had, has = ([times[name] for times in side if name in times] for side in (old, new))
        direction = differs(had, has)
        if direction is not None:
            medians = statistics.median(had), statistics.median(has)
            out.append(Change("time", name, *medians, direction, _spread(had, has), places.get(name, after.span)))
    return out


def differs(had: Sequence[float], has: Sequence[float]) -> Direction | None:
    """Whether times differ beyond what processes of one side differ among each other."""
    if min(len(had), len(has)) < PROCESSES:
        return None
    one, other = statistics.median(had), statistics.median(has)
    if abs(other - one) <= LEAST * one:
        return None
    if min(has) > max(had):
        return "worse"
    return "better" if max(has) < min(had) else None


def nearer(seconds: float, before: float, after: float) -> float:
    """The one of two times that another one is nearer to, as a factor."""
    return before if abs(math.log(seconds / before)) < abs(math.log(seconds / after)) else after


def _spread(had: Sequence[float], has: Sequence[float]) -> str:
    from .changes import seconds_text

    ranges = [f"{seconds_text(min(side))} to {seconds_text(max(side))}" for side in (had, has)]
    return f"{len(has)} processes each: {ranges[0]}, now {ranges[1]}"
