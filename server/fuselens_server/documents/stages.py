"""Virtual documents: the text of every stage of every graph, a function's guards and summary, a code's page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.diagnostics import TABLE
from fuselens.record.report import Report, Stage
from fuselens_server.client import messages
from fuselens_server.features import distance, last_run, summary
from fuselens_server.features.locations import find_stage
from fuselens_server.texts.document_uri import CodeDocument, ReportDocument
from fuselens_server.texts.view import View
from fuselens_server.what_if import shown as what_if

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

LANGUAGES = {
    "py": "python", "cpp": "fuselens-cpp", "c": "c", "cu": "cuda-cpp", "loop": "fuselens-loop", "md": "markdown",
    "mlir": "fuselens-mlir", "ll": "fuselens-llvm", "ptx": "fuselens-ptx", "sass": "fuselens-sass",
}  # fmt: skip
KERNEL_SUFFIXES = frozenset({"cpp", "c", "cu", "mlir", "ll", "ptx", "sass"})


def register(server: FuselensServer) -> None:
    @server.feature(lsp.WORKSPACE_TEXT_DOCUMENT_CONTENT)
    async def text_document_content(
        ls: FuselensServer, params: lsp.TextDocumentContentParams
    ) -> lsp.TextDocumentContentResult:
        ls.documents.served(params.uri)
        await ls.documents.complete(params.uri)
        return lsp.TextDocumentContentResult(ls.documents.content(params.uri).text)

    @server.feature(messages.DOCUMENT_CONTENT)
    async def document_content(
        ls: FuselensServer, params: messages.DocumentContentParams
    ) -> messages.DocumentContentResult:
        await ls.documents.complete(params.uri)
        content = ls.documents.content(params.uri)
        return messages.DocumentContentResult(text=content.text, language=content.language)


@dataclass(frozen=True, slots=True)
class Content:
    text: str
    language: str


@dataclass(frozen=True, slots=True)
class Listing:
    """One document as a picker shows it. ``kind`` is summary, guards, graph, loop, kernel, host or text."""

    uri: str
    title: str
    kind: str
    language: str


def language(suffix: str) -> str:
    return LANGUAGES.get(suffix, "plaintext")


def comment(suffix: str) -> str:
    """What begins a comment."""
    return {"py": "#", "loop": "#", "txt": "#", "md": "#", "ll": ";"}.get(suffix, "//")


def kind(stage: Stage) -> str:
    """What a reader would call the document. Triton kernels are Python, so their stage's name tells them."""
    if stage.name.partition(".")[0] == "host":
        return "host"  # the program that calls the kernels, which may be C++ as well
    if stage.suffix in KERNEL_SUFFIXES or "triton" in stage.name or "kernel" in stage.name:
        return "kernel"
    return {"py": "graph", "loop": "loop"}.get(stage.suffix, "text")


def listings(view: View, qualname: str | None = None) -> list[Listing]:
    """Every document of the file's functions (or of one), functions in order, stages in the order they ran."""
    out: list[Listing] = []
    reports = [] if view.borrowed else view.reports(qualname)
    for report in reports:
        prefix = f"{report.function} · " if len(reports) > 1 else ""
        out += [
            _listing(ReportDocument(view.uri, report.function, name, "txt"), prefix + name, name)
            for name in (
                "summary",
                "guards",
                *(("proof",) if report.proof else ()),
                *_of_limits(view, report),
                *((what_if.DOCUMENT,) if report.what_if else ()),
            )
        ]
        for graph in report.graphs:
            for stage in graph.stages:
                title = f"{prefix}graph {graph.id} · {stage.name}"
                out.append(_listing(stage_document(view, report, graph.id, stage), title, kind(stage)))
    return out


def _of_limits(view: View, report: Report) -> tuple[str, ...]:
    return ("limits",) if report.function in view.runs or report.machine is not None else ()


def stage_document(view: View, report: Report, graph: int, stage: Stage) -> ReportDocument:
    return ReportDocument(view.owner(report), report.function, stage.name, stage.suffix, graph)


def report_content(view: View, document: ReportDocument) -> Content | None:
    """The text of one of a function's documents; None when the last good report has no such document."""
    report = view.function(document.qualname)
    if report is None:
        return None
    if document.graph is None:
        texts = {
            "summary": lambda: summary.explain(report, view.stale), "guards": lambda: summary.guards(report),
            "proof": lambda: summary.proof(report), "limits": lambda: distance.text(view, report),
            what_if.DOCUMENT: lambda: what_if.text(report, view.compiled.origin.text.removeprefix("\ufeff")),
        }  # fmt: skip
        make = texts.get(document.name)
        return Content(make(), "plaintext") if make else None
    found = find_stage(view, document)
    if found and found[2].later and not found[2].text:
        return Content(f"{comment(document.suffix)} This text is being made.\n", language(document.suffix))
    return Content(last_run.noted(view, found[0], found[2]), language(document.suffix)) if found else None


def code_content(document: CodeDocument) -> Content | None:
    """A diagnostic code's page, from the table; None for an unknown code."""
    entry = TABLE.get(document.code)
    if entry is None:
        return None
    lines = [f"# {entry.code}: {entry.title}", "", f"Severity: {entry.severity}.", "", f"> {_plain(entry.message)}", ""]
    lines += [_plain(entry.explanation), ""]
    if entry.hints:
        lines += ["## What to do", "", *(f"- {_plain(hint)}" for hint in entry.hints), ""]
    return Content("\n".join(lines), "markdown")


def _plain(template: str) -> str:
    """A message template as a reader sees it: ``{what}`` stands for something, so it prints as ``…``."""
    out, depth = [], 0
    for character in template:
        depth += character == "{"
        if not depth:
            out.append(character)
        if character == "}":
            depth -= 1
            out.append("…")
    return "".join(out)


def _listing(document: ReportDocument, title: str, kind_: str) -> Listing:
    return Listing(str(document), title, kind_, language(document.suffix))
