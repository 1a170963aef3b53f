"""Foretells the compilations of a file's functions: its program is evaluated for the calls that it makes, these are made with the
compiler, and what that shows is told at the places of the calls.

The calls are those of the file itself and of programs of the project that import it, and calls that runs recorded. What a call gives
that is not known here is said, and not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...config import Config, from_environment
from ...record.report import Diagnostic, FileReport, Fix, Report
from ...slices import Evaluation, Heard, Hearing, counts
from ...slices.evaluation import Surroundings
from ...source import fixes
from ...source.discovery import Annotated
from ..function_check import configured
from ..input_sources import recorded
from ..opening import OpenFile, Progress, found_in, opened, silent
from ..parsing import FileRefused, read_source
from .replay import Replay, recorded_call, replayed
from .told import MARK, findings, foreseen, not_reached

_MOST_TRIED = 4  # fixes


def foresee_file(
    path: str | Path,
    source: str | None = None,
    functions: tuple[str, ...] = (),
    config: Config | None = None,
    progress: Progress | None = None,
    until: float = float("inf"),
    tries: bool = True,
) -> FileReport:
    """A report for each function, with no more than :class:`Foreseen` and its findings. After ``until`` (``time.monotonic()``) no
    more calls are made. ``tries``: fixes are offered, those that spare compilations when the file is looked at with them."""
    text = (read_source(path) if source is None else source).removeprefix("\ufeff")
    report = FileReport(str(path))
    try:
        report.functions = [r for r, _ in _looked(str(path), text, functions, config, progress or silent, until)]
    except FileRefused as refusal:
        report.diagnostics.append(refusal.diagnostic)
    if tries:
        _with_fixes(str(path), text, report, config, until)
    return report


def _looked(
    path: str, text: str, functions: tuple[str, ...], config: Config | None, say: Progress, until: float
) -> list[tuple[Report, Replay]]:  # fmt: skip
    hearing = Hearing()
    chosen = config or from_environment()
    out = []
    with opened(path, text, functions, say, chosen, hearing=hearing) as file:
        file.ask_callers()
        for annotated in file.annotated:
            say(f"{annotated.qualname}: calls")
            out.append(_function(file, annotated, hearing, chosen, until))
    return out


def _function(
    file: OpenFile, annotated: Annotated, hearing: Hearing, config: Config, until: float
) -> tuple[Report, Replay]:
    report = Report(annotated.qualname, file.path, annotated.name_span)
    found = found_in(file, annotated)
    if isinstance(found, Diagnostic):
        report.diagnostics.append(found)
        return report, Replay()
    heard = [c for c in hearing.calls if c.function == annotated.qualname]
    own = [c for c in heard if not c.unknown and not c.inside]
    calls = [*own, *_recorded(file, annotated, found)]
    chosen = configured(config, found, annotated, file.evaluated(annotated))
    same = {c.state.tensors for c in own if c.state.tensors}
    replay = (
        Replay(raised="parameters change their types or sizes between calls")
        if len(same) > 1 and _varies(own)
        else None
    )
    replay = replay or replayed(annotated.qualname, file.path, calls, chosen, until)
    alike = hearing.alike if counts(own) else ()
    doubts = [*hearing.guessed, *hearing.left_out, *alike, *_assumed(file)]
    report.foreseen = not_reached(file.source, file.path, annotated, foreseen(heard, calls, replay, doubts))
    if not hearing.guessed and not any(note.assumed for e in _evaluations(file) for note in e.notes):
        report.diagnostics += findings(annotated, file.path, report.foreseen, replay, chosen)
    return report, replay


def _varies(calls: Sequence[Heard]) -> bool:
    """Whether the same object has other tensors in one call than in another."""
    by_target: dict[int, set[Any]] = {}
    for call in calls:
        by_target.setdefault(id(call.target), set()).add(call.state.tensors)
    return any(len(found) > 1 for found in by_target.values())


def _recorded(file: OpenFile, annotated: Annotated, found: Any) -> list[Heard]:
    calls, _ = recorded(found, file.path)
    return [
        recorded_call(annotated.qualname, found.target, c, Surroundings(c.grad, c.inference, None, ())) for c in calls
    ]


def _assumed(file: OpenFile) -> list[str]:
    """What evaluations left out or assumed: a call may be another one for it."""
    return [f"line {note.line}: {note.why}" for e in _evaluations(file) for note in e.notes]


def _evaluations(file: OpenFile) -> list[Evaluation]:
    return [e for e in (file.evaluation, *(file.callers or ())) if e is not None]


# --- fixes ------------------------------------------------------------------------------------------------------------


def _with_fixes(path: str, text: str, report: FileReport, config: Config | None, until: float) -> None:
    """Offers the edits with which the file, looked at once more, has fewer compilations. Where none has, no mark is asked for."""
    wanted = [(r, d) for r in report.functions for d in r.diagnostics if d.code in ("FL207", "FL208")]
    source = fixes.Source(text, path) if wanted else None
    for function, finding in wanted[:_MOST_TRIED]:
        if function.foreseen is None or source is None:
            continue
        proposed = list(fixes.foreseen_fixes(source, function.function, finding, function.foreseen.places))
        found = next(
            (t for fix in proposed if (t := _tried(path, text, fix, function, config, until)) is not None), None
        )
        changed = finding
        if found is not None:
            changed = dataclasses.replace(finding, fixes=(found,))
        elif proposed and finding.code == "FL207":
            changed = dataclasses.replace(finding, message=finding.message.removesuffix(MARK), hints=())
        function.diagnostics[function.diagnostics.index(finding)] = changed


def _tried(path: str, text: str, fix: Fix, before: Report, config: Config | None, until: float) -> Fix | None:
    """``fix`` with what it spares; None where it spares nothing, or the same calls are not made any more."""
    try:
        edited = fixes.applied(text, fix.edits)
        ((after, _),) = _looked(path, edited, (before.function,), config, silent, until)
    except (FileRefused, SyntaxError):
        return None
    then, now = before.foreseen, after.foreseen
    if then is None or now is None or then.compilations is None or now.compilations is None:
        return None
    same = len(now.doubts) <= len(then.doubts) and [s.calls for s in now.places] == [s.calls for s in then.places]
    if not same or now.compilations >= then.compilations:
        return None
    count = f"{now.compilations} compilation{'s' * (now.compilations != 1)}"
    return dataclasses.replace(fix, verified=True, trial=f"{count} in place of {then.compilations}")
