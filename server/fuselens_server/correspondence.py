"""Which lines of which stages' texts the user's lines became."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from fuselens.report import FileReport, Graph, Report, Span, Stage


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

    def __init__(self, report: FileReport | None = None) -> None:
        self._report = report

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

    @cached_property
    def files(self) -> frozenset[str]:
        """Every file with lines that became something."""
        return frozenset(file for file, _ in self._by_line)

    def of_line(self, files: Collection[str], line: int) -> list[Generated]:
        """What the line became; ``files`` are the spellings of the path that spans may carry."""
        return [made for file in files for made in self._by_line.get((file, line), ())]


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
