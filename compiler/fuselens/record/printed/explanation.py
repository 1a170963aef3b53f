"""What ``fuselens.explain`` gives: a report that reads well, wherever it is printed. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import linecache
from collections import Counter

from .. import views
from ..plain import to_plain
from ..report import Diagnostic, Guard, Report
from .page import page


class Explanation(Report):
    """A :class:`Report`. Printed it is a text, in a notebook a page; the fields of torch's ``explain`` are there, too.

    Example::

        report = fuselens.explain(step)(x)
        print(report)                       # all that is known, for a reader
        report.graph_count, report.graph_break_count
        report.to_json()                    # for a program: see docs/reference/report.schema.json
    """

    __slots__ = ()

    @classmethod
    def of(cls, report: Report) -> Explanation:
        return cls(**{f.name: getattr(report, f.name) for f in dataclasses.fields(report)})

    def __str__(self) -> str:
        return views.explain(self, _source)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.function}: {self.summary()}>"

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its style stays there."""
        shown = _quoted(page([self], _source, self.function))
        return f'<iframe style="width: 100%; height: 640px; border: 0" srcdoc="{shown}"></iframe>'

    def to_json(self) -> str:
        """The report as JSON, which the published schema describes (``$defs/Report``)."""
        return json.dumps(to_plain(self), indent=1)

    @property
    def graph_count(self) -> int:
        """Graphs that were captured."""
        return len(self.captured)

    @property
    def graph_break_count(self) -> int:
        """Places where a graph ends. (torch counts graphs less one.)"""
        return len(self.breaks)

    @property
    def break_reasons(self) -> list[Diagnostic]:
        """Why graphs end: ``message``, ``explanation``, ``hints``, ``span`` and ``stack`` of each place."""
        return self.breaks

    @property
    def op_count(self) -> int:
        """Operations that were captured, of all graphs."""
        return sum(graph.operations for graph in self.captured)

    @property
    def ops_per_graph(self) -> list[Counter[str]]:
        """For each graph the ATen operators of its forward as they were lowered, counted."""
        forward = ([o.origin for o in g.structure if o.origin and o.phase == "forward"] for g in self.captured)
        return [Counter(names) for names in forward]

    @property
    def out_guards(self) -> list[Guard]:
        """What is checked before compiled code runs again."""
        return self.guards

    @property
    def compile_times(self) -> dict[str, float]:
        """Seconds by stage, of all graphs together."""
        found: Counter[str] = Counter()
        for timing in (*self.timings, *(t for graph in self.graphs for t in graph.timings)):
            found[timing.stage] += timing.seconds  # type: ignore[assignment]
        return dict(found)


def _source(file: str) -> str | None:
    """The text of a file, or of a cell that ran under that name."""
    return views.read_text(file) or "".join(linecache.getlines(file)) or None


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")
