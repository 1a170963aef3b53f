"""A name for what a program computes, and how two that have different names differ, in words. No sympy: warm starts import it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_KINDS = ("input", "kernel", "extern", "attention", "loop", "return")


@dataclass(frozen=True, slots=True)
class Content:
    """``name`` is a hash of the program; ``outline`` has a line for each input and node, which says what is known of it without
    its body."""

    name: str = ""
    outline: tuple[str, ...] = ()


def changed(before: Sequence[str], now: Sequence[str]) -> str:
    """What the later of two outlines has different, in a few words; "" where nothing of it shows."""
    for kind in _KINDS:
        old, new = ([line for line in lines if line.startswith(f"{kind} ")] for lines in (before, now))
        if old == new:
            continue
        if len(old) != len(new):
            return f"it had {_count(len(old), kind)}, and has {len(new)}"
        a, b = next((a, b) for a, b in zip(old, new, strict=True) if a != b)
        (one, first), (two, second) = (_parts(line) for line in (a, b))
        if one == two and first == second:
            return f"{one} computes something else"
        return f"{one} was `{first}`, and is `{second if one == two else b}`"
    return ""


def _count(number: int, kind: str) -> str:
    noun = {"extern": "call of torch", "return": "result"}.get(kind, kind)
    return f"{number} {noun}{'s' * (number != 1)}"


def _parts(line: str) -> tuple[str, str]:
    """What a line is about, and what it says of it without the hash."""
    words = line.partition(" does ")[0].split(" ", 2)
    return " ".join(words[:2]).rstrip(":"), words[2] if len(words) > 2 else ""
