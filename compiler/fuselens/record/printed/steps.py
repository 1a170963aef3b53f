"""The memory of a training step, as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ..live_memory import bytes_text
from ..report import Held, Remedy, StepMemory

_BAR = 24  # characters of the longest bar
_LINES = 12  # that are told
_PLACES = ("saved for backward", "temporary")  # kinds that lines have


def text(function: str, file: str, step: StepMemory) -> str:
    return "\n".join(_lines(function, file, step))


def _lines(function: str, file: str, step: StepMemory) -> Iterator[str]:
    sizes = ", ".join(f"{name}={size}" for name, size in step.sizes.items())
    yield f"{file}::{function}: a step holds {bytes_text(step.peak)} at most{f' with {sizes}' if sizes else ''}"
    told = [f"for {step.target}"]
    if step.optimizer:
        told.append(f"with {step.optimizer}")
    if step.reserved is not None:
        told.append(f"the allocator has {bytes_text(step.reserved)} by then")
    yield f"  {', '.join(told)}"
    if step.limit is not None:
        yield f"  {verdict(step)}"
    if step.phases:
        yield "  at most: " + ", ".join(f"{phase} {bytes_text(count)}" for phase, count in step.phases.items())
    where = f" at {step.span.place(file)}" if step.span is not None else ""
    yield f"  held at the peak, in the {step.phase}{where} ({step.what or 'what is there before'}):"
    widest = max(step.kinds.values(), default=1)
    for kind, count in step.kinds.items():
        yield f"    {kind:<20}{bytes_text(count):>11}  {'#' * -(-count * _BAR // max(widest, 1))}"
    lines = by_line(step)
    if lines:
        yield "  of this, by line:"
        for one in lines[:_LINES]:
            yield f"    {one.place(file):<20}{bytes_text(one.bytes):>11}  {one.kind}, {one.what}"
        if len(lines) > _LINES:
            rest = sum(one.bytes for one in lines[_LINES:])
            yield f"    {f'{len(lines) - _LINES} more lines':<20}{bytes_text(rest):>11}"
    for note in step.notes:
        yield f"  note: {note}"
    if step.remedies:
        yield "  what would help, each compiled and looked at again:"
        yield from (f"    {remedy_text(one, step, file)}" for one in step.remedies)


def verdict(step: StepMemory) -> str:
    """Whether it fits, and the largest size that does."""
    assert step.limit is not None
    whose = f"the {step.card} has {bytes_text(step.limit)}" if step.card else f"the limit is {bytes_text(step.limit)}"
    said = f"it fits: {whose}" if step.fits else f"IT DOES NOT FIT: {whose}"
    if step.largest is not None and step.axis:
        said += (
            f"; the largest {step.axis} that fits is {step.largest}"
            if step.largest
            else f"; not even {step.axis}=1 fits"
        )
    return said


def by_line(step: StepMemory) -> list[Held]:
    """What lines hold at the peak, the most first."""
    sums: dict[tuple[str, int], list[Held]] = defaultdict(list)
    for one in step.held:
        if one.span is not None:
            sums[one.span.file, one.span.line].append(one)
    found = [
        Held(max(ones, key=lambda h: h.bytes).kind, sum(h.bytes for h in ones), ones[0].span, max(ones, key=lambda h: h.bytes).what)
        for ones in sums.values()
    ]  # fmt: skip
    return sorted(found, key=lambda h: -h.bytes)


def remedy_text(remedy: Remedy, step: StepMemory, file: str) -> str:
    """``checkpoint line 12: −3.1 GiB for +6 % time, and then it fits``."""
    where = f" ({remedy.span.place(file)})" if remedy.span is not None else ""
    fits = ", and then it fits" if step.limit is not None and remedy.peak <= step.limit else ""
    changes = f"; {remedy.changes}" if remedy.changes else ""
    how = f": {remedy.how}" if remedy.how else ""
    return f"−{bytes_text(remedy.saves)} {remedy.cost}{fits}  {remedy.title}{where}{how}{changes}"
