"""Which lines of which stages' texts the user's lines became."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from fuselens.record.report import FileReport, Graph, Kernel, Report, Span, Stage

from .convert import Encoding, SourceText

TRITON_LINE = re.compile(r"(?<=[/;] )triton\.py:(\d+)")


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """Line ``line`` of a stage's text, which came from ``span``."""

    report: Report
    graph: Graph
    stage: Stage
    line: int
    span: Span


class Correspondence:
    """A file report's lines by the user's lines; made when it is first asked, because most reports are not."""

    def __init__(self, report: FileReport | None = None, joined: Sequence[Correspondence] = ()) -> None:
        self._report = report
        self._joined = joined  # those of other reports
        self._texts: dict[int, SourceText] = {}  # these four by the identity of stages, which live as long as this
        self._spans: dict[int, dict[int, tuple[Span, ...]]] = {}
        self._heads: dict[int, dict[frozenset[Span], int]] = {}
        self._modules: dict[int, dict[int, int]] = {}

    @cached_property
    def _by_line(self) -> dict[tuple[str, int], list[Generated]]:
        lines: dict[tuple[str, int], list[Generated]] = defaultdict(list)
        for report in self._report.functions if self._report else ():
            for graph in report.graphs:
                for stage in graph.stages:
                    for entry in stage.lines:
                        for span in entry.spans:
                            made = Generated(report, graph, stage, entry.line, span)
                            for line in range(span.line, span.end_line + 1):
                                lines[span.file, line].append(made)
        return lines

    def text(self, stage: Stage, encoding: Encoding) -> SourceText:
        """The stage's text, whose line table is made once."""
        found = self._texts.get(id(stage))
        if found is None or found.encoding != encoding:
            found = self._texts[id(stage)] = SourceText(stage.text, encoding)
        return found

    def spans(self, stage: Stage) -> dict[int, tuple[Span, ...]]:
        """Where each line of the stage's text came from."""
        found = self._spans.get(id(stage))
        if found is None:
            found = self._spans[id(stage)] = {entry.line: entry.spans for entry in stage.lines}
        return found

    def triton_lines(self, stage: Stage) -> dict[int, int]:
        """Of the lines of what was compiled from a Triton module, as far as known, the line of that module. It is
        written where it changes."""
        found = self._modules.get(id(stage))
        if found is None:
            found = self._modules[id(stage)] = {}
            spans, current = self.spans(stage), 0
            for number, text in enumerate(stage.text.split("\n"), 1):
                if text.startswith(("// kernel ", "; kernel ")):
                    current = 0
                elif place := TRITON_LINE.search(text):
                    current = found[number] = int(place[1])
                elif current and number in spans:
                    found[number] = current
        return found

    def kernel_place(self, graph: Graph, kernel: Kernel) -> tuple[Stage, int] | None:
        """The stage and the line with the kernel's text: the first line that came from just what the kernel did."""
        stage = graph.stage(kernel.backend + (".backward" if kernel.phase == "backward" else ""))
        if stage is None:
            return None
        heads = self._heads.get(id(stage))
        if heads is None:
            heads = self._heads[id(stage)] = {}
            for entry in stage.lines:
                heads.setdefault(frozenset(entry.spans), entry.line)
        head = heads.get(frozenset(kernel.spans))
        if head is None:
            named = re.compile(rf"^.*\b{re.escape(kernel.name)}(?:_part)?\(", re.MULTILINE).search(stage.text)
            head = stage.text.count("\n", 0, named.start()) + 1 if named else 1
        return stage, head

    @cached_property
    def files(self) -> frozenset[str]:
        """Every file with lines that became something."""
        return frozenset(file for file, _ in self._by_line).union(*(other.files for other in self._joined))

    @cached_property
    def _compiled(self) -> dict[tuple[str, int], list[Report]]:
        """The functions that each line was captured for: the first stage of their graphs tells."""
        found: dict[tuple[str, int], list[Report]] = defaultdict(list)
        for report in self._report.functions if self._report else ():
            lines = (entry for graph in report.graphs for stage in graph.stages[:1] for entry in stage.lines)
            spans = dict.fromkeys(span for entry in lines for span in entry.spans)
            for place in {(span.file, line) for span in spans for line in range(span.line, span.end_line + 1)}:
                found[place].append(report)
        return found

    def reports(self, files: Collection[str], lines: Iterable[int]) -> list[Report]:
        """The functions that any of the lines was compiled in."""
        places = [(file, line) for line in lines for file in files]
        own = [report for place in places for report in self._compiled.get(place, ())]
        own += [report for other in self._joined for report in other.reports(files, {line for _, line in places})]
        return list({id(report): report for report in own}.values())

    def of_line(self, files: Collection[str], line: int) -> list[Generated]:
        """What the line became; ``files`` are the spellings of the path that spans may carry."""
        own = [made for file in files for made in self._by_line.get((file, line), ())]
        return own + [made for other in self._joined for made in other.of_line(files, line)]


def covers(span: Span, line: int, column: int) -> bool:
    """Whether the position (a line from 1, a byte column) is in ``span`` or at its end."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


def innermost(spans: Iterable[Span], line: int, column: int) -> Span | None:
    """The smallest span around the position: of nested expressions, the one that is meant."""
    around = [span for span in spans if covers(span, line, column)]
    return min(around, key=lambda s: (s.end_line - s.line, s.end_column - s.column, s), default=None)


def outermost(spans: Iterable[Span]) -> list[Span]:
    """The spans that lie within no other one, in order."""
    kept: list[Span] = []
    for span in sorted(set(spans), key=lambda s: (s.file, s.line, s.column, -s.end_line, -s.end_column)):
        last = kept[-1] if kept else None
        if (
            last is None
            or last.file != span.file
            or (last.end_line, last.end_column) < (span.end_line, span.end_column)
        ):
            kept.append(span)
    return kept


def runs(lines: Iterable[int]) -> list[tuple[int, int]]:
    """Consecutive lines as (first, last)."""
    out: list[tuple[int, int]] = []
    for line in sorted(set(lines)):
        if out and out[-1][1] == line - 1:
            out[-1] = (out[-1][0], line)
        else:
            out.append((line, line))
    return out
