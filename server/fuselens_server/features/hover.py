"""Hovers: guards on parameters, a summary on a function's name, shapes and what became of it on a body line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from lsprotocol import types as lsp

from fuselens.record import live_memory
from fuselens.record.report import Decision, Graph, Report, Shape, Span, Stage
from fuselens.source.discovery import Annotated, Parameter
from fuselens_server.client.messages import CLIENT_ACTIONS
from fuselens_server.documents import stages as documents
from fuselens_server.documents.hover import document_hover
from fuselens_server.features import last_run, markdown, summary
from fuselens_server.features.inlay_hints import tensor_layout, tensor_text
from fuselens_server.features.markdown import block, bullets, code, escape, escape_but_code
from fuselens_server.texts.document_uri import ReportDocument
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

_WORD = re.compile(r"\w+")
_PLACE = re.compile(r"\s+# (?:\S+:\d+:\d+|line \d+)$")  # where an IR line comes from: the line hovered over
_HEAD = re.compile(r"^(\s*kernel \w+ \[.*?\]) of \[.*")  # which loops it fused is said elsewhere
_MAXIMUM_FUNCTIONS = 3  # a helper inlined by many functions shows the first ones
_MAXIMUM_EXCERPT = 12  # lines of loop IR
_MAXIMUM_LINES = 12  # of guards, decisions, shapes
_VERDICTS = {"taken": "✓", "refused": "✗"}


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def text_document_hover(ls: FuselensServer, params: lsp.HoverParams) -> lsp.Hover | None:
        view, shown = ls.view(params.text_document.uri), ls.documents.shown(params.text_document.uri)
        if shown is not None:
            return document_hover(*shown, params.position)
        return hover(view, params.position, Links(view, ls.settings.command_links, ls.documents.link)) if view else None


@dataclass(frozen=True, slots=True)
class Links:
    """How a hover links to documents: as their URIs, or as commands for clients that open no foreign schemes."""

    view: View
    commands: bool = False
    address: Callable[[ReportDocument], str] = str

    def __call__(self, text: str, document: ReportDocument, line: int | None = None) -> str:
        target = f"{self.address(document)}#L{line}" if line else self.address(document)
        if self.commands:
            arguments = [document.file, document.qualname, str(document), line]
            target = f"command:{CLIENT_ACTIONS.open_document}?{quote(json.dumps(arguments), safe='')}"
        return markdown.link(text, target)


def hover(view: View, position: lsp.Position, link: Links | None = None) -> lsp.Hover | None:
    """The hover at ``position``; None when neither the last good report nor the last run has anything to say there."""
    link = link or Links(view)
    for function in view.annotated:
        if _within(position, view.parsed.anchor(function.name_span)):
            report = view.function(function.qualname)
            parts = _function(view, report, link) if report else []
            return _hover(view, [*parts, *last_run.about(view, function)], view.parsed.anchor(function.name_span))
        for parameter in function.parameters:
            place = view.parsed.range(parameter.span)
            if place and _within(position, place):
                seen = last_run.argument(view, function, parameter.name)
                return _hover(view, [*_parameter(view, function, parameter), *seen], place)
    line = view.compiled.line(position) if view.report else None
    word, place = _word(view, position) or ("", None)
    parts = _line(view, line, word, link) if line is not None else []
    seen = [*last_run.shapes(view, position, word), *last_run.kernels(view, position)]
    return _hover(view, [*parts, *seen], place)


def _hover(view: View, parts: list[str], place: lsp.Range | None) -> lsp.Hover | None:
    if not parts:
        return None
    if view.stale:
        parts = [*parts, "*From the last good check: the file has changed since.*"]
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, "\n\n".join(parts)), place)


# --- a function's name ---------------------------------------------------------------------------------------------


def _function(view: View, report: Report, link: Links) -> list[str]:
    about = " · ".join(filter(None, (summary.headline(report), f"target {report.target}", report.mode)))
    parts = [f"**{escape(report.function)}** — {escape(about)}"]
    found = [*report.breaks, *report.diagnostics]
    if found:
        parts.append(
            bullets(
                [f"{f'{d.span.place(report.file)}: ' if d.span else ''}{escape(d.message)} ({d.code})" for d in found]
            )
        )
    timings = summary.stage_times(report)
    if timings:
        rows = [f"| {escape(t.stage)} | {summary.duration(t.seconds)} |" for t in timings]
        rows.append(f"| **total** | **{summary.duration(summary.total_time(report))}** |")
        parts.append("\n".join(["| stage | time |", "| :-- | --: |", *rows]))
    names = [link(name, ReportDocument(view.uri, report.function, name, "txt")) for name in ("summary", "guards")]
    parts.append(" · ".join(names))
    parts += [_graph_links(view, report, graph, link) for graph in report.graphs[:_MAXIMUM_LINES]]
    return [part for part in parts if part]


def _graph_links(view: View, report: Report, graph: Graph, link: Links, line: int | None = None) -> str:
    """``graph 0: [capture] · [loops] · [cpp]``; with a user ``line``, each link leads to its first line there."""
    texts = []
    for stage in graph.stages:
        target = next((entry.line for entry in stage.lines if line and _covers(view, entry.spans, line)), None)
        texts.append(link(stage.name, documents.stage_document(view, report, graph.id, stage), target))
    return f"graph {graph.id}: " + " · ".join(texts) if texts else ""


# --- a parameter ---------------------------------------------------------------------------------------------------


def _parameter(view: View, function: Annotated, parameter: Parameter) -> list[str]:
    report = view.function(function.qualname)
    if report is None:
        return []
    named = re.compile(rf"(?<![\w.]){re.escape(parameter.name)}(?!\w)")
    parts = [f"**{escape(parameter.name)}** — parameter of {code(function.qualname)}"]
    shapes = [s for s in report.shapes if s.name == parameter.name]
    own = [s for s in shapes if s.span.line <= parameter.span.end_line] or shapes
    if own:
        parts.append(f"{code(tensor_text(own[0].tensor))} — {escape(tensor_layout(own[0].tensor))}")
    symbols = [s for s in report.symbols if named.search(s.source)]
    if symbols:
        parts.append(bullets([f"{code(s.name)} = {code(s.source)}{_range(s.lower, s.upper, s.hint)}" for s in symbols]))
    guards = [g for g in report.guards if g.root == parameter.name or (not g.root and named.search(g.source))]
    if guards:
        lines = [
            f"{g.expression}{f'  # {g.span.place(report.file)}' if g.span else ''}" for g in guards[:_MAXIMUM_LINES]
        ]
        lines += [f"# and {len(guards) - _MAXIMUM_LINES} more"] if len(guards) > _MAXIMUM_LINES else []
        parts.append("Compiled again unless:\n" + block("python", lines))
    else:
        parts.append("No guard depends on it: any value reuses the compiled code.")
    return parts


def _range(lower: int | None, upper: int | None, hint: int | None) -> str:
    bounds = []
    if lower is not None or upper is not None:
        bounds.append(f"{'−∞' if lower is None else lower} … {'∞' if upper is None else upper}")
    if hint is not None:
        bounds.append(f"example {hint}")
    return f" ({', '.join(bounds)})" if bounds else ""


# --- a body line ---------------------------------------------------------------------------------------------------


def _line(view: View, line: int, word: str, link: Links) -> list[str]:
    parts: list[str] = []
    shown = [r for r in view.reports() if _concerns(view, r, line, word)]
    for report in shown[:_MAXIMUM_FUNCTIONS]:
        if len(shown) > 1:
            parts.append(f"**in {code(report.function)}**")
        parts += _shapes(view, report, line, word)
        for graph in report.graphs:
            parts += _graph(view, report, graph, line, link)
    return parts


def _concerns(view: View, report: Report, line: int, word: str) -> bool:
    graphs = any(_touches(view, graph, line) for graph in report.graphs)
    return (
        graphs or any(_covers(view, (s.span,), line) for s in report.shapes) or bool(_latest(view, report, line, word))
    )


def _shapes(view: View, report: Report, line: int, word: str) -> list[str]:
    """Shapes of the names bound on this line, and of the name under the cursor where it was bound last."""
    shapes = [s for s in report.shapes if _covers(view, (s.span,), line)]
    used = _latest(view, report, line, word)
    if used and all(s.name != word for s in shapes):
        shapes = [used, *shapes]
    seen = dict.fromkeys(
        f"{code(f'{s.name}: {tensor_text(s.tensor)}')} — {escape(tensor_layout(s.tensor))}" for s in shapes
    )
    return [bullets(list(seen))] if seen else []


def _latest(view: View, report: Report, line: int, word: str) -> Shape | None:
    """The last binding of ``word`` at or before ``line`` within the report's own function."""
    function = next((a for a in view.annotated if a.qualname == report.function), None)
    if not word or function is None or not function.span.line <= line <= function.span.end_line:
        return None
    bound = [s for s in report.shapes if s.name == word and view.here(s.span) and s.span.line <= line]
    return max(bound, key=lambda s: s.span, default=None)


def _graph(view: View, report: Report, graph: Graph, line: int, link: Links) -> list[str]:
    if not _touches(view, graph, line):
        return []
    kernels = [k for k in graph.kernels if _covers(view, k.spans, line)]
    became = [code(summary.kernel_line(kernel)) for kernel in kernels]
    arrow = f"→ {became[0]}" if len(became) == 1 else "→\n" + bullets(became)
    fate = "runs eagerly" if graph.fallback else arrow if became else "no kernel of its own"
    parts = [f"**graph {graph.id}** {fate}"]
    stage = _loops(view, graph, line)
    excerpt = _excerpt(view, stage, line) if stage else []
    if excerpt:
        parts.append(block("text", excerpt))
    memory = live_memory.at(graph, lambda span: _covers(view, (span,), line))
    if memory:
        parts.append(bullets([escape_but_code(sentence) for sentence in memory[:_MAXIMUM_LINES]]))
    decisions = [d for d in graph.decisions if d.verdict != "saved" and d.span and _covers(view, (d.span,), line)]
    if decisions:
        parts.append(bullets([_decision(d) for d in decisions[:_MAXIMUM_LINES]]))
    parts.append(_graph_links(view, report, graph, link, line))
    return [part for part in parts if part]


def _loops(view: View, graph: Graph, line: int) -> Stage | None:
    """The last text of the loop IR that has something of the line, which is the fused one, of the forward where there is
    one; before there is any, the last text that has."""
    found = [s for s in graph.stages if any(_covers(view, entry.spans, line) for entry in s.lines)]
    loops = [s for s in found if s.suffix == "loop"] or found
    return next((s for s in reversed(loops) if not s.name.endswith(".backward")), loops[-1] if loops else None)


def _excerpt(view: View, stage: Stage, line: int) -> list[str]:
    text = stage.text.split("\n")
    wanted = sorted({e.line for e in stage.lines if _covers(view, e.spans, line) and 1 <= e.line <= len(text)})
    out: list[str] = []
    for index, number in enumerate(wanted[:_MAXIMUM_EXCERPT]):
        if index and wanted[index - 1] != number - 1:
            out.append("…")
        out.append(_HEAD.sub(r"\1", _PLACE.sub("", text[number - 1])))
    if len(wanted) > _MAXIMUM_EXCERPT:
        out.append(f"… {len(wanted) - _MAXIMUM_EXCERPT} more lines")
    return _dedent(out)


def _dedent(lines: list[str]) -> list[str]:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip() and line[0] != "…"), default=0)
    return [line if line.startswith("…") else line[indent:] for line in lines]


def _decision(decision: Decision) -> str:
    mark = _VERDICTS.get(decision.verdict, "•")
    times = "; ".join(
        escape(name) if seconds is None else f"{escape(name)} {summary.duration(seconds)}"
        for name, seconds in decision.candidates
    )
    said = f"{mark} {escape(decision.verdict)}: {code(decision.subject)}: {escape(decision.reason)}"
    return f"{said} ({times})" if times else said


def _touches(view: View, graph: Graph, line: int) -> bool:
    spans: list[Callable[[], bool]] = [
        lambda: any(_covers(view, kernel.spans, line) for kernel in graph.kernels),
        lambda: any(_covers(view, entry.spans, line) for stage in graph.stages for entry in stage.lines),
        lambda: any(d.span is not None and _covers(view, (d.span,), line) for d in graph.decisions),
        lambda: any(_covers(view, step.spans, line) for step in graph.memory),
    ]
    return any(test() for test in spans)


def _covers(view: View, spans: tuple[Span, ...], line: int) -> bool:
    return any(span.line <= line <= span.end_line and view.here(span) for span in spans)


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
