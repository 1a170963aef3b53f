"""What of a report is needed to compare it with another: no texts of stages, and names that mean the same in both."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..record import fusion_sentences, live_memory, plain
from ..record.report import Decision, Diagnostic, FileReport, Graph, Report, Span
from ..system import source_text

_FUSIONS = ("FL410", "FL411")
_LONGEST = 60  # characters of an expression that stands for an operation


def findings(file: FileReport) -> Iterator[Diagnostic]:
    """All of a file."""
    yield from file.diagnostics
    for report in file.functions:
        yield from report.breaks
        yield from report.diagnostics


def slim(file: FileReport, stages: Sequence[str] = ()) -> FileReport:
    """The report with fusions named by the expressions they fuse, of memory the highest step of each phase, and the texts of
    ``stages`` (names, or "all")."""
    texts: dict[str, list[bytes] | None] = {}

    def of(span: Span | None) -> str:
        if span is None:
            return ""
        if span.file not in texts:
            text = source_text.shown(span.file)
            texts[span.file] = None if text is None else [line.encode() for line in source_text.lines(text)]
        return _expression(texts[span.file], span)

    return dataclasses.replace(file, functions=[_function(r, of, stages) for r in file.functions], imports=())


def _function(report: Report, text: Callable[[Span | None], str], stages: Sequence[str]) -> Report:
    breaks = [dataclasses.replace(d, fixes=()) for d in report.breaks]
    found = [dataclasses.replace(d, fixes=()) for d in report.diagnostics]
    return dataclasses.replace(
        report, graphs=[_graph(g, text, stages) for g in report.graphs], breaks=breaks, diagnostics=found, shapes=[], symbols=[], timings=[]
    )  # fmt: skip


def _graph(graph: Graph, text: Callable[[Span | None], str], stages: Sequence[str]) -> Graph:
    highest = [step for phase in live_memory.PHASES if (step := live_memory.peak(graph, phase)) is not None]
    asked = [s for s in graph.stages if s.name in stages or "all" in stages]
    return dataclasses.replace(
        graph, stages=[dataclasses.replace(s, lines=()) for s in asked], structure=[], repro="", timings=[], memory=highest,
        decisions=[_decision(d, text) for d in graph.decisions if d.code in _FUSIONS or d.verdict == "saved"],
    )  # fmt: skip


def _decision(made: Decision, text: Callable[[Span | None], str]) -> Decision:
    if made.code not in _FUSIONS:
        return made
    one, other = text(made.other), text(made.span)
    subject = f"`{one}` with `{other}`" if one and other else made.subject
    return dataclasses.replace(made, subject=subject, reason=fusion_sentences.why_apart(made))


def _expression(lines: list[bytes] | None, span: Span) -> str:
    """The text of a span in one line."""
    if lines is None or not 0 < span.line <= span.end_line <= len(lines):
        return ""
    part = lines[span.line - 1 : span.end_line]
    part[-1] = part[-1][: span.end_column]
    part[0] = part[0][span.column :]
    joined = " ".join(line.decode(errors="replace").strip() for line in part)
    return joined if len(joined) <= _LONGEST else f"{joined[: _LONGEST - 1]}…"


def relocated(file: FileReport, folder: str, top: str) -> FileReport:
    """The report with every path below ``folder`` as one below ``top``."""
    if folder in ("", top):
        return file
    spans = plain.Spans()
    body = plain.to_plain(file, spans)
    text = json.dumps({"file": body, "spans": spans.rows})
    moved: Any = json.loads(text.replace(json.dumps(folder)[1:-1], json.dumps(top)[1:-1]))
    return plain.from_plain(FileReport, moved["file"], [Span(*row) for row in moved["spans"]])
