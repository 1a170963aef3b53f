"""Cells as kernels ran them: which cell of which notebook a text was, and what a run said about it, said about the module.

A kernel compiles a cell under a file name of its own (``/tmp/ipykernel_7/123.py``); the run sends the text that it ran.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fuselens.record.report import Diagnostic, Frame, Span

from .observed import Executed, Finding, Observed

if TYPE_CHECKING:
    from .notebooks import Cell, Notebook

_REWRITTEN = "get_ipython()"  # what magics and shell commands are by the time that a cell runs


def find(books: Iterable[Notebook], text: str) -> Executed | None:
    """The cell with a text that ran."""
    ran = text.rstrip().splitlines()
    for book in books:
        for cell in book.cells:
            lines = cell.text.text.rstrip().splitlines()
            skipped = next((i for i, line in enumerate(lines) if line.strip()), 0)
            if ran and len(lines) - skipped == len(ran) and all(map(_same, lines[skipped:], ran)):
                return Executed(book.path, cell.uri, tuple(lines), skipped)
    return None


def _same(line: str, ran: str) -> bool:
    return line.rstrip() == ran.rstrip() or (_REWRITTEN in ran and any(mark in line for mark in "%!?"))


def placed(observed: Observed, book: Notebook) -> Observed:
    """What a run said about cells, as about the module that the notebook is now. What is about lines that were edited
    since is left out until they run again."""
    moves = {
        file: _move(book, cell, executed)
        for file, executed in observed.cells.items()
        if executed.notebook == book.path and (cell := book.cell(executed.cell)) is not None
    }

    def move(span: Span) -> Span | None:
        return moves[span.file](span) if span.file in moves else span

    out = Observed(observed.run, observed.program)
    for function in observed.functions.values():
        begin = move(Span(function.file, function.line, 0, function.line, 0))
        if function.file not in moves or begin is None:
            continue
        made = dataclasses.replace(function, file=book.path, line=begin.line, findings={}, shapes={})
        for finding in function.findings.values():
            diagnostic = _moved(finding.diagnostic, move)
            if diagnostic is not None:
                key = diagnostic.code, diagnostic.span, diagnostic.message
                made.findings[key] = Finding(diagnostic, finding.count)
        for (name, span), tensors in function.shapes.items():
            if (there := move(span)) is not None:
                made.shapes[name, there] = tensors
        made.graphs = {}
        for key, graph in function.graphs.items():
            moved = ((k, tuple(s for s in map(move, k.spans) if s is not None)) for k in graph.kernels)
            kernels = tuple(dataclasses.replace(kernel, spans=spans) for kernel, spans in moved)
            made.graphs[key] = dataclasses.replace(graph, kernels=kernels)
        out.functions[made.name, made.line] = made
    return out


def _moved(diagnostic: Diagnostic, move: Callable[[Span], Span | None]) -> Diagnostic | None:
    if diagnostic.span is None:
        return diagnostic
    span = move(diagnostic.span)
    frames = [(f, move(f.span)) for f in diagnostic.stack]
    stack = tuple(Frame(f.function, there) for f, there in frames if there is not None)
    return None if span is None else dataclasses.replace(diagnostic, span=span, stack=stack)


def _move(book: Notebook, cell: Cell, executed: Executed) -> Callable[[Span], Span | None]:
    """From spans of the text that ran to spans of the module: lines before and after an edit are where they were."""
    before, now = executed.lines, [line.rstrip() for line in cell.text.text.splitlines()]
    ran = [line.rstrip() for line in before]
    same = next((i for i, (a, b) in enumerate(zip(ran, now, strict=False)) if a != b), min(len(ran), len(now)))
    ends = zip(reversed(ran[same:]), reversed(now[same:]), strict=False)
    tail = next((i for i, (a, b) in enumerate(ends) if a != b), min(len(ran), len(now)) - same)

    def line_of(line: int) -> int | None:
        line += executed.skipped
        if line <= same:
            return cell.start + line
        return cell.start + line + len(now) - len(ran) if line > len(ran) - tail else None

    def move(span: Span) -> Span | None:
        first, last = line_of(span.line), line_of(span.end_line)
        if first is None or last is None:
            return None
        return Span(book.path, first, span.column, last, span.end_column)

    return move
