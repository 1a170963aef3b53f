"""Edits that remove graph breaks, made from the source: what a finding with a mechanical fix offers.

A producer gives what the text suggests and leaves out what, by the text, would change what the program does. Whether a
fix is one, the worker finds out: it compiles the edited file and compares with eager (:mod:`fuselens.trials`).
Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from ..report import Diagnostic, Fix, Report, Span
from .branches import branch_fixes, chooses
from .calls import call_fixes
from .effects import effect_fixes
from .scalars import scalar_fixes
from .source import Source, applied

__all__ = ["Source", "applied", "chooses", "may_have", "propose", "with_fixes"]


def _look_fixes(source: Source, span: Span | None) -> Iterator[Fix]:
    yield from scalar_fixes(source, span)
    yield from call_fixes(source, span)


PRODUCERS: dict[str, Callable[[Source, Span | None], Iterator[Fix]]] = {
    "FL101": branch_fixes,
    "FL102": _look_fixes,
    "FL103": effect_fixes,
    "FL104": call_fixes,
    "FL116": branch_fixes,
    "FL118": call_fixes,
}


def propose(source: Source, finding: Diagnostic) -> tuple[Fix, ...]:
    """The fixes of one finding, the best first; none where it has no mechanical one, or is about another file."""
    producer = PRODUCERS.get(finding.code)
    if producer is None or finding.span is None or finding.span.file != source.filename:
        return ()
    return tuple({fix.edits: fix for fix in producer(source, finding.span)}.values())


def may_have(report: Report) -> bool:
    """Whether any finding is of a kind that has fixes."""
    return any(d.code in PRODUCERS for d in (*report.breaks, *report.diagnostics))


def with_fixes(report: Report, source: Source) -> Report:
    """``report`` with the fixes of its findings."""

    def fixed(found: list[Diagnostic]) -> list[Diagnostic]:
        return [dataclasses.replace(d, fixes=propose(source, d)) for d in found]

    return dataclasses.replace(report, breaks=fixed(report.breaks), diagnostics=fixed(report.diagnostics))
