"""Code lenses above each annotated function: what it became, its kernel, a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.discovery import Annotated
from fuselens_server.features import documents, summary
from fuselens_server.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

OPEN_DOCUMENT, OPEN_KERNEL, RUN_FUNCTION = "fuselens.openDocument", "fuselens.openKernel", "fuselens.runFunction"


def register(server: FuselensServer) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS, lsp.CodeLensOptions(resolve_provider=False))
    def text_document_code_lens(ls: FuselensServer, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        view = ls.view(params.text_document.uri)
        return code_lenses(view) if view and ls.settings.code_lens else []


def code_lenses(view: View) -> list[lsp.CodeLens]:
    return [lens for function in view.annotated for lens in _lenses(view, function)]


def _lenses(view: View, function: Annotated) -> list[lsp.CodeLens]:
    place = view.parsed.anchor(function.name_span)
    report = view.function(function.qualname)
    if report is None:
        title = "compiling…" if view.compiling else "not compiled" if view.failures else "not compiled yet"
        return [lsp.CodeLens(place, lsp.Command(title, ""))]
    arguments = [view.uri, function.qualname]
    title = summary.headline(report) + (" · stale" if view.stale else "")
    commands = [lsp.Command(title, OPEN_DOCUMENT, arguments=arguments)]
    if any(documents.kind(stage) == "kernel" for graph in report.graphs for stage in graph.stages):
        commands.append(lsp.Command("Open kernel", OPEN_KERNEL, arguments=arguments))
    if report.graphs or not report.diagnostics:
        commands.append(lsp.Command("Run", RUN_FUNCTION, arguments=arguments))
    return [lsp.CodeLens(place, command) for command in commands]
