"""The ways in which ``what_if`` changes a function: options of the compiler, and edits of its file, in memory."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuselens.config import TARGET, TARGETS
from fuselens.record.report import Edit, Span
from fuselens.source import fixes
from fuselens.source.discovery import Definition
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
    """One each, or all as one. Raises ToolError for what cannot be done to this function, and where nothing is asked for."""
    found = list(_changes(asked, subject))
    if not found:
        raise ToolError("what_if needs a change: mode, dynamic, compile_target, no_grad, autocast or replacements")
    if not asked.together:
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
    contexts = dict(_contexts(asked))
    if contexts and asked.together:
        yield Change(", ".join(contexts), _inside(subject, list(contexts.values())))
    elif contexts:
        yield from (Change(name, _inside(subject, [context])) for name, context in contexts.items())
    edits = tuple(_replacement(subject, number, one) for number, one in enumerate(asked.replacements))
    if edits:
        yield Change("replacements", edits)


def _definition(subject: Subject) -> tuple[fixes.Source, Definition]:
    source = fixes.Source(subject.source, subject.path)
    for target in source.targets:
        if target.annotated.qualname == subject.function and isinstance(target.function, Definition):
            if any(source.decorates(decorator) is not None for decorator in target.function.decorator_list):
                return source, target.function
    raise ToolError(
        f"{subject.function} is not compiled by a decorator, so this change cannot be written there; use replacements"
    )


def _dynamic(subject: Subject, value: bool) -> tuple[Edit, ...]:
    source, function = _definition(subject)
    if (edit := source.decorated(function, f"dynamic={value}")) is not None:
        return (edit,)
    for decorator in function.decorator_list:
        if source.decorates(decorator) is not None and isinstance(decorator, ast.Call):
            for keyword in decorator.keywords:
                if keyword.arg == "dynamic":
                    return (source.replaced(keyword.value, str(value)),)
    raise ToolError(f"the decorator of {subject.function} takes no dynamic=; use replacements")


def _contexts(asked: WhatIfArguments) -> Iterator[tuple[str, tuple[str, str]]]:
    """What the body is put inside of: a name of torch, and its arguments."""
    if asked.no_grad:
        yield "no_grad", ("torch.no_grad", "")
    if asked.autocast:
        device = "cuda" if asked.compile_target.startswith("cuda") else "cpu"
        yield (
            f"autocast={asked.autocast} on {device}",
            ("torch.autocast", f'"{device}", dtype={{torch}}.{asked.autocast}'),
        )


def _inside(subject: Subject, contexts: Sequence[tuple[str, str]]) -> tuple[Edit, ...]:
    """The body in a ``with`` of its own, below its docstring."""
    source, function = _definition(subject)
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if not body or body[0].lineno == function.lineno or not source.alone(*body) or _holds_lines(body):
        raise ToolError(f"the body of {subject.function} cannot be indented as it is written; use replacements")
    said: list[str] = []
    imports: dict[Edit, None] = {}
    for name, arguments in contexts:
        spelled, needed = source.spelled(name, function)
        imports |= dict.fromkeys(needed)
        said.append(f"{spelled}({arguments.format(torch=spelled.rpartition('.')[0] or 'torch')})")
    indentation = source.indentation(body[0])
    first = min([body[0].lineno, *(d.lineno for d in getattr(body[0], "decorator_list", ()))])
    last = body[-1].end_lineno or body[-1].lineno
    begin = Edit(Span(subject.path, first, 0, first, 0), f"{indentation}with {', '.join(said)}:\n    ")
    rest = [n for n in range(first + 1, last + 1) if source.lines[n - 1].strip()]
    return (*imports, begin, *(Edit(Span(subject.path, n, 0, n, 0), "    ") for n in rest))


def _holds_lines(body: Sequence[ast.stmt]) -> bool:
    """Whether a string of it goes over several lines: indented, it would be another one."""
    texts = (
        node for statement in body for node in ast.walk(statement) if isinstance(node, (ast.Constant, *fixes.FORMATTED))
    )
    return any(node.lineno != node.end_lineno and _is_text(node) for node in texts)


def _is_text(node: ast.expr) -> bool:
    return not isinstance(node, ast.Constant) or isinstance(node.value, str | bytes)


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
