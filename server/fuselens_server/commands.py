"""Commands for any editor. The extension's own have other ids, because languageclient registers these."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from fuselens.record.report import Report, RunResult

from .client import messages
from .documents import stages as documents
from .features import code_actions, summary
from .server import FuselensServer
from .texts.document_uri import ReportDocument
from .texts.view import View

REQUEST_FAILED = lsp.LSPErrorCodes.RequestFailed.value


def register(server: FuselensServer) -> None:
    @server.command(messages.RUN)
    async def run(ls: FuselensServer, uri: str, qualname: str) -> dict[str, Any]:
        path = uris.to_fs_path(uri) if uri.startswith("file:") else None
        if not path:
            raise JsonRpcInvalidParams(f"not a file: {uri}")
        return dataclasses.asdict(await _run(ls, uri, path, qualname))

    @server.command(messages.RUN_FUNCTION)
    async def run_function(ls: FuselensServer, uri: str, qualname: str) -> None:
        """Runs what was saved, and shows the outcome."""
        result = await _run(ls, uri, ls.document(uri).path, qualname)
        kind = lsp.MessageType.Info if result.agrees and not result.uncompiled else lsp.MessageType.Warning
        ls.window_show_message(lsp.ShowMessageParams(kind, summary.run_line(result)))

    @server.command(messages.DOCUMENTS)
    async def documents_(ls: FuselensServer, uri: str, qualname: str | None = None) -> list[dict[str, Any]]:
        view = ls.session.view(ls.document(uri))
        return [dataclasses.asdict(item) for item in documents.listings(view, qualname)]

    @server.command(messages.EXPLAIN)
    async def explain(ls: FuselensServer, uri: str, qualname: str) -> str:
        view = ls.session.view(ls.document(uri))
        report = view.function(qualname)
        if report is None:
            raise JsonRpcInvalidParams(f"{qualname} has not been compiled yet")
        return summary.explain(report, view.stale)

    @server.command(messages.OPEN_DOCUMENT)
    async def open_document(
        ls: FuselensServer,
        uri: str | None = None,
        qualname: str | None = None,
        address: str | None = None,
        line: int | None = None,
    ) -> str:
        """Shows the document at ``address``, else the summary of a function. Returns the URI that was shown."""
        if address is None:
            function = _function(ls.session.view(ls.document(str(uri))), qualname)
            address = str(ReportDocument(ls.document(str(uri)).uri, function.function, "summary", "txt"))
        return await _show(ls, address, line)

    @server.command(messages.OPEN_KERNEL)
    async def open_kernel(ls: FuselensServer, uri: str, qualname: str | None = None) -> str:
        """Shows the first kernel of a function. Returns the URI that was shown."""
        view = ls.session.view(ls.document(uri))
        report = _function(view, qualname)
        find = view.correspondence.kernel_place
        places = ((graph, place) for graph in report.graphs for k in graph.kernels if (place := find(graph, k)))
        graph, place = next(places, (None, None))
        if graph is None or place is None:
            raise JsonRpcInvalidParams(f"{report.function} has no kernel")
        return await _show(ls, str(documents.stage_document(view, report, graph.id, place[0])), place[1])

    @server.command(messages.CHECK)
    async def check(ls: FuselensServer, uri: str) -> None:
        """Compiles what was saved once more, as a save would."""
        ls.checks.saved(ls.document(uri))

    @server.command(messages.PREVIEW)
    async def preview(ls: FuselensServer, uri: str, wanted: bool = True) -> bool:
        """Looks at a file that compiles nothing as if it compiled its modules, or no more. Returns whether it has some."""
        document = ls.document(uri)
        if wanted and not document.preview and not document.previews():
            return False
        ls.checks.preview(document, wanted)
        return True

    @server.command(messages.FIX_ALL)
    async def fix_all(ls: FuselensServer, uri: str) -> bool:
        """Applies the fixes that were tried out. Returns whether the client changed anything."""
        if not ls.client("workspace.apply_edit"):
            raise JsonRpcException(
                "this client applies no edits; it may ask for source.fixAll.fuselens", REQUEST_FAILED
            )
        edit = code_actions.fix_all(ls.session.view(ls.document(uri)), versioned=code_actions.takes_versions(ls))
        if edit is None:
            return False
        parameters = lsp.ApplyWorkspaceEditParams(edit, code_actions.FIX_ALL_TITLE)
        return (await ls.workspace_apply_edit_async(parameters)).applied

    @server.command(messages.RESTART_WORKER)
    async def restart_worker(ls: FuselensServer) -> None:
        await ls.restart()


async def _run(ls: FuselensServer, uri: str, path: str, qualname: str) -> RunResult:
    document = ls.session.get(uri)
    with ls.protocol.cancellable() as task:
        try:
            async with ls.show_progress(f"Fuselens: run {qualname}", task.cancel) as progress:
                return await ls.checks.run(path, document, qualname, progress.report)
        except asyncio.CancelledError:  # by the request or by the progress bar, which must be answered too
            return RunResult(qualname, False, "cancelled")


def _function(view: View, qualname: str | None) -> Report:
    """The named function's report; without a name, that of the only one. Raises JsonRpcInvalidParams."""
    reports = view.reports(qualname)
    if not reports:
        raise JsonRpcInvalidParams(f"{qualname or 'this file'} has not been compiled yet")
    if len(reports) > 1 and qualname is None:
        names = ", ".join(report.function for report in reports)
        raise JsonRpcInvalidParams(f"which function? One of {names}")
    return reports[0]


async def _show(ls: FuselensServer, address: str, line: int | None) -> str:
    """Has the client show a virtual document, with the cursor on ``line`` (from 1); one that cannot be asked to is
    told where the document is."""
    ls.documents.content(address)
    (shown,) = ls.encode([lsp.DocumentLink(_line(1), address)])
    uri = shown.target or address
    if ls.client("window.show_document.support"):
        parameters = lsp.ShowDocumentParams(uri, take_focus=True, selection=_line(line) if line else None)
        await ls.window_show_document_async(parameters)
    else:
        where = uris.to_fs_path(uri) if uri.startswith("file:") else uri
        message = f"{where}{f', line {line}' if line else ''}"
        ls.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, message))
    return uri


def _line(number: int) -> lsp.Range:
    start = lsp.Position(number - 1, 0)
    return lsp.Range(start, start)
