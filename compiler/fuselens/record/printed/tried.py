"""What *What if* says: each change in a few words for a menu, all of them for a lens, and in lines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..live_memory import bytes_text
from ..report import TriedChange, WhatIf
from . import schema

_OF = {
    "call": "time",
    "backward": "time, forward and backward",
    "first calls": "time of the first calls",
    "batch": "time for each row",
}
_LEAST = 1 << 20  # bytes: less is not told
_NOISE = 0.005


def gain(change: TriedChange) -> str:
    """``−11 % time, −420 MiB``; "" where nothing was measured."""
    said = []
    if change.time is not None:
        percent = round(100 * (change.time - 1)) if change.steady else 0
        said.append(f"{_signed(percent)} % {_OF[change.of]}" if percent else f"no other {_OF[change.of]}")
    if abs(change.saved) >= _LEAST:
        sign = "−" if change.saved > 0 else "+"
        said.append(f"{sign}{bytes_text(abs(change.saved))}")
    return ", ".join(said)


def title(change: TriedChange) -> str:
    """``Leave out .clone(): −11 % time, −420 MiB``, with what it changes."""
    return "; ".join(filter(None, (f"{change.title}: {gain(change)}", differs(change))))


def headline(found: WhatIf) -> str:
    """``3 changes gain up to 31 %``, for a lens."""
    edits = [change for change in found.offered if change.edits]
    if not edits:
        return "no change gains" if found.changes and not found.left else ""
    count = f"{len(edits)} change{'s' * (len(edits) != 1)} gain{'s' * (len(edits) == 1)}"
    best = max((1 - change.time for change in edits if change.time is not None and change.steady), default=0.0)
    saved = max(change.saved for change in edits)
    if best >= _NOISE:
        return f"{count} up to {round(100 * best)} %"
    return f"{count} up to {bytes_text(saved)}"


def lines(found: WhatIf, file: str) -> Iterator[str]:
    """All that was tried; what is offered is numbered, as ``--apply`` takes it."""
    if found.stopped:
        yield f"nothing is known: {found.stopped}"
        return
    yield f"{headline(found) or 'nothing was measured'} ({found.seconds:.3g} of {found.budget:g} s of processor time used)"
    edits = [change for change in found.offered if change.edits]
    for number, change in enumerate(edits, start=1):
        yield f"  {number}. {_place(change, file)}{title(change)}"
        yield f"     {_evidence(change)}"
    for change in found.offered:
        if not change.edits:
            yield f"  for information: {title(change)}"
            yield f"     {_evidence(change)}"
    for change in found.changes:
        if not change.offered:
            yield f"  not offered: {_place(change, file)}{change.title}: {change.why}"
    for left in found.left:
        yield f"  not tried, because the processor time was used: {left}"


def json_schema() -> dict[str, Any]:
    """Of what ``fuselens what-if --format json`` prints."""
    return schema.of_list(WhatIf, "what-if", "What fuselens what-if --format json prints")


def differs(change: TriedChange) -> str:
    """That values are others: what changes them is said with how much."""
    error = f"differs from eager by {change.error:.0e}".replace("e-0", "e-") if change.error else ""
    return "; ".join(filter(None, (error, change.changes)))


def _evidence(change: TriedChange) -> str:
    said = []
    if change.seconds is not None and change.seconds_before is not None:
        said.append(f"{_seconds(change.seconds_before)} → {_seconds(change.seconds)}")
    if change.time_quartiles is not None:
        low, high = (_signed(round(100 * (q - 1))) for q in change.time_quartiles)
        said.append(f"half of the pairs of calls between {low} and {high} %")
    if change.bytes is not None and change.bytes_before is not None:
        said.append(f"memory of a call {bytes_text(change.bytes_before)} → {bytes_text(change.bytes)}")
    if change.compared:
        how = "within bfloat16 of eager" if change.error else "eager's values"
        said.append(f"{how} on {change.compared} kind{'s' * (change.compared != 1)} of calls")
    return "; ".join(said)


def _place(change: TriedChange, file: str) -> str:
    return f"{change.span.place(file)}: " if change.span is not None else ""


def _signed(percent: int) -> str:
    return f"{percent:+d}".replace("-", "−")


def _seconds(seconds: float) -> str:
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if seconds >= s), ("µs", 1e-6))
    return f"{seconds / scale:.3g} {unit}"
