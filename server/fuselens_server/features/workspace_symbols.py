"""Workspace symbols: the annotated functions of the open files, their graphs and their kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.record.report import Report
from fuselens_server.documents.stages import stage_document
from fuselens_server.features.locations import stage_location
from fuselens_server.texts.view import View

if TYPE_CHECKING:
    from fuselens_server.server import FuselensServer

MOST = 500
_TOP = lsp.Range(lsp.Position(0, 0), lsp.Position(0, 0))


def register(server: FuselensServer) -> None:
    @server.feature(lsp.WORKSPACE_SYMBOL)
    def workspace_symbol(ls: FuselensServer, params: lsp.WorkspaceSymbolParams) -> list[lsp.WorkspaceSymbol]:
        views = (ls.session.view(document) for document in ls.session.documents)
        return workspace_symbols(views, params.query)


def workspace_symbols(views: Iterable[View], query: str) -> list[lsp.WorkspaceSymbol]:
    """Those whose names have the characters of ``query`` in order, functions first, then graphs, then kernels."""
    found = [symbol for view in views for symbol in _symbols(view) if matches(query, symbol.name)]
    order = [lsp.SymbolKind.Function, lsp.SymbolKind.Module, lsp.SymbolKind.Operator]
    return sorted(found, key=lambda symbol: order.index(symbol.kind))[:MOST]


def matches(query: str, name: str) -> bool:
    rest = iter(name.lower())
    return all(character in rest for character in query.lower() if not character.isspace())


def _symbols(view: View) -> Iterator[lsp.WorkspaceSymbol]:
    for function in view.annotated:
        place = lsp.Location(view.uri, view.parsed.anchor(function.name_span))
        yield lsp.WorkspaceSymbol(place, function.qualname, lsp.SymbolKind.Function, container_name=_file(view))
    for report in [] if view.borrowed else view.reports():
        yield from _graph_symbols(view, report)


def _graph_symbols(view: View, report: Report) -> Iterator[lsp.WorkspaceSymbol]:
    for graph in report.graphs:
        name = f"{report.function} graph {graph.id}"
        if graph.stages:
            first = stage_document(view, report, graph.id, graph.stages[0])
            yield lsp.WorkspaceSymbol(
                lsp.Location(str(first), _TOP), name, lsp.SymbolKind.Module, container_name=_file(view)
            )
        for kernel in graph.kernels:
            place = view.correspondence.kernel_place(graph, kernel)
            if place:
                stage, line = place
                location = stage_location(view, report, graph, stage, line, line)
                said = kernel.phase == "forward" or "backward" in kernel.name
                title = f"{name} {kernel.name}{'' if said else ' backward'}"
                about = ", ".join(kernel.operations)
                yield lsp.WorkspaceSymbol(location, title, lsp.SymbolKind.Operator, container_name=about or _file(view))


def _file(view: View) -> str:
    return view.path.replace("\\", "/").rpartition("/")[2]
