"""What the user's own runs said about a file: plain state, changed by one event at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fuselens.live import Event, KernelTime
from fuselens.record.report import Diagnostic, Span, Tensor

MOST_FINDINGS = 200  # of one function; a function that is called with ever new values has one for each
MOST_MOMENTS = 500  # of one function; what came after them is only counted
MOST_SHAPES = 4  # of one variable


@dataclass(frozen=True, slots=True)
class Executed:
    """A cell that ran, as lines of the cell as it was; without empty ones in front, which are not run."""

    notebook: str  # its path
    cell: str  # its URI
    lines: tuple[str, ...]
    skipped: int = 0


@dataclass(slots=True)
class Finding:
    """A diagnostic, and how often it came."""

    diagnostic: Diagnostic
    count: int = 1


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that cost time: a graph was compiled in ``seconds``, or something was found, a recompilation above all. ``at``
    is in seconds since the run was first heard of."""

    at: float
    kind: Literal["compiled", "recompiled", "broken", "found"]
    text: str
    span: Span | None = None
    seconds: float = 0.0


@dataclass(slots=True)
class Graph:
    """A graph: seconds to compile it, and of its calls (of all and of the fastest)."""

    compiling: float = 0.0
    calls: int = 0
    seconds: float = 0.0
    fastest: float = 0.0
    resumed: bool = False  # it comes after a break
    kernels: tuple[KernelTime, ...] = ()  # of each phase the slowest first


@dataclass(slots=True)
class Function:
    """One compiled function in one run; ``line`` is the first of its code."""

    name: str
    line: int
    findings: dict[tuple[str, Span | None, str], Finding] = field(default_factory=dict)
    shapes: dict[tuple[str, Span], list[Tensor]] = field(default_factory=dict)
    graphs: dict[tuple[int, int], Graph] = field(default_factory=dict)  # by process and number
    file: str = ""
    missed: int = 0  # calls that no compiled code was right for, but the first
    arguments: dict[str, list[Tensor]] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    dropped: int = 0  # moments that were too many

    def take(self, process: int, event: Event, at: float = 0.0) -> None:
        moment = _moment(event, at)
        if moment is not None and len(self.moments) < MOST_MOMENTS:
            self.moments.append(moment)
        else:
            self.dropped += moment is not None
        known = event.kind in ("graph", "times", "kernels")
        graph = self.graphs.setdefault((process, event.graph), Graph()) if known else Graph()
        if event.kind == "graph":
            graph.compiling += event.seconds
            graph.resumed = event.resumed
        elif event.kind == "times":
            graph.calls, graph.seconds, graph.fastest = event.calls, event.seconds, event.fastest
        elif event.kind == "kernels":
            phases = {kernel.phase for kernel in event.kernels}
            graph.kernels = (*(k for k in graph.kernels if k.phase not in phases), *event.kernels)
        elif event.kind in ("shapes", "call"):
            for shape in event.shapes:
                table: dict[Any, list[Tensor]] = self.shapes if event.kind == "shapes" else self.arguments
                seen = table.setdefault((shape.name, shape.span) if event.kind == "shapes" else shape.name, [])
                if shape.tensor not in seen:
                    seen.append(shape.tensor)
                    del seen[:-MOST_SHAPES]
        elif event.kind == "finding" and event.diagnostic is not None:
            self._find(event.diagnostic)

    def _find(self, diagnostic: Diagnostic) -> None:
        self.missed += diagnostic.code == "FL201"
        key = diagnostic.code, diagnostic.span, diagnostic.message
        if diagnostic.code == "FL205":  # it counts
            self.findings = {k: f for k, f in self.findings.items() if k[:2] != key[:2]}
        if key in self.findings:
            self.findings[key].count += 1
        elif len(self.findings) < MOST_FINDINGS:
            self.findings[key] = Finding(diagnostic)

    @property
    def calls(self) -> int:
        """That ran compiled code: each begins with one graph, and goes on with others after breaks."""
        return sum(g.calls for g in self.graphs.values() if not g.resumed)

    def kernels(self) -> dict[tuple[str, str, tuple[Span, ...]], KernelTime]:
        """The kernels that were timed, by phase, name and lines, in all graphs and processes together."""
        found: dict[tuple[str, str, tuple[Span, ...]], KernelTime] = {}
        for kernel in (k for graph in self.graphs.values() for k in graph.kernels if k.calls):
            before = found.get(key := (kernel.phase, kernel.name, kernel.spans))
            if before is not None:
                kernel = replace(kernel, calls=kernel.calls + before.calls, seconds=kernel.seconds + before.seconds)
            found[key] = kernel
        return found

    @property
    def compiling(self) -> float:
        return sum(g.compiling for g in self.graphs.values())

    @property
    def seconds(self) -> float:
        return sum(g.seconds for g in self.graphs.values())


@dataclass(slots=True)
class Observed:
    """What one run, which is a process and those that it forked, said about one file."""

    run: str
    program: str
    functions: dict[tuple[str, int], Function] = field(default_factory=dict)
    cells: dict[str, Executed] = field(default_factory=dict)  # of a notebook, by the names under which they ran
    began: float = field(default_factory=time.monotonic)

    def take(self, process: int, event: Event) -> None:
        key = event.function, event.line
        if key not in self.functions or self.functions[key].file != event.file:
            self._forget(event)
            self.functions[key] = Function(*key, file=event.file)
        self.functions[key].take(process, event, time.monotonic() - self.began)

    def _forget(self, event: Event) -> None:
        """The functions of this name that a cell defined when it ran before."""
        cell = self.cells.get(event.file)
        for key, function in list(self.functions.items()):
            before = self.cells.get(function.file)
            if cell is not None and before is not None and (function.name, before.cell) == (event.function, cell.cell):
                del self.functions[key]

    def function(self, names: Iterable[str], line: int | None) -> Function | None:
        """By name, or by the line where its code begins: a module is compiled under the name of a variable."""
        wanted = set(names)
        found = [f for f in self.functions.values() if f.name in wanted or f.line == line]
        return found[-1] if found else None


def _moment(event: Event, at: float) -> Moment | None:
    """What there is to tell of an event; None for those that come all the time."""
    if event.kind == "graph":
        where = " after a break" if event.resumed else ""
        return Moment(at, "compiled", f"graph {event.graph}{where} was compiled", None, event.seconds)
    found = event.diagnostic
    if event.kind != "finding" or found is None:
        return None
    kind = "recompiled" if found.code == "FL201" else "broken" if found.code.startswith("FL1") else "found"
    return Moment(at, kind, found.message, found.span)
