"""How far functions, kernels and lines are from what the machine allows: of the last *Run*, and without one what the machine needs."""

from __future__ import annotations

from collections.abc import Iterable

from lsprotocol import types as lsp

from fuselens.record import limits
from fuselens.record.live_memory import seconds_text
from fuselens.record.printed import distance
from fuselens.record.report import KernelRun, Report, Span, Work
from fuselens_server.features.markdown import code
from fuselens_server.texts.view import View

_MOST_KERNELS = 3
_WORTH_SECONDS = 1e-6  # below which what a line needs is not told


def title(view: View, report: Report) -> str:
    """``34 ms · 71 % of what memory allows``, for a lens; "" where nothing was timed."""
    kept = view.runs.get(report.function)
    found = limits.distance(kept.result) if kept is not None else None
    if found is None:
        return ""
    return f"{seconds_text(found.seconds)} · {distance.allowed(found)}"


def text(view: View, report: Report) -> str:
    """The document about a function: its sentences and kernels, what they need, and what the machine can do."""
    kept = view.runs.get(report.function)
    rows = [f"{report.function}: how far it is from what the machine allows", ""]
    if kept is not None and kept.result.machine is not None:
        rows += [*distance.lines(kept.result), "", *distance.machine_lines(kept.result.machine)]
    elif report.machine is not None:
        rows += [
            "Nothing was timed. Run times its kernels. At least they need:",
            *distance.needed_lines(report, report.machine),
        ]
        rows += ["", *distance.machine_lines(report.machine)]
    return "\n".join(rows) + "\n"


def rows(view: View, position: lsp.Position) -> list[str]:
    """The rows of a hover on a line."""
    line = view.compiled.line(position) if view.report else None
    if line is None:
        return []
    said: list[str] = []
    for report in view.reports():
        kept = view.runs.get(report.function)
        timed = [k for k in kept.result.kernels if k.seconds and _covers(view, k.spans, line)] if kept else []
        if timed:
            said.append(f"Run: {_timed(timed)}")
        elif report.machine is not None and (told := _needed(view, report, line)):
            said.append(told)
    return said


def _timed(kernels: Iterable[KernelRun]) -> str:
    in_training_last = sorted(kernels, key=lambda k: k.trains)
    once = {(k.name, k.phase): k for k in reversed(in_training_last)}  # a kernel of calls, where both have it
    slowest = sorted(once.values(), key=lambda k: -(k.seconds or 0.0))
    said = [f"{code(k.name)} ({k.phase}) {distance.kernel_text(k)}" for k in slowest[:_MOST_KERNELS]]
    return "; ".join(
        [*said, *([f"and {len(slowest) - _MOST_KERNELS} faster ones"] if len(slowest) > _MOST_KERNELS else [])]
    )


def _needed(view: View, report: Report, line: int) -> str:
    """What the kernels of a line need at least, by what takes it."""
    assert report.machine is not None
    here = [(graph.runs, work) for graph in report.graphs for work in graph.work if _covers(view, work.spans, line)]
    by_limit: dict[str, float] = {}
    for runs, work in here:
        least, bound = _least(report, work)
        by_limit[bound] = by_limit.get(bound, 0.0) + max(1, runs) * least
    if sum(by_limit.values()) < _WORTH_SECONDS:
        return ""
    needs = ", ".join(
        f"{seconds_text(by_limit[bound])} for {limits.WAITS_FOR[bound]}"
        for bound in sorted(by_limit, key=lambda b: -by_limit[b])
    )
    return f"At least: {needs} ({report.machine.name})"


def _least(report: Report, work: Work) -> tuple[float, str]:
    assert report.machine is not None
    found = limits.seconds(work.read, work.written, work.operations, report.machine)
    bound = limits.longest(found)
    return found[bound], bound


def _covers(view: View, spans: Iterable[Span], line: int) -> bool:
    return any(view.here(span) and span.line <= line <= span.end_line for span in spans)
