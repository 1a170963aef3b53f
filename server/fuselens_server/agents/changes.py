"""The ways in which ``what_if`` changes a function: options of the compiler, and edits of its file, in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuselens.config import TARGET, TARGETS
from fuselens.record.report import Edit, Span
from fuselens.source import fixes
from fuselens.source.changes import compiled_with, contexts
from fuselens.source.discovery import Definition, Target
from fuselens.system import source_text

from .arguments import Replacement, ToolError, WhatIfArguments
from .subjects import Subject


@dataclass(frozen=True, slots=True)
class Change:
    name: str
    edits: tuple[Edit, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    runs: bool = True  # a target is compiled for only: the inputs decide what the function runs on


def changes(asked: WhatIfArguments, subject: Subject) -> list[Change]:
    """One each, or all as one; none where none is named. Raises ToolError for what cannot be done to this function."""
    found = list(_changes(asked, subject))
    if not asked.together or not found:
        return found
    options = {name: value for change in found for name, value in change.options.items()}
    edits = dict.fromkeys(edit for change in found for edit in change.edits)
    names = ", ".join(change.name for change in found)
    return [Change(names, tuple(edits), options, all(change.runs for change in found))]


def changed(subject: Subject, change: Change) -> str:
    """The text after a change. Raises ToolError where edits overlap."""
    edits = sorted(change.edits, key=lambda edit: edit.span)
    for before, after in itertools.pairwise(edits):
        if (after.span.line, after.span.column) < (before.span.end_line, before.span.end_column):
            raise ToolError(f"two changes edit the same place: {before.span} and {after.span}")
    return fixes.applied(subject.source, change.edits)


def _changes(asked: WhatIfArguments, subject: Subject) -> Iterator[Change]:
    if asked.mode:
        yield Change(f"mode={asked.mode}", options={"as_mode": asked.mode})
    if asked.compile_target:
        if not TARGET.fullmatch(asked.compile_target):
            raise ToolError(f"compile_target is {asked.compile_target!r}: give {TARGETS}")
        yield Change(f"target={asked.compile_target}", options={"target": asked.compile_target}, runs=False)
    if asked.dynamic is not None:
        yield Change(f"dynamic={asked.dynamic}", _dynamic(subject, asked.dynamic))
    around = dict(_contexts(asked))
    if around and asked.together:
        yield Change(", ".join(around), _inside(subject, list(around.values())))
    elif around:
        yield from (Change(name, _inside(subject, [context])) for name, context in around.items())
    edits = tuple(_replacement(subject, number, one) for number, one in enumerate(asked.replacements))
    if edits:
        yield Change("replacements", edits)


def _target(subject: Subject) -> tuple[fixes.Source, Target]:
    source = fixes.Source(subject.source, subject.path)
    return source, next(t for t in source.targets if t.annotated.qualname == subject.function)


def _dynamic(subject: Subject, value: bool) -> tuple[Edit, ...]:
    edit = compiled_with(*_target(subject), "dynamic", str(value))
    if edit is None:
        raise ToolError(f"what compiles {subject.function} takes no dynamic=; use replacements")
    return (edit,)


def _contexts(asked: WhatIfArguments) -> Iterator[tuple[str, contexts.Context]]:
    """What the body is put inside of."""
    if asked.no_grad:
        yield "no_grad", contexts.NO_GRAD
    if asked.autocast:
        device = "cuda" if asked.compile_target.startswith("cuda") else "cpu"
        yield f"autocast={asked.autocast} on {device}", contexts.autocast(device, asked.autocast)


def _inside(subject: Subject, around: Sequence[contexts.Context]) -> tuple[Edit, ...]:
    """The body in a ``with`` of its own, below its docstring."""
    source, target = _target(subject)
    if not isinstance(target.function, Definition):
        raise ToolError(
            f"{subject.function} is no function of this file, so this change cannot be written; use replacements"
        )
    edits = contexts.inside(source, target.function, around)
    if edits is None:
        raise ToolError(f"the body of {subject.function} cannot be indented as it is written; use replacements")
    return edits


def _replacement(subject: Subject, number: int, asked: Replacement) -> Edit:
    text = subject.source
    count = text.count(asked.old) if asked.old else 0
    if count != 1:
        times = "is empty" if not asked.old else f"occurs {count} times in {subject.name}"
        raise ToolError(f"replacements[{number}].old {times}: give a part that occurs once")
    start = text.index(asked.old)
    return Edit(Span(subject.path, *_position(text[:start]), *_position(text[: start + len(asked.old)])), asked.new)


def _position(before: str) -> tuple[int, int]:
    """The line (from 1) and the byte column (from 0) of the end of a text's beginning."""
    lines = source_text.lines(before, keepends=True)
    if not lines or lines[-1].endswith(("\n", "\r")):
        return len(lines) + 1, 0
    return len(lines), len(lines[-1].encode("utf-8", "surrogatepass"))
