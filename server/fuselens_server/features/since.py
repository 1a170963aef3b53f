"""What became of code since a revision of git: parts of hovers, marks of lines, hints behind them, and who added a break."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from lsprotocol import types as lsp

from fuselens.history.git import Commit
from fuselens.history.told import ToldChange, ToldFunction, ToldStep
from fuselens.record.figures import key
from fuselens.record.report import Diagnostic
from fuselens_server.client import messages
from fuselens_server.features.markdown import bullets, code, escape, escape_but_code
from fuselens_server.texts.view import View

_UNITS = (
    ("year", 31_557_600),
    ("month", 2_629_800),
    ("week", 604_800),
    ("day", 86_400),
    ("hour", 3_600),
    ("minute", 60),
)
_LONGEST = 60  # characters of a hint
_MOST = 8  # differences that a hover lists


@dataclass(frozen=True, slots=True)
class Mark:
    """A difference and where it is now, a line from 0. ``whole``: it is about the function, whose name is on the line."""

    line: int
    function: ToldFunction
    change: ToldChange
    whole: bool


def marks(view: View) -> Iterator[Mark]:
    """Each difference at its line; at the function's name where that was edited, or is in another file."""
    if view.since is None:
        return
    for function in view.since.told.functions:
        if view.since.span(view.path, function.span) is None:
            continue
        for change in function.changes:
            span = view.since.span(view.path, change.span) if change.direction != "better" else None
            place = view.since.text.range(span) if span is not None and change.span != function.span else None
            name = view.since.span(view.path, function.span)
            here = place or (view.name_range(function.function) or (view.since.text.anchor(name) if name else None))
            if here is not None:
                yield Mark(here.start.line, function, change, place is None)


def lines(view: View) -> list[messages.Since]:
    """The lines to mark: what got worse, or better."""
    found: dict[int, list[Mark]] = {}
    for mark in marks(view):
        if mark.change.direction != "other":
            found.setdefault(mark.line, []).append(mark)
    return [
        messages.Since(
            line=line, texts=[sentence(m.change) for m in here],
            direction="worse" if any(m.change.direction == "worse" for m in here) else "better",
        )
        for line, here in sorted(found.items())
    ]  # fmt: skip


def about(view: View, line: int, *, whole: bool) -> list[str]:
    """The part of a hover over a line, or (``whole``) over the name of a function on it."""
    if view.since is None:
        return []
    found = [m for m in marks(view) if m.line == line and m.whole is whole]
    if not found:
        return []
    said = [
        f"{f'**{m.change.direction}**: ' if m.change.direction != 'other' else ''}{escape_but_code(m.change.text)}{_by(m.change)}"
        for m in found[:_MOST]
    ]
    if len(found) > _MOST:
        said.append(f"and {len(found) - _MOST} more")
    told = view.since.told
    revision = "" if told.revision == told.old.short else f"{code(told.revision)}, "
    return [f"Since {revision}{escape(commit_text(told.old))}:\n{bullets(said)}"]


def _by(change: ToldChange) -> str:
    return f" — {escape('; '.join(map(step_text, change.steps)))}" if change.steps else ""


def sentence(change: ToldChange) -> str:
    """``1 break added: FL103 `print` prints, since 1a2b3c4d (Ann, 3 days ago, "Use item()")``."""
    steps = "; ".join(map(step_text, change.steps))
    return f"{change.text}{', since ' if steps else ''}{steps}"


def step_text(step: ToldStep) -> str:
    if step.elsewhere and step.commit is not None:
        return f"commits of the old revision's own, after {commit_text(step.commit)}"
    said = commit_text(step.commit) if step.commit is not None else "what is not committed yet"
    if step.perhaps:
        said += f", or one of {len(step.perhaps)} others that cannot be checked"
    return said


def commit_text(commit: Commit) -> str:
    return f'{commit.short} ({commit.author}, {ago(time.time() - commit.time)}, "{commit.subject}")'


def ago(seconds: float) -> str:
    """``3 days ago``."""
    for unit, size in _UNITS:
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"


def hints(view: View, visible: lsp.Range) -> Iterator[lsp.InlayHint]:
    """Behind each marked line: what got worse, in a few words."""
    if view.since is None:
        return
    text = view.since.text.current
    for line in lines(view):
        if not visible.start.line <= line["line"] <= visible.end.line:
            continue
        first = line["texts"][0].partition(", since ")[0]
        more = f" and {len(line['texts']) - 1} more" if len(line["texts"]) > 1 else ""
        label = first if len(first) + len(more) <= _LONGEST else f"{first[: _LONGEST - len(more) - 1]}…"
        end = text.line_start(line["line"] + 1) + len(text.line(line["line"] + 1).rstrip())
        yield lsp.InlayHint(
            text.position(end),
            f"{line['direction']}: {label}{more}",
            tooltip="\n".join(line["texts"]),
            padding_left=True,
        )


def added_by(view: View, found: Diagnostic) -> str:
    """Who added a break or a finding since the revision: ``Added by 1a2b3c4d (…).``"""
    for function in view.since.told.functions if view.since else ():
        for change in function.worse:
            if change.kind in ("break", "finding") and change.what == key(found) and change.steps:
                return f"Added by {'; '.join(map(step_text, change.steps))}."
    return ""
