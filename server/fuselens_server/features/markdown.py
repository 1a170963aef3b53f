"""Markdown for hovers, and the same without its marks."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPECIAL = re.compile(r"([\\*_{}\[\]<>|])")
_ENDING = re.compile(r"[()<>\s]")
_FENCE = re.compile(r"(`{3,})[\w-]*$")
_RULE = re.compile(r"\|[\s:|-]+\|$")
_ROW = re.compile(r"\| (.*) \|$")
_MARKS = re.compile(
    r"\\(?P<escaped>.)|(?P<ticks>`+) ?(?P<code>.+?) ?(?P=ticks)|\[(?P<label>(?:\\.|[^\]\\])*)\]\(<?[^)>]*>?\)|\*\*?"
)


def escape(text: str) -> str:
    """``text`` literally: user code in messages (``a * b``, ``<locals>``) must not format anything."""
    return _SPECIAL.sub(r"\\\1", text)


def escape_but_code(text: str) -> str:
    """Like :func:`escape`, but for what is between backticks."""
    pieces = text.split("`")
    return "`".join(piece if i % 2 else escape(piece) for i, piece in enumerate(pieces))


def code(text: str) -> str:
    """``text`` in a line as code, whatever backticks it has."""
    ticks = _longer(text, 1)
    space = " " if text[:1] == "`" or text[-1:] == "`" else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def block(language: str, lines: Iterable[str]) -> str:
    """Lines of code, whatever backticks they have."""
    text = "\n".join(lines)
    fence = _longer(text, 3)
    return f"{fence}{language}\n{text}\n{fence}"


def link(text: str, target: str) -> str:
    """The target's brackets and spaces would end it."""
    address = _ENDING.sub(lambda found: f"%{ord(found.group()):02X}", target)
    return f"[{escape(text)}]({address})"


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def plain(text: str) -> str:
    """What a reader sees of Markdown that was made here."""
    out: list[str] = []
    fence = ""
    for line in text.split("\n"):
        if fence:
            if line == fence:
                fence = ""
            else:
                out.append(line)
        elif found := _FENCE.match(line):
            fence = found[1]
        elif not _RULE.match(line):
            row = _ROW.match(line)
            out.append(_unmarked("  ".join(row[1].split(" | ")) if row else line))
    return "\n".join(out)


def _unmarked(text: str) -> str:
    def seen(found: re.Match[str]) -> str:
        label = found["label"]
        return found["escaped"] or found["code"] or (_unmarked(label) if label else "")

    return _MARKS.sub(seen, text)


def _longer(text: str, least: int) -> str:
    """More backticks than ``text`` has in a row."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    return "`" * max(least, longest + 1 if longest >= least else least)
