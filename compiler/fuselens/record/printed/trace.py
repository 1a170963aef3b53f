"""Where compiling took its time, as Chrome's tracing and Perfetto read it. Standard library only."""

from __future__ import annotations

import json
from typing import Any

from ..report import Report


def trace(report: Report) -> str:
    """JSON in the trace event format: a row for each graph, an event for each stage whose beginning is known."""
    known = [(graph, t) for graph in report.graphs for t in graph.timings if t.start]
    first = min((t.start for _, t in known), default=0.0)
    events: list[dict[str, Any]] = [_named("process_name", f"compiling {report.function}", 0)]
    for graph in report.graphs:
        place = f" ({graph.span})" if graph.span else ""
        events.append(_named("thread_name", f"graph {graph.id} of {graph.frame}{place}", graph.id))
    for graph, timing in known:
        events.append(
            {
                "name": timing.stage, "cat": "compile", "ph": "X", "pid": 1, "tid": graph.id,
                "ts": round((timing.start - first) * 1e6, 1), "dur": round(timing.seconds * 1e6, 1),
                "args": {"cache": graph.cache} if graph.cache else {},
            }
        )  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1) + "\n"


def _named(what: str, name: str, thread: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 1, "tid": thread, "args": {"name": name}}
