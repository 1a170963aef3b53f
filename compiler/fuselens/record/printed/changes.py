"""What two reports of a function have different, in lines: numbers, breaks, findings, guards, kernels, fusions, texts of stages.

Pure functions of file reports. Standard library only.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from .. import views
from ..figures import key, moved_bytes
from ..report import FileReport, Report

_MOST = 12  # of one kind that are listed


def text(
    old: FileReport, new: FileReport, names: tuple[str, str], stages: Sequence[str] = (), *, same_name: bool = False
) -> str:
    """ "" where nothing is different. ``same_name``: each report has one function, and the two are compared whatever they are
    called; otherwise functions are those of one name."""
    before, after = ({r.function: r for r in file.functions} for file in (old, new))
    if same_name and len(before) == len(after) == 1:
        pairs = [(next(iter(after)), next(iter(before.values())), next(iter(after.values())))]
    else:
        pairs = [(name, before[name], after[name]) for name in after if name in before]
    out = [f"{name}: only in {names[0]}" for name in before if name not in after and not same_name]
    out += [f"{name}: only in {names[1]}" for name in after if name not in before and not same_name]
    for name, a, b in pairs:
        lines = of_function(a, b, names, stages)
        out += [name, *(f"  {line}" for line in lines)] if lines else []
    return "\n".join([f"--- {names[0]}", f"+++ {names[1]}", *out]) if out else ""


def of_function(a: Report, b: Report, names: tuple[str, str], stages: Sequence[str] = ()) -> list[str]:
    """Every line of what two reports have different."""
    return [*_numbers(a, b), *_lists(a, b), *_texts(a, b, names, stages)]


def _numbers(a: Report, b: Report) -> Iterator[str]:
    counted: tuple[tuple[str, Callable[[Report], object]], ...] = (
        ("status", lambda report: report.status),
        ("target", lambda r: r.target),
        ("graphs", lambda r: len(r.captured)),
        ("breaks", lambda r: len(r.breaks)),
        ("eager graphs", lambda r: sum(g.fallback for g in r.captured)),
        ("kernels", lambda r: len(r.kernels)),
        ("guards", lambda r: len(r.guards)),
        ("fusions", lambda r: sum(d.code == "FL410" for g in r.graphs for d in g.decisions)),
        ("moved in a call", lambda r: "–" if (n := moved_bytes(r)) is None else views.bytes_text(n)),
        ("calls of libraries", lambda r: sum(len(g.externs) for g in r.graphs)),
    )
    for name, of in counted:
        if of(a) != of(b):
            yield f"{name}: {of(a)} → {of(b)}"


def _lists(a: Report, b: Report) -> Iterator[str]:
    kinds: tuple[tuple[str, Callable[[Report], list[str]]], ...] = (
        ("", lambda r: [key(d) for d in (*r.breaks, *r.diagnostics)]),
        ("guard ", lambda r: [g.expression for g in r.guards]),
        ("kernel ", lambda r: [f"{k.name} ({k.phase})" for k in r.kernels]),
        ("fusion ", lambda r: [d.subject for g in r.graphs for d in g.decisions if d.code == "FL410"]),
    )
    for kind, of in kinds:
        had, has = Counter(of(a)), Counter(of(b))
        lines = [f"- {kind}{what}" for what in (had - has).elements()]
        lines += [f"+ {kind}{what}" for what in (has - had).elements()]
        yield from lines[:_MOST]
        if len(lines) > _MOST:
            yield f"… and {len(lines) - _MOST} more"


def _texts(a: Report, b: Report, names: tuple[str, str], stages: Sequence[str]) -> Iterator[str]:
    """Unified differences of the texts of stages that were asked for."""
    had, has = (views.stages_text(report, stages).splitlines() if stages else [] for report in (a, b))
    yield from difflib.unified_diff(had, has, names[0], names[1], lineterm="")
