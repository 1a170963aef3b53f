"""Document links: places of user code in virtual documents, stages and kernels in summaries, codes anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.diagnostics import TABLE
from fuselens.record.report import Graph, Kernel, Report, Span, Stage
from fuselens_server.features.locations import find_stage, user_location
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.correspondence import TRITON_LINE
from fuselens_server.texts.document_uri import CodeDocument, ReportDocument
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

_CODE = re.compile(r"\bFL\d{3}\b")
_LINES = re.compile(r"\blines? +(\d+(?:, \d+)*)")
_NUMBER = re.compile(r"\d+")
_GRAPH = re.compile(r"Graph (\d+)$")
_STAGES = re.compile(r"  stages: (.*)")
_KERNEL = re.compile(r"  kernel (\S+) \(")


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_LINK)
    def text_document_document_link(ls: FuselensServer, params: lsp.DocumentLinkParams) -> list[lsp.DocumentLink]:
        uri = params.text_document.uri
        if (view := ls.view(uri)) is not None:
            return comment_links(view)
        text, shown = ls.documents.source(uri), ls.documents.shown(uri)
        if text is None:
            return []
        return document_links(text[0], *shown) if shown else code_links(text[0], uri)


@dataclass(frozen=True, slots=True)
class _Found:
    """A link on one line: columns in characters."""

    start: int
    end: int
    target: str
    tooltip: str


def comment_links(view: View) -> list[lsp.DocumentLink]:
    """Diagnostic codes in the comments of the user's file."""
    text = view.parsed.current
    if not view.annotated:
        return []
    return _encode(text, lambda line, _: _codes(line, line.find("#")) if "#" in line else ())


def code_links(text: SourceText, own: str = "") -> list[lsp.DocumentLink]:
    """Diagnostic codes in a text, but for the one that it is about."""
    return [link for link in _encode(text, lambda line, _: _codes(line)) if link.target != own]


def document_links(text: SourceText, view: View, document: ReportDocument) -> list[lsp.DocumentLink]:
    """Links of a function's virtual document."""
    report, found = view.function(document.qualname), find_stage(view, document)
    if report is None:
        return []
    spans = view.correspondence.spans(found[2]) if found else {}
    places = _Places(view, report)
    summary = _SummaryLinks(view, report) if document.name == "summary" and document.graph is None else None

    def links(line: str, number: int) -> Iterator[_Found]:
        yield from places.links(line, spans.get(number, ()))
        yield from _codes(line)
        yield from _triton(line, document)
        if summary:
            yield from summary.links(line)

    return _encode(text, links)


def _encode(text: SourceText, links) -> list[lsp.DocumentLink]:
    out = []
    for number in range(1, text.line_count + 1):
        start = text.line_start(number)
        for found in links(text.line(number), number):
            place = text.range(start + found.start, start + found.end)
            out.append(lsp.DocumentLink(place, found.target, found.tooltip))
    return out


def _codes(line: str, start: int = 0) -> Iterator[_Found]:
    for match in _CODE.finditer(line, start):
        if (entry := TABLE.get(match.group())) is not None:
            yield _Found(match.start(), match.end(), str(CodeDocument(entry.code)), f"{entry.code}: {entry.title}")


def _triton(line: str, document: ReportDocument) -> Iterator[_Found]:
    """Where an instruction came from in the module that was compiled to it."""
    for match in TRITON_LINE.finditer(line):
        target = triton_module(document)
        yield _Found(match.start(), match.end(), f"{target}#L{match[1]}", f"the Triton kernel, line {match[1]}")


def triton_module(document: ReportDocument) -> ReportDocument:
    """The module that ``document`` was compiled from."""
    _, dot, phase = document.name.partition(".")
    return replace(document, name=f"triton{dot}{phase}", suffix="py")


class _Places:
    """``toy.py:18:13``, ``toy.py:10,11`` and ``line 18`` lead to the user's code as it is now."""

    def __init__(self, view: View, report: Report) -> None:
        self._view = view
        files = view.names | view.correspondence.files | {report.file}
        self._files: dict[str, list[str]] = {}
        for file in sorted(files, key=lambda file: (file not in view.names, file)):  # the document's own file first
            for name in {file, re.split(r"[/\\]", file)[-1]}:
                self._files.setdefault(name, []).append(file)
        names = "|".join(re.escape(name) for name in sorted(self._files, key=len, reverse=True))
        self._place = re.compile(rf"(?<![\w/\\.])(?P<file>{names}):(?P<lines>\d+(?:,\d+)*)(?::(?P<column>\d+))?")

    def links(self, line: str, spans: tuple[Span, ...]) -> Iterator[_Found]:
        for match in self._place.finditer(line):
            files, column = self._files[match["file"]], int(match["column"] or 1)
            first = True
            for number in _NUMBER.finditer(line, match.start("lines"), match.end("lines")):
                start = match.start() if first else number.start()
                end = match.end() if match["column"] else number.end()
                yield from self._link(start, end, files, int(number.group()), column, spans)
                first = False
        for match in _LINES.finditer(line):
            first = True
            for number in _NUMBER.finditer(line, match.start(1), match.end(1)):
                start = match.start() if first else number.start()
                yield from self._link(start, number.end(), sorted(self._view.names), int(number.group()), 1, spans)
                first = False

    def _link(
        self, start: int, end: int, files: list[str], line: int, column: int, spans: tuple[Span, ...]
    ) -> Iterator[_Found]:
        """The spans of the document's line tell files of one name apart."""
        span = next((s for s in spans if s.line == line), Span(files[0], line, column - 1, line, column - 1))
        location = user_location(self._view, self._view.compiled, span, nearest=True)
        if location is not None:
            at = location.range.start
            name = re.split(r"[/\\]", span.file)[-1]
            target = f"{location.uri}#L{at.line + 1},{at.character + 1}"
            yield _Found(start, end, target, f"{name}, line {at.line + 1}")


class _SummaryLinks:
    """Stages and kernels of the graph that the summary is at."""

    def __init__(self, view: View, report: Report) -> None:
        self._view, self._report = view, report
        self._graph: Graph | None = None
        self._kernels: Iterator[Kernel] = iter(())

    def links(self, line: str) -> Iterator[_Found]:
        if heading := _GRAPH.match(line):
            self._graph = next((g for g in self._report.graphs if g.id == int(heading[1])), None)
            self._kernels = iter(self._graph.kernels if self._graph else ())
        elif self._graph and (stages := _STAGES.match(line)):
            for stage in self._graph.stages:
                name = re.search(rf"(?<![\w.]){re.escape(stage.name)}(?![\w.])", stages[1])
                if name:
                    start = stages.start(1) + name.start()
                    yield _Found(
                        start, start + len(stage.name), self._address(stage), f"graph {self._graph.id}, {stage.name}"
                    )
        elif self._graph and (shown := _KERNEL.match(line)):
            kernel = next(self._kernels, None)
            place = self._view.correspondence.kernel_place(self._graph, kernel) if kernel else None
            if place:
                yield _Found(shown.start(1), shown.end(1), f"{self._address(place[0])}#L{place[1]}", "the kernel")

    def _address(self, stage: Stage) -> str:
        graph = self._graph.id if self._graph else None
        return str(ReportDocument(self._view.uri, self._report.function, stage.name, stage.suffix, graph))
