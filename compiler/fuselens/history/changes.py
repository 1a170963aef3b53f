"""What two compilations of a function have different, and whether it is worse. Pure functions of two slim reports.

Findings are told apart by code and message, not by line: code that moves is not new. A number is worse where it grows, whatever the
reason: a function that computes more moves more bytes, and who reads the change knows why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..record import live_memory
from ..record.figures import STATUSES, counts, key, moved_bytes, peak_bytes, saved_bytes
from ..record.report import Decision, Diagnostic, FileReport, Report, Span

Kind = Literal[
    "function", "inputs", "target", "status", "break", "finding", "eager", "fusion", "graphs", "kernels", "libraries", "bytes", "saved",
    "peak", "guards", "time",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    "function", "inputs", "target", "status", "break", "finding", "eager", "fusion", "graphs", "kernels", "libraries", "bytes", "saved",
    "peak", "guards", "time",
)  # fmt: skip
Direction = Literal["worse", "better", "other"]
Value = int | float | str | None
_BYTES = frozenset({"bytes", "saved", "peak"})


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``what`` names it among those of its kind: a finding by code and message, a fusion by its expressions, a
    kernel by its name. ``before`` and ``after`` are its values; of findings and fusions how many there are. ``span`` is where it
    is now, or where what is gone was."""

    kind: Kind
    what: str
    before: Value
    after: Value
    direction: Direction = "other"
    why: str = ""
    span: Span | None = None

    @property
    def text(self) -> str:
        """In a few words, for one who knows the function."""
        return _text(self)


@dataclass(frozen=True, slots=True)
class FunctionChange:
    """What became of one function: ``old_name`` and ``old_file`` are others where it was renamed or moved. ``span`` is that of its
    name now, or before where it is gone."""

    function: str
    file: str
    changes: tuple[Change, ...]
    span: Span | None = None
    old_name: str = ""
    old_file: str = ""

    @property
    def worse(self) -> list[Change]:
        return [change for change in self.changes if change.direction == "worse"]


# --- one value of a report ------------------------------------------------------------------------------------------


def value(kind: Kind, what: str, report: Report | None) -> Value:
    """What a change of this kind is about, in another report; None where there is no such function, or it is not known."""
    if report is None:
        return None
    if kind in _LISTED:
        return _LISTED[kind](report).get(what, 0)
    return _NUMBERS[kind](report) if kind in _NUMBERS else _WORDS[kind](report)


def is_as(kind: Kind, one: Value, now: Value, before: Value) -> bool:
    """Whether ``one`` is at least as far from ``before`` as ``now`` is, in its direction."""
    if kind in _WORDS or not all(isinstance(v, (int, float)) for v in (one, now, before)):
        return one == now
    return one >= now if now > before else one <= now  # type: ignore[operator]


def _breaks(report: Report) -> Counter[str]:
    return Counter(key(d) for d in report.breaks)


def _found(report: Report) -> Counter[str]:
    return Counter(key(d) for d in report.diagnostics if counts(d))


def _fused(report: Report) -> Counter[str]:
    return Counter(d.subject for d in _decisions(report, "FL410") if d.subject.startswith("`"))


def _decisions(report: Report, code: str) -> Iterator[Decision]:
    return (d for graph in report.graphs for d in graph.decisions if d.code == code)


_LISTED: Mapping[str, Callable[[Report], Counter[str]]] = {"break": _breaks, "finding": _found, "fusion": _fused}
_NUMBERS: Mapping[str, Callable[[Report], Value]] = {
    "eager": lambda r: sum(g.fallback for g in r.captured),
    "graphs": lambda r: len(r.captured),
    "kernels": lambda r: len(r.kernels),
    "libraries": lambda r: sum(len(g.externs) for g in r.graphs),
    "bytes": moved_bytes,
    "saved": saved_bytes,
    "peak": peak_bytes,
    "guards": lambda r: len(r.guards),
}
_WORDS: Mapping[str, Callable[[Report], Value]] = {
    "function": lambda r: "there",
    "inputs": lambda r: str(r.inputs) if r.inputs is not None else "none",
    "target": lambda r: r.target,
    "status": lambda r: r.status,
}


# --- two reports ----------------------------------------------------------------------------------------------------


def between(before: Report, after: Report) -> tuple[Change, ...]:
    """Every difference, in the order of ``KINDS``."""
    found = [*_words(before, after), *_listed(before, after), *_numbers(before, after)]
    return tuple(sorted(found, key=lambda c: KINDS.index(c.kind)))


def _words(before: Report, after: Report) -> Iterator[Change]:
    for kind in ("inputs", "target"):
        a, b = value(kind, "", before), value(kind, "", after)
        if a != b:
            yield Change(kind, "", a, b, span=after.span)
    a, b = before.status, after.status
    if a != b and {a, b} != {"whole", "with breaks"}:  # the breaks themselves say that
        why = after.uncompiled if b == "not compiled" else ""
        yield Change("status", "", a, b, _direction(STATUSES.index(a), STATUSES.index(b)), why, after.span)


def _listed(before: Report, after: Report) -> Iterator[Change]:
    kinds: tuple[tuple[Kind, Callable[[Report], list[Diagnostic]]], ...] = (
        ("break", lambda r: r.breaks),
        ("finding", lambda r: [d for d in r.diagnostics if counts(d)]),
    )
    for kind, of in kinds:
        had, has = _LISTED[kind](before), _LISTED[kind](after)
        for what in dict.fromkeys([*has, *had]):
            if had[what] != has[what]:
                places = [d for d in of(after if has[what] > had[what] else before) if key(d) == what]
                yield Change(
                    kind, what, had[what], has[what], _direction(had[what], has[what]), places[-1].cost, places[-1].span
                )
    yield from _lost_fusions(before, after)


def _lost_fusions(before: Report, after: Report) -> Iterator[Change]:
    """Operations that were one kernel, and that the compiler now keeps apart: with its reason. What is gone from the source, or was
    not fused before, is no loss."""
    had, has = _fused(before), _fused(after)
    refused = {d.subject: d for d in _decisions(after, "FL411")}
    for what in had:
        if has[what] < had[what] and what in refused:
            apart = refused[what]
            yield Change("fusion", what, had[what], has[what], "worse", apart.reason, apart.span)
    was_refused = {d.subject for d in _decisions(before, "FL411")}
    for what in has:
        if has[what] > had[what] and what in was_refused:
            taken = next(d for d in _decisions(after, "FL410") if d.subject == what)
            yield Change("fusion", what, had[what], has[what], "better", taken.reason, taken.span)


def _numbers(before: Report, after: Report) -> Iterator[Change]:
    if "not compiled" in (before.status, after.status):
        return  # the numbers of what is not compiled mean nothing
    same_inputs = value("inputs", "", before) == value("inputs", "", after)
    other_graphs = len(before.captured) != len(after.captured)  # what is held between graphs is in no graph's peak
    for kind, of in _NUMBERS.items():
        a, b = of(before), of(after)
        if a != b:
            judged = same_inputs or kind == "eager"
            neutral = kind in ("graphs", "libraries", "guards") or not judged or (kind == "peak" and other_graphs)
            yield Change(kind, "", a, b, "other" if neutral else _direction(a, b), span=after.span)  # type: ignore[arg-type]


def _direction(before: Value, after: Value) -> Direction:
    if not isinstance(before, (int, float)) or not isinstance(after, (int, float)):
        return "other"
    return "worse" if after > before else "better"


def alone(report: Report, *, added: bool) -> tuple[Change, ...]:
    """What there is to say of a function that only one side has: of a new one, what stands in its way."""
    if not added:
        return (Change("function", "", "there", None, span=report.span),)
    out = [Change("function", "", None, "there", span=report.span)]
    for kind, had in (("break", report.breaks), ("finding", [d for d in report.diagnostics if counts(d)])):
        for what, number in Counter(map(key, had)).items():
            place = next(d for d in had if key(d) == what)
            out.append(Change(kind, what, 0, number, "worse", place.cost, place.span))  # type: ignore[arg-type]
    return tuple(out)


def of_file(before: FileReport | None, after: FileReport | None) -> tuple[Change, ...]:
    """What keeps a file as a whole from being compiled, and did not, or does no more."""
    sides = [[d for d in (file.diagnostics if file else ()) if d.severity == "error"] for file in (before, after)]
    had, has = (Counter(map(key, side)) for side in sides)
    out = []
    for what in dict.fromkeys([*has, *had]):
        if had[what] != has[what]:
            place = next(d for d in sides[has[what] > had[what]] if key(d) == what)
            out.append(Change("finding", what, had[what], has[what], _direction(had[what], has[what]), "", place.span))
    return tuple(out)


# --- words ----------------------------------------------------------------------------------------------------------

_NOUNS = {
    "eager": ("graph that runs eagerly", "graphs that run eagerly"), "graphs": ("graph", "graphs"), "kernels": ("kernel", "kernels"),
    "libraries": ("call of a library", "calls of libraries"), "guards": ("guard", "guards"),
}  # fmt: skip
_ABOUT = {
    "bytes": "bytes moved in a call", "saved": "saved for backward", "peak": "peak memory", "inputs": "checked with",
    "target": "target", "status": "status",
}  # fmt: skip


def _text(change: Change) -> str:
    before, after = change.before, change.after
    if change.kind == "function":
        return "new function" if before is None else "function is gone"
    if change.kind in ("break", "finding"):
        assert isinstance(before, int)
        assert isinstance(after, int)
        noun = "break" if change.kind == "break" else "finding"
        number = abs(after - before)
        done = "added" if after > before else "gone"
        code, _, message = change.what.partition(" ")
        return f"{number} {noun}{'s' * (number != 1)} {done}: {code} {message.removeprefix('graph break: ')}"
    if change.kind == "fusion":
        lost = change.direction == "worse"
        return f"{change.what} {'are not fused any more' if lost else 'are fused now'}"
    if change.kind == "time":
        name = f"kernel {change.what}" if change.what else "a call"
        return f"{name}: {seconds_text(before)} → {seconds_text(after)}{_factor(before, after)}"
    if change.kind in _BYTES:
        sizes = [live_memory.bytes_text(v if isinstance(v, int) else None) for v in (before, after)]
        if sizes[0] == sizes[1]:
            sizes = [f"{v:,} B" for v in (before, after)]
        return f"{_ABOUT[change.kind]}: {sizes[0]} → {sizes[1]}{_factor(before, after)}"
    if change.kind in _NOUNS:
        return f"{_NOUNS[change.kind][1]}: {before} → {after}"
    return f"{_ABOUT[change.kind]}: {before} → {after}"


def _factor(before: Value, after: Value) -> str:
    if not isinstance(before, (int, float)) or not isinstance(after, (int, float)) or not before:
        return ""
    percent = 100 * (after - before) / before
    if abs(percent) < 0.5:
        return ""
    return f" ({percent:+.0f} %)" if abs(percent) < 1000 else f" ({after / before:.0f} ×)"


def seconds_text(seconds: Value) -> str:
    return live_memory.seconds_text(seconds) if isinstance(seconds, (int, float)) else "?"
