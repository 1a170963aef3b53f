"""A report of an earlier text as a report of the current one: for functions that did not change, only moved."""

from __future__ import annotations

import dataclasses
import re
from pathlib import PurePath
from typing import Any, TypeVar

from fuselens.record.report import Line, Span, Stage

from .tracked_text import TrackedText

T = TypeVar("T")
# What a line of a stage's text says at its end about where it comes from: "# line 6", "# toy.py:6:12", "// toy.py:6,8"
_PLACE = re.compile(r"(?P<before>(?:#|//|;) (?:line |(?P<file>[^\s:]+):))(?P<lines>\d+(?:,\d+)*)(?::(?P<column>\d+))?$")


class _TouchedError(Exception):
    """An edit touched a place that the report is about."""


def rebased(report: T, text: TrackedText, names: frozenset[str]) -> T | None:
    """``report`` (or a part of one), which is about ``text.origin``, as if it had been made of ``text.current``: every
    place in the files called ``names`` (the spellings of the checked one) moves. None when an edit touched one of them.
    """
    if not text.stale:
        return report
    try:
        return _Mover(text, names).value(report)
    except _TouchedError:
        return None


class _Mover:
    def __init__(self, text: TrackedText, names: frozenset[str]) -> None:
        self.text = text
        self.names = names
        self.files = names | {PurePath(name).name for name in names}
        self._moved: dict[Span, Span] = {}
        self._same: dict[int, Span] = {}  # by identity: a report's spans are few objects, and much refers to them

    def span(self, span: Span) -> Span:
        found = self._same.get(id(span))
        if found is None:
            found = self._same[id(span)] = self._span(span)
        return found

    def _span(self, span: Span) -> Span:
        if span.file not in self.names:
            return span
        if span not in self._moved:
            moved = self.text.moved(span)
            if moved is None:
                raise _TouchedError
            self._moved[span] = moved
        moved = self._moved[span]
        return span if moved == span else moved

    def value(self, value: T) -> T:
        """The value itself where nothing in it moves."""
        found: Any = value
        if isinstance(value, Span):
            found = self.span(value)
        elif isinstance(value, Line):
            spans = self._all(value.spans)
            found = value if spans is value.spans else Line(value.line, spans)
        elif isinstance(value, Stage):
            found = self._stage(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
            changes = {name: new for name, old in parts if (new := self.value(old)) is not old}
            found = dataclasses.replace(value, **changes) if changes else value
        elif isinstance(value, tuple):
            found = self._all(value)
        elif isinstance(value, list):
            found = [self.value(part) for part in value]
        elif isinstance(value, dict):
            found = {key: self.value(part) for key, part in value.items()}
        elif isinstance(value, str):
            found = self._prose(value)
        return found

    def _all(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        moved = [self.value(part) for part in parts]
        return tuple(moved) if any(new is not old for new, old in zip(moved, parts, strict=True)) else parts

    def _stage(self, stage: Stage) -> Stage:
        lines = self._all(stage.lines)
        if lines is stage.lines:
            return stage
        printed = stage.text.split("\n")
        for line in stage.lines:
            if 0 < line.line <= len(printed):
                printed[line.line - 1] = self._place(printed[line.line - 1], line.spans)
        return dataclasses.replace(stage, lines=lines, text="\n".join(printed))

    def _place(self, line: str, spans: tuple[Span, ...]) -> str:
        match = _PLACE.search(line)
        if match is None or (match["file"] and match["file"] not in self.files):
            return line
        starts = {(s.line, s.column): self.span(s) for s in spans if s.file in self.names}
        moved = {old: new.line for (old, _), new in starts.items()}
        numbers = ",".join(str(moved.get(int(n), n)) for n in match["lines"].split(","))
        column = match["column"]
        if column:
            at = starts.get((int(match["lines"]), int(column) - 1))
            column = f":{at.column + 1 if at else column}"
        return line[: match.start()] + match["before"] + numbers + (column or "")

    def _prose(self, text: str) -> str:
        """A sentence that names one of the report's places: ``FL101 at /home/me/toy.py:6:12: …``."""
        if not any(name in text for name in self.names):
            return text

        def moved(match: re.Match[str]) -> str:
            span = next((s for s in self._moved if (s.line, s.column + 1) == (int(match[2]), int(match[3]))), None)
            return str(self._moved[span]) if span else match[0]

        return re.sub(rf"({'|'.join(map(re.escape, self.names))}):(\d+):(\d+)", moved, text)
