"""What a tree of a file shows: its functions, and of each the breaks, graphs, kernels, stages and guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
from lsprotocol import types as lsp

from fuselens.live import KernelTime
from fuselens.record.report import Diagnostic, Graph, Guard, Kernel, Report, Severity, Span
from fuselens.source.discovery import Annotated
from fuselens_server.client import messages
from fuselens_server.documents import stages as documents
from fuselens_server.features import last_run, summary
from fuselens_server.features.locations import user_location
from fuselens_server.texts.tracked_text import TrackedText
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

MOST_GUARDS = 200  # of one function; its guards document has all of them
State = Literal["waiting", "compiling", "compiled", "broken", "failed"]


def register(server: FuselensServer) -> None:
    @server.feature(messages.OVERVIEW)
    def overview_(ls: FuselensServer, params: messages.OverviewParams) -> Overview | None:
        view = ls.view(params.uri)
        return overview(view) if view is not None else None


@attrs.frozen
class Finding:
    """``place`` is None where its text is gone, or in no file."""

    code: str
    message: str
    severity: Severity
    breaks: bool  # whether it is a graph break
    place: lsp.Location | None


@attrs.frozen
class GuardItem:
    expression: str
    about: str
    place: lsp.Location | None


@attrs.frozen
class KernelItem:
    """Bytes of a call. ``document`` has its text, from ``line`` (from 1) on. ``seconds`` a call took in the last run."""

    name: str
    backend: str
    phase: str
    kind: str
    operations: list[str]
    lines: list[int]
    reads: int | None
    writes: int | None
    registers: int | None
    takes: str
    seconds: float | None
    place: lsp.Location | None
    document: str | None
    line: int


@attrs.frozen
class GraphItem:
    id: int
    frame: str
    operations: int
    training: bool
    cached: bool
    fallback: bool
    externs: list[str]
    place: lsp.Location | None
    kernels: list[KernelItem]
    stages: list[documents.Listing]


@attrs.frozen
class FunctionItem:
    """``last_run`` and ``inputs`` in words, "" where there is nothing to say."""

    name: str
    state: State
    headline: str
    last_run: str
    inputs: str
    place: lsp.Location
    findings: list[Finding]
    graphs: list[GraphItem]
    guards: list[GuardItem]
    more_guards: int
    documents: list[documents.Listing]


@attrs.frozen
class Overview:
    """``failures`` are why the last check of the file gave nothing."""

    uri: str
    compiling: bool
    stale: bool
    functions: list[FunctionItem]
    failures: list[Finding]


def overview(view: View) -> Overview:
    return Overview(
        uri=view.uri,
        compiling=view.compiling,
        stale=view.stale,
        functions=[_function(view, function) for function in view.annotated],
        failures=[_finding(view, view.failed, failure) for failure in view.failures],
    )


def _function(view: View, function: Annotated) -> FunctionItem:
    report = view.function(function.qualname)
    if report is None:
        state: State = "compiling" if view.compiling else "failed" if view.failures else "waiting"
        headline = "compiling…" if view.compiling else "not compiled" if view.failures else "not compiled yet"
    else:
        state, headline = _state(report), summary.headline(report)
    listed = documents.listings(view, function.qualname) if report else []
    seen = last_run.of(view, function)
    times = seen.kernels() if seen is not None else {}
    guards = report.guards if report else []
    return FunctionItem(
        name=function.qualname,
        state=state,
        headline=headline,
        last_run=last_run.title(view, function),
        inputs=f"{report.inputs} ({report.inputs.source})" if report and report.inputs else "",
        place=lsp.Location(view.uri, view.parsed.anchor(function.name_span)),
        findings=_findings(view, report) if report else [],
        graphs=[_graph(view, report, graph, times) for graph in report.graphs] if report else [],
        guards=[_guard(view, guard) for guard in guards[:MOST_GUARDS]],
        more_guards=max(0, len(guards) - MOST_GUARDS),
        documents=[item for item in listed if "/graph" not in item.uri.partition("?")[0]],
    )


def _state(report: Report) -> State:
    if report.refused or report.prevented or not report.graphs:
        return "failed"
    return "broken" if report.breaks else "compiled"


def _findings(view: View, report: Report) -> list[Finding]:
    """Breaks, and what else is worth a person's while, by their lines."""
    found = [_finding(view, view.compiled, d, breaks=True) for d in report.breaks]
    told = (d for d in report.diagnostics if d.severity in ("error", "warning"))
    found += [_finding(view, view.compiled, d) for d in told]
    return sorted(found, key=lambda f: f.place.range.start.line if f.place else -1)


def _finding(view: View, text: TrackedText, diagnostic: Diagnostic, breaks: bool = False) -> Finding:
    place = _place(view, text, diagnostic.span)
    return Finding(diagnostic.code, diagnostic.message, diagnostic.severity, breaks, place)


def _guard(view: View, guard: Guard) -> GuardItem:
    return GuardItem(guard.expression, ", ".join(guard.roots) or guard.source, _place(view, view.compiled, guard.span))


def _graph(
    view: View, report: Report, graph: Graph, times: dict[tuple[str, str, tuple[Span, ...]], KernelTime]
) -> GraphItem:
    stages = (documents.stage_document(view, report, graph.id, stage) for stage in graph.stages)
    return GraphItem(
        id=graph.id,
        frame=graph.frame,
        operations=graph.operations,
        training=graph.training,
        cached=graph.cached,
        fallback=graph.fallback,
        externs=list(graph.externs),
        place=_place(view, view.compiled, _first_span(view, graph)),
        kernels=[_kernel(view, report, graph, kernel, times) for kernel in graph.kernels],
        stages=[
            documents.Listing(str(document), stage.name, documents.kind(stage), documents.language(stage.suffix))
            for document, stage in zip(stages, graph.stages, strict=True)
        ],
    )


def _first_span(view: View, graph: Graph) -> Span | None:
    """Where the graph begins in this file: a resumed one has no place of its own, but its kernels have."""
    spans = [s for k in graph.kernels for s in k.spans if view.here(s)]
    return min(spans, default=graph.span)


def _kernel(
    view: View, report: Report, graph: Graph, kernel: Kernel, times: dict[tuple[str, str, tuple[Span, ...]], KernelTime]
) -> KernelItem:
    found = view.correspondence.kernel_place(graph, kernel)
    timed = times.get((kernel.phase, kernel.name, kernel.spans))
    return KernelItem(
        name=kernel.name,
        backend=kernel.backend,
        phase=kernel.phase,
        kind=kernel.kind,
        operations=summary.operators(kernel),
        lines=sorted({span.line for span in kernel.spans if view.here(span)}),
        reads=kernel.bytes_read,
        writes=kernel.bytes_written,
        registers=kernel.resources.get("registers"),
        takes=kernel.takes,
        seconds=timed.seconds / timed.calls if timed else None,
        place=_place(view, view.compiled, min((s for s in kernel.spans if view.here(s)), default=None)),
        document=str(documents.stage_document(view, report, graph.id, found[0])) if found else None,
        line=found[1] if found else 1,
    )


def _place(view: View, text: TrackedText, span: Span | None) -> lsp.Location | None:
    return user_location(view, text, span, nearest=True) if span is not None else None
