"""Which questions *What if* asks, a process for each, and what the answers come to. The command line or the language server runs them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from ...record import plain
from ...record.report import TriedChange, WhatIf
from ...record.wire import Event, Method
from .change import Change

_LEAST_SECONDS = 2.0  # of processor time: less is not enough for any change
_UNSTEADY = "it gained in one process of two"


@dataclass(frozen=True, slots=True)
class Question:
    """A request about one function: its method, its options, and the processor time that it may take."""

    method: Method
    options: dict[str, Any]
    processor_seconds: float


Search = Generator[Question, Event, WhatIf]


@dataclass(slots=True)
class _Asked:
    budget: float
    spent: float = 0.0
    longest: float = 0.0
    results: list[TriedChange] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.budget - self.spent

    @property
    def enough(self) -> bool:
        """Whether there is time for one more change, as far as those before tell."""
        return self.left >= max(_LEAST_SECONDS, self.longest)

    def ask(self, method: Method, options: dict[str, Any]) -> Generator[Question, Event, tuple[dict[str, Any], str]]:
        """The answer, or why there is none."""
        event = yield Question(method, options, self.left)
        told: dict[str, Any] = json.loads(event.text) if event.text else {}
        used = float(told.get("seconds", event.processor_seconds))
        self.spent, self.longest = self.spent + used, max(self.longest, used)
        if told:
            return told, ""
        found = event.file.diagnostics if event.file is not None else []
        return {}, found[0].message if found else "it was ended"


def search(function: str, budget: float, line: int | None = None) -> Search:
    """Finds changes of the function, or of one line of it, and measures them, the likely ones first. No more than ``budget`` seconds of
    processor time are used. Those that gain are measured once more."""
    asked = _Asked(budget)
    told, why = yield from asked.ask("changes", {})
    why = why or told.get("stopped", "")
    if why:
        return WhatIf(function, seconds=asked.spent, budget=budget, stopped=why)
    changes = [plain.from_plain(Change, one, []) for one in told["changes"]]
    changes = [one for one in changes if line is None or one.span.line <= line <= one.span.end_line]
    left: list[str] = []
    asked.longest = 0.0
    for change in changes:
        if change.refused:
            asked.results.append(_untried(change, change.refused))
        elif not asked.enough:
            left.append(change.title)
        else:
            found, why = yield from _measured(asked, change)
            asked.results.append(found or _untried(change, why))
    for number, found in enumerate(asked.results):
        if found.offered and asked.enough:
            again, _ = yield from _measured(asked, next(c for c in changes if _same(c, found)))
            asked.results[number] = _both(found, again) if again is not None else found
    ordered = tuple(sorted(asked.results, key=_rank))
    return WhatIf(function, ordered, tuple(left), asked.spent, budget)


def _measured(asked: _Asked, change: Change) -> Generator[Question, Event, tuple[TriedChange | None, str]]:
    """What measuring it gave, or which limit ended that."""
    told, why = yield from asked.ask("change", {"change": plain.to_plain(change)})
    return (plain.from_plain(TriedChange, told["tried"], []) if told else None), why


def _untried(change: Change, why: str) -> TriedChange:
    return TriedChange(
        change.kind, change.title, change.span, change.edits, change.of, changes=change.changes, why=why
    )  # fmt: skip


def _same(change: Change, found: TriedChange) -> bool:
    return (change.kind, change.title, change.span, change.edits) == (found.kind, found.title, found.span, found.edits)


def _both(one: TriedChange, other: TriedChange) -> TriedChange:
    """Two measurements as one: the change must gain in both."""
    if not other.offered:
        return dataclasses.replace(one, why=f"{_UNSTEADY}: {other.why}")
    if one.time is None or other.time is None or one.time_quartiles is None or other.time_quartiles is None:
        return one
    pairs = [(one.seconds_before, other.seconds_before), (one.seconds, other.seconds)]
    before, after = ((a + b) / 2 if a is not None and b is not None else None for a, b in pairs)
    quartiles = (
        min(one.time_quartiles[0], other.time_quartiles[0]),
        max(one.time_quartiles[1], other.time_quartiles[1]),
    )
    return dataclasses.replace(
        one, time=math.sqrt(one.time * other.time), time_quartiles=quartiles, seconds_before=before, seconds=after,
        compared=max(one.compared, other.compared), steady=one.steady and other.steady,
    )  # fmt: skip


def _rank(found: TriedChange) -> tuple[bool, bool, bool, float, int]:
    """Those that are offered first; of these edits before information, time before memory, the best first."""
    time = found.time if found.time is not None and found.steady else 1.0
    return not found.offered, not found.edits, time >= 1.0, time, -found.saved
