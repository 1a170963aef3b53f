"""What a compiled graph holds in memory, as text: a curve per line, what is saved for the backward, what is recomputed.

Pure functions of a report's :class:`Graph`; symbolic sizes are those of the example. Standard library only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from .report import Decision, Graph, Line, MemoryStep, Span

PHASES = ("forward", "backward")
_BAR = 24  # characters of the longest bar
_NOTED = 5  # lines on an error


def bytes_text(count: int | None) -> str:
    """``1.5 MiB``; "?" for None."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"


def seconds_text(seconds: float | None) -> str:
    """``1.2 s``, ``34 ms``, ``5.6 µs``; "–" for None."""
    if seconds is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def peak(graph: Graph, phase: str) -> MemoryStep | None:
    """The first step of ``phase`` that holds the most."""
    return max((s for s in graph.memory if s.phase == phase), key=lambda s: s.bytes, default=None)


def by_line(graph: Graph, phase: str) -> dict[tuple[str, int], int]:
    """(file, line) -> the most bytes that a step of ``phase`` holds which computes something of the line."""
    found: dict[tuple[str, int], int] = {}
    for step in graph.memory:
        if step.phase == phase:
            for span in step.spans:
                place = span.file, span.line
                found[place] = max(found.get(place, 0), step.bytes)
    return dict(sorted(found.items()))


def saved(graph: Graph) -> list[Decision]:
    """What is kept from the forward for the backward, the largest first; inputs, which are alive anyway, last."""
    return sorted((d for d in graph.decisions if d.verdict == "saved"), key=lambda d: -_bytes(d))


def recomputed(graph: Graph) -> list[Decision]:
    """What the backward computes again."""
    return [d for d in graph.decisions if d.verdict == "recomputed"]


def saved_bytes(graph: Graph) -> int:
    return sum(map(_bytes, saved(graph)))


def at(graph: Graph, here: Callable[[Span], bool]) -> list[str]:
    """Sentences about the line whose spans are ``here``: what it saves, and whether memory peaks."""
    kept = [d for d in saved(graph) if _bytes(d) and d.span is not None and here(d.span)]
    if len(kept) > 1:
        out = [f"saved for backward: {bytes_text(sum(map(_bytes, kept)))} in {len(kept)} values"]
    else:
        out = [f"saved for backward: {bytes_text(_bytes(d))} (`{d.subject}`), because {d.reason}" for d in kept]
    if kept and graph.runs > 1:
        out.append(f"its graph runs {graph.runs} times, and saves as much each time")
    if again := sum(d.span is not None and here(d.span) for d in recomputed(graph)):
        out.append(f"the backward computes {again} value{'' if again == 1 else 's'} of it again")
    for phase in PHASES:
        highest = peak(graph, phase)
        steps = [s.bytes for s in graph.memory if s.phase == phase and any(map(here, s.spans))]
        if highest is not None and highest.bytes and steps:
            if max(steps) == highest.bytes:
                out.append(f"peak memory of the {phase} here: {bytes_text(highest.bytes)}")
    return out


def when_out(graph: Graph, phase: str, function: str, file: str) -> str:
    """What is said on an out-of-memory error that a graph raised: what it holds by its plan, by line; "" where nothing is known."""
    highest = peak(graph, phase)
    if highest is None:
        return ""
    lines = sorted(by_line(graph, phase).items(), key=lambda item: -item[1])
    out = [
        f"The {phase} of graph {graph.id} of {function} was to hold {bytes_text(highest.bytes)} at most, for its example's sizes:"
    ]
    out += [f"  {_short(place, file)}: {bytes_text(count)} while it runs" for place, count in lines[:_NOTED] if count]
    if kept := saved_bytes(graph):
        largest = next(d for d in saved(graph) if _bytes(d))
        where = (
            f", most of it {bytes_text(_bytes(largest))} of {_short((largest.span.file, largest.span.line), file)}"
            if largest.span
            else ""
        )
        out.append(f"  {bytes_text(kept)} is kept from the forward for the backward{where}")
    out.append("`fuselens memory` says what the whole step holds, the largest batch that fits, and what would help:")
    out.append('  torch.utils.checkpoint around a layer, options={"memory_budget": 0.5}, a smaller batch')
    return "\n".join(out)


def _short(place: tuple[str, int], file: str) -> str:
    return Span(place[0], place[1], 0, place[1], 0).place(file)


def of_parts(parts: Sequence[Graph]) -> list[MemoryStep]:
    """The steps of a graph that runs ``parts``, in their order: a part holds what those before it have saved, too."""
    held = list(itertools.accumulate(map(saved_bytes, parts), initial=0))[: len(parts)]
    return [
        replace(step, bytes=step.bytes + before)
        for phase, order in (("forward", 1), ("backward", -1))
        for part, before in list(zip(parts, held, strict=True))[::order]
        for step in part.memory
        if step.phase == phase
    ]


def text(graph: Graph, about: str) -> tuple[str, tuple[Line, ...]]:
    """The document for a report about the file ``about``, and the spans of its lines. Empty for a graph of which nothing
    is known."""
    out: list[str] = []
    lines: list[Line] = []

    def say(line: str, *spans: Span) -> None:
        out.append(line)
        if spans:
            lines.append(Line(len(out), spans))

    for phase in PHASES:
        highest = peak(graph, phase)
        if highest is None:
            continue
        say(f"{phase}: at most {bytes_text(highest.bytes)} held at once, in {highest.name}", *highest.spans)
        for (file, line), count in by_line(graph, phase).items():
            spans = [p for s in graph.memory if s.phase == phase for p in s.spans if (p.file, p.line) == (file, line)]
            bar = "#" * -(-count * _BAR // max(highest.bytes, 1))
            where = f"line {line:>5}" if file == about else spans[0].place(about)
            say(f"  {where:>10}  {bytes_text(count):>10}  {bar}", *dict.fromkeys(spans))
    kept = [d for d in saved(graph) if _bytes(d)]
    if kept:
        say(f"saved for backward: {bytes_text(saved_bytes(graph))} in {len(kept)} value{'' if len(kept) == 1 else 's'}")
        for d in kept:
            say(f"  {_described(d, about)}: {d.reason}", *_spans(d))
    free = [d.subject for d in saved(graph) if not _bytes(d)]
    if free:
        say(f"read again by the backward, alive anyway: {', '.join(free)}")
    again = recomputed(graph)
    if again:
        say("computed again in the backward")
        for d in again:
            say(f"  {_described(d, about)}: {d.reason}", *_spans(d))
    return "".join(f"{line}\n" for line in out), tuple(lines)


def _described(decision: Decision, about: str) -> str:
    where = f", {decision.span.place(about)}" if decision.span else ""
    return f"{bytes_text(_bytes(decision)):>10}  {decision.subject} {decision.data.get('shape', '')}{where}"


def _spans(decision: Decision) -> tuple[Span, ...]:
    return (decision.span,) if decision.span else ()


def _bytes(decision: Decision) -> int:
    return int(decision.data.get("bytes", 0))
