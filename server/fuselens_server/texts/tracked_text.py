"""Where a saved text's positions are now, after the edits made since."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property

from lsprotocol import types as lsp

from fuselens.record.report import Span

from .convert import SourceText

_FIRST_VISIBLE = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class Edit:
    """``[start, end)`` was replaced by ``length`` code points; offsets are in the text just before this edit."""

    start: int
    end: int
    length: int

    @property
    def growth(self) -> int:
        return self.length - (self.end - self.start)


@dataclass(frozen=True)
class TrackedText:
    """The text that results refer to (``origin``), the text the user sees (``current``), and the edits between."""

    origin: SourceText
    current: SourceText
    edits: tuple[Edit, ...] = ()

    @classmethod
    def unedited(cls, text: SourceText) -> TrackedText:
        return cls(text, text)

    @property
    def stale(self) -> bool:
        return bool(self.edits) and self.origin.text != self.current.text

    def after(self, edit: Edit, current: SourceText) -> TrackedText:
        """This text after one more edit. Edits inside the last one's new text (typing, backspace) merge into it, so
        that the list grows with places edited and not with keystrokes."""
        if self.edits:
            last = self.edits[-1]
            if last.start <= edit.start and edit.end <= last.start + last.length:
                merged = replace(last, length=last.length + edit.growth)
                return replace(self, current=current, edits=(*self.edits[:-1], merged))
        return replace(self, current=current, edits=(*self.edits, edit))

    def range(self, span: Span) -> lsp.Range | None:
        """Where ``span`` is now; None when an edit touched it, because what was said about it may no longer hold."""
        first, last, growth = self._edited
        if span.end_line < first or span.line > last:
            place = self.origin.span_range(span)
            moved = growth if span.line > last else 0
            return place if not moved else _lower(place, moved)
        place = self._offsets(span)
        return None if place is None else self.current.range(*place)

    @cached_property
    def _edited(self) -> tuple[int, int, int]:
        """The first and the last line of the origin that edits touch, and by how many lines what is below them has moved."""
        if not self.edits:
            return 0, 0, 0
        first, last, growth = len(self.origin.text), 0, 0
        for edit in self.edits:  # what is before the first and behind the last place so far has not changed
            first, last = min(first, edit.start), max(last, edit.end) + edit.growth
            growth += edit.growth
        lines = self.current.line_count - self.origin.line_count
        return self.origin.line_number(first), self.origin.line_number(last - growth), lines

    def _offsets(self, span: Span) -> tuple[int, int] | None:
        start, end = self.origin.offsets(span)
        for edit in self.edits:
            if edit.start < end and edit.end > start:
                return None
            start, end = _move(start, edit, inclusive=True), _move(end, edit, inclusive=False)
            end = max(start, end)
        return start, end

    def moved(self, span: Span) -> Span | None:
        """``span`` as a span of the current text; None when an edit touched it."""
        place = self._offsets(span)
        if place is None:
            return None
        return Span(span.file, *self.current.bytes_at_offset(place[0]), *self.current.bytes_at_offset(place[1]))

    def anchor(self, span: Span) -> lsp.Range:
        """Where ``span`` is now, or the nearest place to where it was: for what must stay visible."""
        start, end = self.origin.offsets(span)
        for edit in self.edits:
            start, end = _move(start, edit, inclusive=True), _move(end, edit, inclusive=False)
            end = max(start, end)
        return self.current.range(start, end)

    def place(self, position: lsp.Position) -> tuple[int, int] | None:
        """The origin's line and byte column under the client's ``position``; None in text that is new since."""
        offset = self._back(self.current.offset(position))
        return None if offset is None else self.origin.bytes_at_offset(offset)

    def line(self, position: lsp.Position) -> int | None:
        """The origin's line that became the line under ``position``; None when that line is new since."""
        content = self.current.line(position.line + 1)
        visible = _FIRST_VISIBLE.search(content)
        offset = self._back(self.current.line_start(position.line + 1) + (visible.start() if visible else 0))
        return None if offset is None else self.origin.line_number(offset)

    def _back(self, offset: int) -> int | None:
        for edit in reversed(self.edits):
            if edit.start <= offset < edit.start + edit.length:
                return None
            if offset >= edit.start + edit.length:
                offset -= edit.growth
        return offset


def _lower(place: lsp.Range, lines: int) -> lsp.Range:
    """``place`` so many lines further down."""
    start, end = place.start, place.end
    return lsp.Range(lsp.Position(start.line + lines, start.character), lsp.Position(end.line + lines, end.character))


def _move(offset: int, edit: Edit, *, inclusive: bool) -> int:
    """``offset`` after ``edit``. At an insertion point, a start moves behind the new text and an end stays before."""
    if (offset > edit.start and offset >= edit.end) or (inclusive and offset == edit.start == edit.end):
        return offset + edit.growth
    return min(offset, edit.start)


def changed(text: SourceText, change: lsp.TextDocumentContentChangeEvent) -> tuple[SourceText, Edit]:
    """``text`` after a client's change, and the edit that it is."""
    if isinstance(change, lsp.TextDocumentContentChangePartial):
        start = text.offset(change.range.start)
        end = max(start, text.offset(change.range.end))
        new = text.text[:start] + change.text + text.text[end:]
        return SourceText(new, text.encoding), Edit(start, end, len(change.text))
    return SourceText(change.text, text.encoding), whole_change(text.text, change.text)


def whole_change(old: str, new: str) -> Edit:
    """A full replacement as the smallest single edit, so that an editor without incremental changes shifts too."""
    limit = min(len(old), len(new))
    start = 0
    while start < limit and old[start] == new[start]:
        start += 1
    tail = 0
    while tail < limit - start and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return Edit(start, len(old) - tail, len(new) - tail - start)
