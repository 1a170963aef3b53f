"""What compilers say of an edited text, at its lines."""

from __future__ import annotations

import re

from ...pins import texts
from ...pins.records import Found, Unit
from ...runtime.build import BuildFailed

_GCC = re.compile(r"^<stdin>:(\d+):(?:(\d+):)? (?:fatal )?error: (.*)$", re.MULTILINE)
_TRITON = re.compile(r"\bat (\d+):(\d+):")
_KERNEL = re.compile(r"^\s*def (\w+)\(", re.MULTILINE)
_MOST = 20


def of_build(error: Exception, unit: Unit, text: str) -> tuple[Found, ...]:
    """Each error of the compiler; one that is beyond the text is about what the host program expects of it."""
    above = texts.head_lines(unit.language, text)
    own = texts.body_of(unit.language, text).rstrip("\n").count("\n") + 1
    said = error.stderr if isinstance(error, BuildFailed) else f"{type(error).__name__}: {error}"
    if unit.language == "triton":
        return (_of_triton(said, text),)
    found: list[Found] = []
    for line, column, message in _GCC.findall(said)[:_MOST]:
        if int(line) > own:
            found.append(Found(1, f"its host program cannot call it: {message}", code="FL627"))
        else:
            found.append(Found(int(line) + above, message, max(0, int(column or 1) - 1), "FL627"))
    return tuple(dict.fromkeys(found)) or (Found(1, last_line(said), code="FL627"),)


def _of_triton(said: str, text: str) -> Found:
    """Triton counts lines from the ``def`` of the function, whose text it shows."""
    at, functions = _TRITON.search(said), _KERNEL.findall(said)
    names = [*functions, *re.findall(r"\w+", said)]
    name = next((n for n in names if texts.lines_of("triton", text, n) > 1), "")
    first = texts.lines_of("triton", text, name) if name else 1
    line = first + int(at[1]) - 1 if at else first
    return Found(line, last_line(said), int(at[2]) if at else 0, "FL627")


def last_line(said: str) -> str:
    """The end of what a process says, where the reason is."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and set(line.strip()) != {"^"}]
    return lines[-1] if lines else said
