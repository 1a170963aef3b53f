"""Fixes that belong together: one after another made one, and which of them get in each other's way."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ...record.report import Edit, Fix, Span
from .source import applied

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")


def followed(text: str, fix: Fix, following: Fix, path: str) -> Fix:
    """``fix`` of ``text``, and then ``following`` of what that makes of it, as one fix of ``text``."""
    after = applied(applied(text, fix.edits), following.edits)
    title = f"{fix.title}; {following.title[:1].lower()}{following.title[1:]}"
    return Fix(title, tuple(differences(text, after, path)), base=fix.base or fix.edits)


def differences(before: str, after: str, path: str) -> Iterator[Edit]:
    """Edits that make ``after`` of ``before``: of lines, without what stays at their ends."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    for what, start, end, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if what == "equal":
            continue
        removed, made = "".join(old[start:end]), "".join(new[first:last])
        left = _alike(removed, made)
        right = _alike(removed[left:][::-1], made[left:][::-1])
        places = [_place(removed, k, start + 1) for k in (left, len(removed) - right)]
        yield Edit(Span(path, *places[0], *places[1]), made[left : len(made) - right])


def _alike(one: str, other: str) -> int:
    """How many characters at the beginning are the same."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _place(text: str, offset: int, line: int) -> tuple[int, int]:
    """Line and byte column of ``offset`` in ``text``, which starts at the beginning of ``line``."""
    found = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text) if m.end() <= offset)]
    return line + len(found) - 1, len(text[found[-1] : offset].encode("utf-8", "surrogatepass"))


def collide(one: Fix, other: Fix) -> bool:
    """Whether the two cannot be applied at once; what both do alike is done once."""
    return any(a != b and _touch(a.span, b.span) for a in one.edits for b in other.edits)


def _touch(one: Span, other: Span) -> bool:
    starts, ends = (one.line, one.column), (one.end_line, one.end_column)
    return starts <= (other.end_line, other.end_column) and (other.line, other.column) <= ends
