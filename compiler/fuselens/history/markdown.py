"""A comparison as a comment of a pull request: a short table, and the rest folded.

The first line is a mark that readers do not see, by which a program finds its comment to write it anew. What commits and messages say
stands in code, so that nobody is mentioned by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .text import summary
from .told import Told, ToldChange, ToldFunction

MARK = "<!-- fuselens-diff -->"
_LONGEST = 60_000  # characters: hosts refuse comments of more than 65,536
_ROWS = 20


def markdown(outcome: Told) -> str:
    worse = [(f, c) for f in outcome.worse for c in f.worse]
    lines = [MARK, f"### Fuselens: {_title(outcome)}", ""]
    if worse:
        lines += [*_table(worse[:_ROWS])]
        if len(worse) > _ROWS:
            lines += ["", f"… and {len(worse) - _ROWS} more, below."]
        lines.append("")
    rest = [line for function in outcome.functions for line in _details(function)]
    rest += [f"- {_code(u.file)} was not compared: {_code(u.why)}" for u in outcome.uncompared]
    if rest:
        opened = "" if worse else " open" if len(rest) < _ROWS else ""
        lines += [f"<details{opened}><summary>Every difference</summary>", "", *_fitting(rest), "", "</details>", ""]
    return "\n".join([*lines, f"{summary(outcome)} Compared with {_code(outcome.revision)} ({outcome.old.short})."])


def _title(outcome: Told) -> str:
    if outcome.worse:
        number = len(outcome.worse)
        return f"{number} function{'s are' if number > 1 else ' is'} compiled worse than before"
    if outcome.better:
        number = len(outcome.better)
        return f"{number} function{'s are' if number > 1 else ' is'} compiled better than before"
    if outcome.uncompared:
        return "not everything can be compared"
    return "compiled differently" if outcome.functions else "compiled as before"


def _table(rows: Sequence[tuple[ToldFunction, ToldChange]]) -> Iterator[str]:
    """With a column of commits where they were asked for."""
    blamed = any(change.steps for _, change in rows)
    yield f"| function | worse |{' commit |' if blamed else ''}"
    yield f"| --- | --- |{' --- |' if blamed else ''}"
    for function, change in rows:
        commit = f" {'<br>'.join(_code(step.text) for step in change.steps)} |" if blamed else ""
        yield f"| {_code(function.name)}<br>{_place(function, change)} | {_code(change.text)} |{commit}"


def _place(function: ToldFunction, change: ToldChange) -> str:
    span = change.span or function.span
    return _code(f"{span.file}:{span.line}" if span is not None else function.file)


def _details(function: ToldFunction) -> Iterator[str]:
    was = " in ".join(filter(None, (function.old_name, function.old_file)))
    yield f"- {_code(function.name)} of {_code(function.file)}{f', which was {_code(was)}' if was else ''}"
    for change in function.changes:
        mark = "" if change.direction == "other" else f"**{change.direction}**: "
        why = f" ({_code(change.why)})" if change.why else ""
        yield f"  - {mark}{_code(change.text)}{why}"
        for step in change.steps:
            yield f"    - {_code(step.text)}"


def _code(text: str) -> str:
    """As code in one cell of a table; a fence that is longer than any in the text."""
    plain = " ".join(text.split()).replace("|", "\\|")
    fence = "`"
    while fence in plain:
        fence += "`"
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{fence}{pad}{plain}{pad}{fence}" if plain else ""


def _fitting(lines: list[str]) -> list[str]:
    size, out = 0, list[str]()
    for at, line in enumerate(lines):
        size += len(line) + 1
        if size > _LONGEST - 20_000:
            return [*out, f"- … and {len(lines) - at} more lines: `fuselens diff` prints them"]
        out.append(line)
    return out
