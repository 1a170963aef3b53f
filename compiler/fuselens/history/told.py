"""A comparison as it is told: plain data, from which texts, comments, SARIF and the editor's marks are made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..record import plain
from ..record.printed import schema
from ..record.report import Span
from .blaming import Blamed, Step
from .changes import Change, Direction, FunctionChange, Kind, Value
from .comparing import Comparison
from .git import Commit

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ToldStep:
    """What one commit did; ``commit`` is null for what is not committed yet. ``merged_by`` is the merge that brought it; with
    ``bisected`` not every state after it was looked at; ``perhaps`` are commits of which one may have done it instead, because what
    they left cannot be checked. ``elsewhere``: commits of the old revision's own did it, after ``commit``, where the two parted."""

    text: str
    before: Value
    after: Value
    commit: Commit | None = None
    merged_by: Commit | None = None
    bisected: bool = False
    perhaps: tuple[Commit, ...] = ()
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class ToldChange:
    """One difference of a function. ``what`` names it among those of its kind. ``steps`` are the commits that made it, the newest
    first, where they were asked for and could be told."""

    kind: Kind
    text: str
    direction: Direction
    before: Value
    after: Value
    what: str = ""
    why: str = ""
    span: Span | None = None
    steps: tuple[ToldStep, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldFunction:
    """A function that is compiled in another way; "" for a file as a whole. Old names are given where they are others."""

    function: str
    file: str
    changes: tuple[ToldChange, ...]
    span: Span | None = None
    old_name: str = ""
    old_file: str = ""

    @property
    def worse(self) -> list[ToldChange]:
        return [change for change in self.changes if change.direction == "worse"]

    @property
    def better(self) -> list[ToldChange]:
        return [change for change in self.changes if change.direction == "better"]

    @property
    def name(self) -> str:
        return self.function or "the file as a whole"


@dataclass(frozen=True, slots=True)
class ToldUncompared:
    """A file whose ``side`` ("old" or "new") cannot be looked at."""

    file: str
    side: str
    why: str


@dataclass(frozen=True, slots=True)
class Told:
    """What ``fuselens diff REVISION --format json`` prints. Files are named from ``top``; ``new`` is null for the working tree.
    ``files`` compile functions, ``affected`` of them depend on something that differs, and ``same`` functions of these are compiled
    as before."""

    top: str
    old: Commit
    revision: str
    new: Commit | None = None
    files: int = 0
    affected: int = 0
    same: int = 0
    functions: tuple[ToldFunction, ...] = ()
    uncompared: tuple[ToldUncompared, ...] = ()
    schema: int = field(default=SCHEMA)

    @property
    def worse(self) -> list[ToldFunction]:
        return [function for function in self.functions if function.worse]

    @property
    def better(self) -> list[ToldFunction]:
        return [function for function in self.functions if function.better and not function.worse]

    @property
    def sides(self) -> str:
        new = self.new.text if self.new is not None else "the working tree"
        return f"{self.old.text} → {new}"


def told(comparison: Comparison, revision: str, blamed: Sequence[Blamed] = ()) -> Told:
    steps = {(id(b.function), id(b.change)): b.steps for b in blamed}
    functions = tuple(
        _function(f, comparison.top, [_change(c, steps.get((id(f), id(c)), ()), comparison.top) for c in f.changes])
        for f in comparison.functions
    )
    return Told(
        comparison.top, comparison.old, revision, comparison.new, comparison.files, comparison.affected, comparison.same, functions,
        tuple(ToldUncompared(u.file, u.side, _below(u.why, comparison.top)) for u in comparison.uncompared),
    )  # fmt: skip


def _function(function: FunctionChange, top: str, made: list[ToldChange]) -> ToldFunction:
    return ToldFunction(
        function.function, function.file, tuple(made), _span(function.span, top), function.old_name, function.old_file
    )


def _change(change: Change, steps: Sequence[Step], top: str) -> ToldChange:
    return ToldChange(
        change.kind, change.text, change.direction, change.before, change.after, change.what, change.why,
        _span(change.span, top), tuple(_step(change, step) for step in steps),
    )  # fmt: skip


def _step(change: Change, step: Step) -> ToldStep:
    return ToldStep(
        step_text(change, step), step.before, step.after, step.commit if step.commit.identity else None, step.merged_by,
        step.bisected, step.perhaps, step.elsewhere,
    )  # fmt: skip


def step_text(change: Change, step: Step) -> str:
    """``1a2b3c4d (Ann, 2026-03-01, "Use item()")``, with what of a number is the commit's own."""
    said = step.commit.text
    if step.elsewhere:
        said = f"no commit here, but by those of the old revision since {said}, where the two parted"
    if step.merged_by is not None:
        said += f", merged by {step.merged_by.short}"
    if (step.before, step.after) != (change.before, change.after) and step.before is not None:
        from dataclasses import replace

        own = replace(change, before=step.before, after=step.after)
        said += f": {own.text.rpartition(': ')[2]}" if change.kind not in ("break", "finding", "fusion") else ""
    if step.perhaps:
        others = ", ".join(commit.short or "what is not committed" for commit in step.perhaps)
        said += f", or {others}, which cannot be checked"
    return f"{said} (bisected)" if step.bisected else said


def _span(span: Span | None, top: str) -> Span | None:
    """Of a file of the repository, from the top."""
    if span is None or not span.file.startswith(top.rstrip(os.sep) + os.sep):
        return span
    name = os.path.relpath(span.file, top).replace(os.sep, "/")
    return Span(name, span.line, span.column, span.end_line, span.end_column)


def _below(text: str, top: str) -> str:
    return text.replace(top.rstrip(os.sep) + os.sep, "")


def json_schema() -> dict[str, Any]:
    """Of what :func:`json_ready` gives."""
    return schema.of_class(Told, f"diff:{SCHEMA}", "What fuselens diff REVISION --format json prints")


def json_ready(outcome: Told) -> dict[str, Any]:
    return {"schema": SCHEMA, **plain.to_plain(outcome)}
