"""Unified differences: made, applied to exactly the text that they were made of, and made one of two."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ..system import source_text

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_END = "\\ No newline at end of file"
_Change = tuple[int, int, list[str]]  # lines from, to, and what stands there instead


class DoesNotApply(Exception):
    """A difference is not one of this text; the message says why."""


def unified(before: str, after: str, file: str) -> str:
    """As ``git apply`` and ``patch -p1`` take it."""
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{file}", f"b/{file}")
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_END}\n" for line in lines)


def applied(before: str, difference: str) -> str:
    """``before`` with the difference. Raises DoesNotApply."""
    lines, made, at = _lines(before), list[str](), 0
    for start, body in _hunks(difference):
        if not at <= start <= len(lines):
            raise DoesNotApply(f"it changes line {start + 1}, and the file has {len(lines)} lines")
        made += lines[at:start]
        at = start
        for sign, text in body:
            if sign in " -":
                if at >= len(lines) or lines[at] != text:
                    raise DoesNotApply(f"line {at + 1} is another")
                at += 1
            if sign in " +":
                made.append(text)
    return "".join([*made, *lines[at:]])


def merged(before: str, one: str, other: str) -> str | None:
    """``before`` with what both changed of it; None where they change the same lines."""
    lines = _lines(before)
    changes = sorted([*_changes(lines, _lines(one)), *_changes(lines, _lines(other))])
    made, at = list[str](), 0
    last: _Change | None = None
    for change in changes:
        start, end, new = change
        if change == last:
            continue
        if last is not None and (start < at or (start, end) == last[:2] or start == last[0]):
            return None
        made += [*lines[at:start], *new]
        at, last = end, change
    return "".join([*made, *lines[at:]])


def moved(before: str, after: str) -> dict[int, tuple[int, bool]]:
    """For each line of ``after``, from 1: the line of ``before`` that it is, or that it was written for, and whether it is that."""
    old, new, found = _lines(before), _lines(after), dict[int, tuple[int, bool]]()
    for what, start, end, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for k in range(first, last):
            same = what == "equal"
            line = start + k - first if same else min(start + k - first, max(end - 1, start))
            found[k + 1] = min(line, max(len(old) - 1, 0)) + 1, same
    return found


def _changes(before: list[str], after: list[str]) -> Iterator[_Change]:
    for what, start, end, first, last in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if what != "equal":
            yield start, end, after[first:last]


def _lines(text: str) -> list[str]:
    return source_text.lines(text, keepends=True)


def _hunks(difference: str) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """The hunks: where each begins, counted from 0, and its lines with their signs. Raises DoesNotApply."""
    lines = _lines(difference)
    at = next((k for k, line in enumerate(lines) if line.startswith("@@")), len(lines))
    if at == len(lines):
        raise DoesNotApply("it has no hunk")
    while at < len(lines):
        match = _HUNK.match(lines[at])
        if match is None:
            raise DoesNotApply(f"line {at + 1} of it begins no hunk: {lines[at].strip()[:40]!r}")
        old, new = (int(match[k]) if match[k] is not None else 1 for k in (2, 4))
        start, body = int(match[1]) - (1 if old else 0), list[tuple[str, str]]()
        at += 1
        while at < len(lines) and (old or new or lines[at].startswith("\\")):
            line = lines[at]
            sign, text = line[:1], line[1:]
            if sign == "\\" and body:
                body[-1] = body[-1][0], body[-1][1].rstrip("\n")
            elif sign in (" ", "-", "+"):
                body.append((sign, text))
                old -= sign != "+"
                new -= sign != "-"
            else:
                raise DoesNotApply(f"line {at + 1} of it has no sign")
            at += 1
        if old or new:
            raise DoesNotApply("its last hunk is shorter than it says")
        yield start, body
