"""Completes reports with what a step of training holds, whether that fits, and what would make it fit."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from ...config import Config, sizes_of
from ...record import diagnostics, live_memory
from ...record.report import Diagnostic, Fix, Remedy, Report, StepMemory
from ..function_check import Call
from ..opening import OpenFile, Progress
from ..parsing import FileRefused
from .calls import call_of
from .fitting import largest
from .remedies import remedies
from .sizes import UnknownSize
from .step import Step, StepRaised, Subject, failed_at

_TRIES = 4  # of sizes below the one that should fit
_NEXT = 3  # remedies that a finding tells


def look(
    path: str | Path, source: str | None, reports: list[Report], config: Config, say: Progress, until: float
) -> None:
    """For functions that were called: each is made anew, because a step changes what it runs."""
    for report in reports:
        if report.inputs is None or report.unchanged:
            continue
        try:
            with call_of(path, source, report.function, config, report.device) as (file, call):
                report.step = _of(file, call, report, config, say, until)
        except FileRefused as refused:
            report.diagnostics.append(_failed(report, refused.diagnostic.message))


def _of(
    file: OpenFile, call: Call | Diagnostic, report: Report, config: Config, say: Progress, until: float
) -> StepMemory | None:
    if isinstance(call, Diagnostic):
        report.diagnostics.append(_failed(report, call.message))
        return None
    try:
        return _told(file, call, report, config, say, until)
    except (UnknownSize, ValueError) as error:
        report.diagnostics.append(_failed(report, str(error)))
    except StepRaised as error:
        why, where = failed_at(error)
        report.diagnostics.append(
            diagnostics.make("FL633", where or report.span, what=report.function, why=f"it raised {why}")
        )
    return None


def _told(file: OpenFile, call: Call, report: Report, config: Config, say: Progress, until: float) -> StepMemory:
    say(f"{report.function}: memory of a step")
    step = Step(Subject.of(call, file.source), config)
    sizes = sizes_of(config.step_sizes)
    found = step.memory(sizes)
    axis = step.sizes.axis
    if found.limit is not None and axis:
        say(f"{report.function}: the largest {axis} that fits")
        with contextlib.suppress(StepRaised):  # calls of other sizes may not work
            found = dataclasses.replace(found, largest=_largest(step, sizes, axis, found))
    if not found.fits:
        say(f"{report.function}: what would make it fit")
        found = dataclasses.replace(found, remedies=remedies(file, step, sizes, found, say, until, report.device))
        report.diagnostics.append(_too_much(report, found))
    return found


def _largest(step: Step, sizes: dict[str, int], axis: str, found: StepMemory) -> int | None:
    """By one compilation for all sizes, and then as a run with that size would be compiled. Raises StepRaised."""
    limit = found.limit or 0
    most = largest(lambda n: step.memory(sizes | {axis: n}, varying=True).peak, found.sizes[axis], limit)
    for _ in range(_TRIES):
        if not most or step.memory(sizes | {axis: most}).peak <= limit:
            break
        most -= max(1, most // 64)
    return most


def _failed(report: Report, why: str) -> Diagnostic:
    return diagnostics.make("FL633", report.span, what=report.function, why=why)


def _too_much(report: Report, step: StepMemory) -> Diagnostic:
    text = live_memory.bytes_text
    assert step.limit is not None
    place = step.span if step.span is not None and step.span.file == report.file else report.span
    kinds = ", ".join(f"{text(count)} {kind}" for kind, count in list(step.kinds.items())[:4])
    sizes = ", ".join(f"{name}={size}" for name, size in step.sizes.items())
    has = f"the {step.card} has {text(step.limit)}" if step.card else f"{text(step.limit)} are allowed"
    line = sum(h.bytes for h in step.held if h.span is not None and place is not None and h.span.line == place.line)
    found = diagnostics.make(
        "FL630", place, needed=text(step.peak), sizes=f" for {sizes}" if sizes else "", has=has, phase=step.phase, kinds=kinds,
        line=f"; this line holds {text(line)}" if line else "", fits=_fitting(step),
    )  # fmt: skip
    hints = [_hint(remedy, step.limit) for remedy in step.remedies[:_NEXT]]
    fixes = tuple(Fix(_titled(r, step.limit), r.edits) for r in step.remedies if r.edits)
    return dataclasses.replace(found, hints=tuple(hints) or found.hints, fixes=fixes)


def _hint(remedy: Remedy, limit: int) -> str:
    how = f" ({remedy.how})" if remedy.how else ""
    where = f", line {remedy.span.line}" if remedy.span is not None else ""
    return f"{_titled(remedy, limit)}{how}{where}{f'; {remedy.changes}' if remedy.changes else ''}."


def _titled(remedy: Remedy, limit: int) -> str:
    fits = ", and then it fits" if remedy.peak <= limit else ""
    return f"{remedy.title}: −{live_memory.bytes_text(remedy.saves)} {remedy.cost}{fits}"


def _fitting(step: StepMemory) -> str:
    if step.largest is None or not step.axis:
        return ""
    return (
        f". The largest {step.axis} that fits is {step.largest}" if step.largest else f". Not even {step.axis}=1 fits"
    )
