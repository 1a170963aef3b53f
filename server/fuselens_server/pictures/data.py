"""The data of all pictures of one function: plain, and a pure function of a :class:`View`. The page only draws it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TypedDict

from lsprotocol import types as lsp

from fuselens.record.printed import distance
from fuselens.record.report import Graph, Kernel, KernelRun, Machine, Operation, Report, Span
from fuselens_server.documents.linked import COLOURS, Colours
from fuselens_server.features import last_run
from fuselens_server.features.locations import user_location
from fuselens_server.texts.observed import Function
from fuselens_server.texts.tracked_text import TrackedText
from fuselens_server.texts.view import View

PHASES = ("forward", "backward")


class Place(TypedDict):
    """A range in a file of the user's, counted as LSP does. ``name`` is for people: ``toy.py:12``."""

    uri: str
    range: lsp.Range
    name: str


class Node(TypedDict):
    """An operation or, without an operator, an input. ``reads`` and ``kernel`` are positions in the graph's lists."""

    name: str
    operator: str
    type: str
    bytes: int
    reads: list[int]
    kernel: int | None
    result: bool
    place: int | None


class KernelData(TypedDict):
    """A kernel, or a call of an operator, which has no ``backend``. Bytes are None where they are not known. ``colour`` is
    that of its lines in the editor."""

    name: str
    backend: str
    kind: str
    read: int | None
    written: int | None
    takes: str
    colour: int
    place: int | None


class GraphData(TypedDict):
    id: int
    frame: str
    phase: str
    place: int | None
    eager: bool
    kernels: list[KernelData]
    nodes: list[Node]


class Step(TypedDict):
    name: str
    bytes: int
    place: int | None


class Memory(TypedDict):
    """What a graph holds at each of its kernels and calls, in order, or a step of training, which has no ``graph``, after its
    allocations. ``limit`` is what the step has to fit."""

    graph: int | None
    phase: str
    title: str
    limit: int | None
    steps: list[Step]


class Part(TypedDict):
    """A part of the time that compiling took. What its ``parts`` leave over is its own."""

    name: str
    seconds: float
    parts: list[Part]


class Timed(TypedDict):
    """A kernel, or an operator of a ``library``, that was timed. ``seconds``, ``bytes`` and ``operations`` are those of a call; a function
    counts as so many additions as it takes the time of. ``share`` is how much of its limit it reaches, ``told`` says what that is;
    None where they are not known."""

    name: str
    phase: str
    library: bool
    seconds: float
    bytes: int | None
    operations: float | None
    share: float | None
    told: str
    place: int | None


class Roof(TypedDict):
    """What the machine can do: bytes a second of memory, and of the fastest cache; additions a second, and those of products, by
    dtype."""

    name: str
    memory: float
    cache: float
    additions: float
    products: dict[str, float]


class Roofline(TypedDict):
    """The kernels of one measurement, the slowest first; ``source`` says what ran, ``sentences`` how far it is from its limits."""

    source: str
    sentences: list[str]
    roof: Roof | None
    kernels: list[Timed]


class MomentData(TypedDict):
    at: float
    kind: str
    text: str
    seconds: float
    place: int | None


class Run(TypedDict):
    """What the user's own last run said about the function. ``moments`` are in order."""

    program: str
    calls: int
    missed: int
    seconds: float
    dropped: int
    moments: list[MomentData]


class Pictures(TypedDict):
    """``function`` is empty where nothing has been compiled."""

    function: str
    functions: list[str]
    target: str
    stale: bool
    places: list[Place]
    graphs: list[GraphData]
    memory: list[Memory]
    timing: Part | None
    run: Run | None
    rooflines: list[Roofline]


class _Places:
    """The places of a message, each once."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._numbers: dict[tuple[int, Span], int | None] = {}
        self.found: list[Place] = []

    def number(self, spans: Iterable[Span], text: TrackedText | None = None) -> int | None:
        """Of the first span that is anywhere."""
        text = text or self._view.compiled
        for span in spans:
            key = id(text), span
            if key not in self._numbers:
                location = user_location(self._view, text, span, nearest=True)
                self._numbers[key] = None if location is None else len(self.found)
                if location is not None:
                    file = location.uri.rpartition("/")[2]
                    name = f"{file}:{location.range.start.line + 1}"
                    self.found.append(Place(uri=location.uri, range=location.range, name=name))
            if self._numbers[key] is not None:
                return self._numbers[key]
        return None


def pictures(view: View, qualname: str | None = None, machine: Machine | None = None) -> Pictures:
    """The pictures of a function, or of the file's first. ``machine`` is what this one can do, where the report does not say it."""
    reports = view.reports()
    report = next((r for r in reports if r.function == qualname), None) or next(iter(reports), None)
    places = _Places(view)
    colours = Colours(view)
    return Pictures(
        function=report.function if report else "",
        functions=[r.function for r in reports],
        target=report.target if report else "",
        stale=view.stale,
        graphs=[g for graph in _shown(report) for g in _graphs(report, graph, colours, places)] if report else [],
        memory=[*_step(report, places), *(m for graph in report.graphs for m in _memory(graph, places))]
        if report
        else [],
        timing=_timing(report) if report else None,
        run=_run(view, report, places) if report else None,
        rooflines=_rooflines(view, report, machine, places) if report else [],
        places=places.found,
    )


# --- the fused graph --------------------------------------------------------------------------------------------------


def _shown(report: Report) -> list[Graph]:
    """The graphs, but for those without operations of their own that are compiled in parts, which are graphs, too."""
    in_parts = report.in_parts
    return [g for g in report.graphs if g.structure or g.id not in in_parts]


def _graphs(report: Report, graph: Graph, colours: Colours, places: _Places) -> list[GraphData]:
    """A picture for each phase that has something to show; one without nodes for a graph that runs eagerly."""
    phases = [p for p in PHASES if any(o.phase == p for o in graph.structure)] or ["forward"]
    of_kernel = {(k.phase, k.name): colours.of(report, graph, k) % COLOURS for k in graph.kernels}
    return [_graph(graph, phase, of_kernel, places) for phase in phases]


def _graph(graph: Graph, phase: str, colours: Mapping[tuple[str, str], int], places: _Places) -> GraphData:
    operations = [o for o in graph.structure if o.phase == phase]
    known = {k.name: k for k in graph.kernels if k.phase == phase}
    used = dict.fromkeys(name for o in operations for name in o.kernels[:1])
    kernels = {name: position for position, name in enumerate(used)}
    nodes = {o.name: position for position, o in enumerate(operations)}
    spans: defaultdict[str, list[Span]] = defaultdict(list)
    for o in operations:
        for name in o.kernels[:1]:
            spans[name] += o.spans
    return GraphData(
        id=graph.id,
        frame=f"{graph.frame}, runs {graph.runs} times" if graph.runs > 1 else graph.frame,
        phase=phase,
        place=places.number((graph.span,) if graph.span else ()),
        eager=graph.fallback,
        kernels=[
            _kernel(name, known.get(name), colours.get((phase, name), 0), places.number(spans[name]))
            for name in kernels
        ],
        nodes=[
            Node(
                name=o.name,
                operator=_operator(o),
                type=o.type,
                bytes=o.bytes,
                reads=[nodes[name] for name in o.reads if name in nodes],
                kernel=kernels[o.kernels[0]] if o.kernels else None,
                result=o.result,
                place=places.number(o.spans),
            )
            for o in operations
        ],
    )


def _operator(operation: Operation) -> str:
    """``add`` for ``aten.add.Tensor``; several with commas."""
    parts = (name.split(".") for name in operation.origin.split(", ") if name)
    return ", ".join(part[1] if len(part) > 1 else part[0] for part in parts)


def _kernel(name: str, kernel: Kernel | None, colour: int, place: int | None) -> KernelData:
    if kernel is None:
        return KernelData(name=name, backend="", kind="call", read=None, written=None, takes="", colour=0, place=place)
    return KernelData(
        name=name,
        backend=kernel.backend,
        kind=kernel.kind,
        read=kernel.bytes_read,
        written=kernel.bytes_written,
        takes=kernel.takes,
        colour=colour,
        place=place,
    )


# --- memory and time --------------------------------------------------------------------------------------------------


def _memory(graph: Graph, places: _Places) -> list[Memory]:
    found = []
    for phase in PHASES:
        steps = [s for s in graph.memory if s.phase == phase]
        if steps:
            shown = [Step(name=s.name, bytes=s.bytes, place=places.number(s.spans)) for s in steps]
            title = f"Graph {graph.id} · {phase}"
            found.append(Memory(graph=graph.id, phase=phase, title=title, limit=None, steps=shown))
    return found


def _step(report: Report, places: _Places) -> list[Memory]:
    """What a step of training is predicted to hold, where that was asked for."""
    step = report.step
    if step is None or not step.curve:
        return []
    sizes = ", ".join(f"{name}={size}" for name, size in step.sizes.items())
    title = f"A step of training{f' with {sizes}' if sizes else ''}, predicted for {step.card or step.target}"
    shown = [Step(name=p.phase, bytes=p.bytes, place=places.number((p.span,) if p.span else ())) for p in step.curve]
    return [Memory(graph=None, phase="step", title=title, limit=step.limit, steps=shown)]


def _timing(report: Report) -> Part:
    """All that is known of the time, as a tree. Stages of a backward are told by their last word."""
    graphs = [_graph_timing(graph) for graph in report.graphs]
    others = [Part(name=t.stage, seconds=t.seconds, parts=[]) for t in report.timings if t.stage != "total"]
    parts = [*others, *(g for g in graphs if g["parts"])]
    total = sum(t.seconds for t in report.timings if t.stage == "total")
    return Part(name=report.function, seconds=max(total, sum(p["seconds"] for p in parts)), parts=parts)


def _graph_timing(graph: Graph) -> Part:
    top = Part(name=f"graph {graph.id}", seconds=0.0, parts=[])
    backward = Part(name="backward", seconds=0.0, parts=[])
    for timing in graph.timings:
        words = timing.stage.split(".")
        within = top
        if words[-1] == "backward":
            words, within = words[:-1], backward
        for word in words:
            within = next((p for p in within["parts"] if p["name"] == word), None) or _new(within, word)
        within["seconds"] += timing.seconds
    if backward["parts"]:
        top["parts"].append(backward)
    _sum(top)
    return top


def _new(within: Part, name: str) -> Part:
    made = Part(name=name, seconds=0.0, parts=[])
    within["parts"].append(made)
    return made


def _sum(span: Part) -> None:
    """A part takes at least what is in it."""
    for part in span["parts"]:
        _sum(part)
    span["seconds"] = max(span["seconds"], sum(part["seconds"] for part in span["parts"]))


# --- runs -------------------------------------------------------------------------------------------------------------


def _seen(view: View, qualname: str) -> Function | None:
    function = next((a for a in view.annotated if a.qualname == qualname), None)
    return last_run.of(view, function) if function else None


def _run(view: View, report: Report, places: _Places) -> Run | None:
    seen = _seen(view, report.function)
    if seen is None or view.observed is None:
        return None
    return Run(
        program=PurePath(view.observed.program).name,
        calls=seen.calls,
        missed=seen.missed,
        seconds=seen.seconds,
        dropped=seen.dropped,
        moments=[
            MomentData(
                at=m.at,
                kind=m.kind,
                text=m.text,
                seconds=m.seconds,
                place=places.number((m.span,) if m.span else (), view.ran),
            )
            for m in seen.moments
        ],
    )


def seen_kernels(view: View, qualname: str) -> Function | None:
    """What the user's own last run said about a function, if it timed kernels."""
    seen = _seen(view, qualname)
    return seen if seen is not None and seen.kernels() else None


def _rooflines(view: View, report: Report, machine: Machine | None, places: _Places) -> list[Roofline]:
    """Of *Run* on the example inputs, and of the user's own last run."""
    found: list[Roofline] = []
    kept = view.runs.get(report.function)
    if kept is not None and any(kernel.seconds for kernel in kept.result.kernels):
        result = kept.result
        timed = [_timed(k, result.machine, places.number(k.spans)) for k in result.kernels if k.seconds]
        said = [f"{what}: {text}" for phase, what in distance.PHASES if (text := distance.sentence(result, phase))]
        found.append(_roofline("Run on the example inputs", said, result.machine, timed))
    seen = seen_kernels(view, report.function)
    if seen is not None and view.observed is not None:
        machine = report.machine if report.machine is not None and report.machine.measured else machine
        timed = [
            _timed(kernel, machine, places.number(kernel.spans, view.ran))
            for kernel in last_run.kernel_runs(seen, report, machine)
        ]
        found.append(_roofline(f"The last run of {PurePath(view.observed.program).name}", [], machine, timed))
    return found


def _timed(kernel: KernelRun, machine: Machine | None, place: int | None) -> Timed:
    operations = None
    if machine is not None and kernel.limits:
        products = sum(n for kind, n in kernel.operations.items() if kind.startswith("product "))
        operations = products + kernel.limits.get("functions", 0.0) * machine.operations["plain"]
    return Timed(
        name=kernel.name,
        phase=kernel.phase,
        library=kernel.library,
        seconds=kernel.seconds or 0.0,
        bytes=kernel.bytes,
        operations=operations,
        share=kernel.share,
        told=distance.kernel_text(kernel),
        place=place,
    )


def _roofline(source: str, sentences: list[str], machine: Machine | None, kernels: list[Timed]) -> Roofline:
    roof = None
    if machine is not None:
        roof = Roof(
            name=machine.name,
            memory=machine.copies[-1][1],
            cache=max(speed for _, speed in machine.copies),
            additions=machine.operations["plain"],
            products={k.partition(" ")[2]: n for k, n in machine.operations.items() if k.startswith("product ")},
        )
    return Roofline(source=source, sentences=sentences, roof=roof, kernels=_slowest_first(kernels))


def _slowest_first(kernels: list[Timed]) -> list[Timed]:
    return sorted(kernels, key=lambda k: -k["seconds"])
