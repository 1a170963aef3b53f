"""Positions: CPython's (lines from 1, UTF-8 byte columns) to LSP's (lines from 0, UTF-16 units) and back.

Both go through *offsets* (code points from the start of the text), because edits are easiest to follow there. Lines
end at ``\\n``, ``\\r\\n`` or a lone ``\\r`` only, as for CPython's tokenizer and for LSP; ``str.splitlines`` would also
split at form feeds and U+2028, and every later line would be off by one.
"""

from __future__ import annotations

import bisect
import itertools
import operator
import re
from functools import cached_property
from typing import Literal

from lsprotocol import types as lsp

from fuselens.record.report import Span

Encoding = Literal["utf-8", "utf-16", "utf-32"]
_LINE_END = re.compile(r"\r\n|\r|\n")


class SourceText:
    """An immutable text with its line table. ``encoding`` is the unit of the client's ``Position.character``."""

    def __init__(self, text: str, encoding: Encoding = "utf-16") -> None:
        self.text = text
        self.encoding: Encoding = encoding

    def __len__(self) -> int:
        return len(self.text)

    @cached_property
    def _lines(self) -> tuple[list[int], list[int]]:
        """Offsets where each line starts, and where its content ends (before the line end)."""
        if "\r" not in self.text:  # a large file has this with each keystroke
            lengths = itertools.accumulate(map(len, self.text.split("\n")))
            ends = list(map(operator.add, lengths, itertools.count()))
            return [0, *map((1).__add__, ends[:-1])], ends
        starts, ends = [0], []
        for match in _LINE_END.finditer(self.text):
            ends.append(match.start())
            starts.append(match.end())
        ends.append(len(self.text))
        return starts, ends

    @property
    def line_count(self) -> int:
        return len(self._lines[0])

    def line(self, number: int) -> str:
        """The content of line ``number`` (from 1), without its end; empty outside the text."""
        starts, ends = self._lines
        return self.text[starts[number - 1] : ends[number - 1]] if 1 <= number <= len(starts) else ""

    def line_start(self, number: int) -> int:
        """The offset of line ``number`` (from 1), clamped to the text."""
        starts = self._lines[0]
        return len(self.text) if number > len(starts) else starts[max(number, 1) - 1]

    def line_number(self, offset: int) -> int:
        """The line (from 1) that holds ``offset``."""
        return bisect.bisect_right(self._lines[0], min(max(offset, 0), len(self.text)))

    # --- CPython's columns -----------------------------------------------------------------------------------------

    def offset_at_bytes(self, line: int, column: int) -> int:
        """The offset of a UTF-8 byte ``column`` on ``line`` (from 1); clamped, never inside a character."""
        content = self.line(line)
        if column < 0:
            column = 0
        if not content.isascii():
            encoded = content.encode("utf-8", "surrogatepass")
            column = min(column, len(encoded))
            while column < len(encoded) and encoded[column] & 0xC0 == 0x80:
                column -= 1  # a continuation byte
            column = len(encoded[:column].decode("utf-8", "surrogatepass"))
        return self.line_start(line) + min(column, len(content))

    def bytes_at_offset(self, offset: int) -> tuple[int, int]:
        """The line (from 1) and UTF-8 byte column of ``offset``."""
        line = self.line_number(offset)
        before = self.text[self.line_start(line) : max(offset, 0)]
        return line, len(before) if before.isascii() else len(before.encode("utf-8", "surrogatepass"))

    def offsets(self, span: Span) -> tuple[int, int]:
        """The offsets of ``span``: start and exclusive end, in order."""
        start = self.offset_at_bytes(span.line, span.column)
        return start, max(start, self.offset_at_bytes(span.end_line, span.end_column))

    # --- the client's positions ------------------------------------------------------------------------------------

    def position(self, offset: int) -> lsp.Position:
        """The client's position of ``offset``."""
        line = self.line_number(offset)
        start, end = self._lines[0][line - 1], self._lines[1][line - 1]
        return lsp.Position(line - 1, self._units(self.text[start : min(max(offset, 0), end)]))

    def offset(self, position: lsp.Position) -> int:
        """The offset of a client's position; clamped to its line, and to the text."""
        line = position.line + 1
        if line > self.line_count:
            return len(self.text)
        start, content = self.line_start(line), self.line(line)
        if content.isascii() or self.encoding == "utf-32":
            return start + min(position.character, len(content))
        units = 0
        for index, character in enumerate(content):
            if units >= position.character:
                return start + index
            units += self._units(character)
        return start + len(content)

    def range(self, start: int, end: int) -> lsp.Range:
        return lsp.Range(self.position(start), self.position(end))

    def span_range(self, span: Span) -> lsp.Range:
        """The client's range of ``span``."""
        start, stop = span.line, span.end_line
        if (
            1 <= start <= stop <= self.line_count
            and span.column >= 0
            and (start < stop or span.column <= span.end_column)
        ):
            first, last = self.line(start), self.line(stop)
            if first.isascii() and last.isascii():  # then a byte is a unit
                begin = lsp.Position(start - 1, min(span.column, len(first)))
                return lsp.Range(begin, lsp.Position(stop - 1, max(0, min(span.end_column, len(last)))))
        return self.range(*self.offsets(span))

    def _units(self, text: str) -> int:
        if text.isascii() or self.encoding == "utf-32":
            return len(text)
        if self.encoding == "utf-8":
            return len(text.encode("utf-8", "surrogatepass"))
        return len(text) + sum(character > "\uffff" for character in text)
