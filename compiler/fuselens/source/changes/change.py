"""A change, and what producers of changes look at."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...record.report import Edit, Report, Span
from ..discovery import Definition, Target, parse
from ..fixes import Source
from .callers import why_gradients


@dataclass(frozen=True, slots=True)
class Change:
    """``values`` are "same" where a change must leave eager's, "rounded" where it computes with fewer bits, and "any memory" where the
    values are the same and the results' strides may differ. ``of`` says what it gains time of: a "call", a call and its "backward", the
    program's "first calls", or a row of a "batch". ``changes`` says what else is changed, ``refused`` why it is not tried."""

    kind: str
    title: str
    span: Span
    edits: tuple[Edit, ...] = ()
    values: str = "same"
    of: str = "call"
    changes: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Place:
    """A compiled function in its file. ``report`` is of its compilation; ``programs`` are the texts of files that import this one."""

    source: Source
    target: Target
    report: Report
    programs: Sequence[str] = ()

    @property
    def name(self) -> str:
        return self.target.annotated.qualname

    @property
    def span(self) -> Span:
        return self.target.annotated.name_span

    @property
    def function(self) -> Definition | None:
        """The function itself, where it is a ``def`` of this file."""
        found = self.target.function
        return found if isinstance(found, Definition) else None

    @property
    def device(self) -> str:
        return self.report.device

    @property
    def keeps(self) -> bool:
        """Whether calls keep what a backward needs."""
        return any(graph.training for graph in self.report.graphs)

    @cached_property
    def why_gradients(self) -> str:
        """Why a backward may follow calls; "" where none does."""
        owner = self.target.owner.name if self.target.owner is not None else ""
        trees = [self.source.tree, *(parse(text, "<program>") for text in self.programs)]
        return why_gradients(trees, self.name, owner)

    @property
    def trains(self) -> bool:
        """Whether calls keep what a backward needs, and one may follow."""
        return self.keeps and bool(self.why_gradients)

    @property
    def of(self) -> str:
        """What a change of it gains time of."""
        return "backward" if self.trains else "call"

    @property
    def operations(self) -> frozenset[str]:
        """What its kernels and library calls are of, in lower case."""
        graphs = self.report.graphs
        names = [*(n for g in graphs for n in g.externs), *(o for g in graphs for k in g.kernels for o in k.operations)]
        return frozenset(name.lower() for name in names)

    def computes(self, *words: str) -> bool:
        return any(word in name for name in self.operations for word in words)

    @cached_property
    def functions(self) -> list[Definition]:
        """The functions of this file that a call runs lines of, the function itself among them."""
        spans = [s.span for s in self.report.shapes]
        for graph in self.report.graphs:
            spans += [span for kernel in graph.kernels for span in kernel.spans]
            spans += [span for stage in graph.stages[:1] for line in stage.lines for span in line.spans]
        lines = {span.line for span in spans if span.file == self.source.filename}
        every = [n for n in ast.walk(self.source.tree) if isinstance(n, Definition)]
        run = [n for n in every if n is self.function or lines & _own_lines(n)]
        return sorted(run, key=lambda n: n.lineno)


def _own_lines(function: Definition) -> set[int]:
    """The lines of its body, without those of functions inside of it."""
    lines = set(range(function.body[0].lineno, (function.end_lineno or function.lineno) + 1))
    inner = (n for n in ast.walk(function) if isinstance(n, Definition) and n is not function)
    for one in inner:
        lines -= set(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    return lines
