"""Edits that remove graph breaks, made from the source: what a finding with a mechanical fix offers.

A producer gives what the text suggests and leaves out what, by the text, would change what the program does. Whether a
fix is one, the worker finds out: it compiles the edited file and compares with eager (:mod:`fuselens.checking.trials`).
Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from ...record.report import Diagnostic, Fix, Report
from .branches import branch_fixes, chooses
from .calls import call_fixes
from .composing import collide, differences, followed
from .contexts import context_fixes
from .effects import effect_fixes
from .examples import example_fixes
from .experts import expert_fixes
from .recompiles import foreseen_fixes, recompile_fixes
from .scalars import scalar_fixes
from .shapes import shape_fixes
from .source import FORMATTED, Source, applied

__all__ = [
    "FORMATTED",
    "Source",
    "applied",
    "chooses",
    "collide",
    "differences",
    "example_fixes",
    "followed",
    "foreseen_fixes",
    "may_have",
    "propose",
    "with_fixes",
]


def _look_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    yield from scalar_fixes(source, finding)
    yield from call_fixes(source, finding)


def _outside_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    yield from call_fixes(source, finding)
    yield from context_fixes(source, finding)


def _size_fixes(source: Source, finding: Diagnostic) -> Iterator[Fix]:
    yield from shape_fixes(source, finding)
    yield from expert_fixes(source, finding)


PRODUCERS: dict[str, Callable[[Source, Diagnostic], Iterator[Fix]]] = {
    "FL101": branch_fixes,
    "FL102": _look_fixes,
    "FL103": effect_fixes,
    "FL104": _outside_fixes,
    "FL105": call_fixes,
    "FL106": call_fixes,
    "FL108": _size_fixes,
    "FL113": context_fixes,
    "FL116": branch_fixes,
    "FL118": call_fixes,
    "FL201": recompile_fixes,
    "FL202": recompile_fixes,
    "FL205": recompile_fixes,
}


def propose(source: Source, finding: Diagnostic) -> tuple[Fix, ...]:
    """The fixes of one finding, the best first; none where it has no mechanical one, or is about another file."""
    producer = PRODUCERS.get(finding.code)
    if producer is None or finding.span is None or finding.span.file != source.filename:
        return ()
    return tuple({fix.edits: fix for fix in producer(source, finding)}.values())


def may_have(report: Report) -> bool:
    """Whether any finding is of a kind that has fixes."""
    return any(d.code in PRODUCERS for d in (*report.breaks, *report.diagnostics))


def with_fixes(report: Report, source: Source) -> Report:
    """``report`` with the fixes of its findings."""

    def fixed(found: list[Diagnostic]) -> list[Diagnostic]:
        return [d if d.fixes else dataclasses.replace(d, fixes=propose(source, d)) for d in found]

    return dataclasses.replace(report, breaks=fixed(report.breaks), diagnostics=fixed(report.diagnostics))
