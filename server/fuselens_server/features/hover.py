"""Hovers: guards on parameters, a summary on a function's name, shapes and what became of it on a body line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.report import Graph, Report
from fuselens.source.discovery import Annotated
from fuselens_server.documents import stages as documents
from fuselens_server.documents.hover import document_hover
from fuselens_server.features import distance, last_run, since, summary
from fuselens_server.features.hovers.guards import foreseen_line, guards_line, parameter_hover
from fuselens_server.features.hovers.lines import line_hover
from fuselens_server.features.hovers.links import Links
from fuselens_server.features.markdown import bullets, escape, escape_but_code
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

_WORD = re.compile(r"\w+")
_MOST_FINDINGS = 4
_MOST_GRAPHS = 3
_MOST_STAGES = 3  # of which the time is told


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def text_document_hover(ls: FuselensServer, params: lsp.HoverParams) -> lsp.Hover | None:
        view, shown = ls.view(params.text_document.uri), ls.documents.shown(params.text_document.uri)
        if shown is not None:
            return document_hover(*shown, params.position)
        return hover(view, params.position, Links(view, ls.settings.command_links, ls.documents.link)) if view else None


def hover(view: View, position: lsp.Position, link: Links | None = None) -> lsp.Hover | None:
    """The hover at ``position``; None when neither the last good report nor the last run has anything to say there."""
    link = link or Links(view)
    for function in view.annotated:
        if _within(position, view.parsed.anchor(function.name_span)):
            report = view.function(function.qualname)
            parts = _function(view, function, report, link) if report else []
            place = view.parsed.anchor(function.name_span)
            changed = since.about(view, place.start.line, whole=True)
            return _hover(view, [*parts, *changed, *last_run.about(view, function)], place)
        for parameter in function.parameters:
            place = view.parsed.range(parameter.span)
            if place and _within(position, place):
                seen = last_run.argument(view, function, parameter.name)
                return _hover(view, [*parameter_hover(view, function, parameter, link), *seen], place)
    line = view.compiled.line(position) if view.report else None
    word, place = _word(view, position) or ("", None)
    parts = line_hover(view, line, word, position, link) if line is not None else []
    seen = [*last_run.shapes(view, position, word), *last_run.kernels(view, position)]
    changed = since.about(view, position.line, whole=False)
    return _hover(view, [*changed, *parts[:1], *distance.rows(view, position), *parts[1:], *seen], place)


def _hover(view: View, parts: list[str], place: lsp.Range | None) -> lsp.Hover | None:
    if not parts:
        return None
    if view.stale:
        parts = [*parts, "*From the last good check: the file has changed since.*"]
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n\n".join(parts)), place)


# --- a function's name ---------------------------------------------------------------------------------------------


def _function(view: View, function: Annotated, report: Report, link: Links) -> list[str]:
    about = " · ".join(filter(None, (summary.headline(report), f"target {report.target}", report.mode)))
    parts = [f"**{escape(report.function)}** — {escape(about)}"]
    found = [
        f"{f'{d.span.place(report.file)}: ' if d.span else ''}{escape_but_code(d.message)} ({d.code})"
        for d in (*report.breaks, *report.diagnostics)
    ]
    if len(found) > _MOST_FINDINGS:
        found = [*found[:_MOST_FINDINGS], f"and {len(found) - _MOST_FINDINGS} more"]
    parts += [bullets(found), _times(report), guards_line(report, function.parameters), foreseen_line(report)]
    names = [link(name, ReportDocument(view.uri, report.function, name, "txt")) for name in ("summary", "guards")]
    parts.append(" · ".join(names))
    parts += [_graph_links(view, report, graph, link) for graph in report.graphs[:_MOST_GRAPHS]]
    return [part for part in parts if part]


def _times(report: Report) -> str:
    """``Compiled in 2.91 s: joint 755 ms, …``: the longest stages."""
    timings = summary.stage_times(report)
    if not timings:
        return ""
    outer = sorted((t for t in timings if "." not in t.stage), key=lambda t: -t.seconds)
    stages = ", ".join(f"{escape(t.stage)} {summary.duration(t.seconds)}" for t in outer[:_MOST_STAGES])
    return f"Compiled in {summary.duration(summary.total_time(report))}{f': {stages}' if stages else ''}"


def _graph_links(view: View, report: Report, graph: Graph, link: Links) -> str:
    """``graph 0: [capture] · [loops] · [cpp]``; the backward's stages are listed where all are."""
    texts = [
        link(stage.name, documents.stage_document(view, report, graph.id, stage))
        for stage in graph.stages if not stage.name.endswith(".backward")
    ]  # fmt: skip
    return f"graph {graph.id}: " + " · ".join(texts) if texts else ""


# --- text ----------------------------------------------------------------------------------------------------------


def _word(view: View, position: lsp.Position) -> tuple[str, lsp.Range] | None:
    current = view.compiled.current
    offset, start = current.offset(position), current.line_start(position.line + 1)
    for match in _WORD.finditer(current.line(position.line + 1)):
        if start + match.start() <= offset <= start + match.end():
            return match.group(), current.range(start + match.start(), start + match.end())
    return None


def _within(position: lsp.Position, place: lsp.Range) -> bool:
    here = (position.line, position.character)
    return (place.start.line, place.start.character) <= here <= (place.end.line, place.end.character)
