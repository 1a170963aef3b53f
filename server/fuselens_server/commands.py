"""Commands for any editor. The extension's own have other ids, because languageclient registers these."""

from __future__ import annotations

import ast
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
from .texts import notebooks
from .texts.document_uri import ReportDocument
from .texts.view import View


def register(server: FuselensServer) -> None:
    _register_showing(server)

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
                "this client applies no edits; it may ask for source.fixAll.fuselens", messages.REQUEST_FAILED
            )
        edit = code_actions.fix_all(ls.session.view(ls.document(uri)), versioned=code_actions.takes_versions(ls))
        if edit is None:
            return False
        parameters = lsp.ApplyWorkspaceEditParams(edit, code_actions.FIX_ALL_TITLE)
        return (await ls.workspace_apply_edit_async(parameters)).applied

    @server.command(messages.FUNCTIONS)
    async def functions(ls: FuselensServer, uri: str) -> list[dict[str, Any]]:
        """The compiled functions of an open file, with where their names stand (lines from 0, columns as the client counts);
        none for what is no open Python file."""
        document = ls.session.get(uri)
        if document is None:
            return []
        view = ls.session.view(document)
        found = [(f.qualname, view.name_range(f.qualname)) for f in view.annotated]
        return [
            {"name": name, "line": r.start.line, "start": r.start.character, "end": r.end.character}
            for name, r in found if r is not None
        ]  # fmt: skip

    @server.command(messages.FIRST_LINE)
    async def first_line(ls: FuselensServer, uri: str, qualname: str) -> int | None:
        """The line (from 1) of the first statement of a function, where a debugger may stop; None of what is no function."""
        view = ls.session.view(ls.document(uri))
        name = view.name_range(qualname)
        return _first_line(view.parsed.current.text, name.start.line + 1) if name else None

    @server.command(messages.MARK_DYNAMIC)
    async def mark_dynamic(ls: FuselensServer, uri: str, qualname: str) -> bool:
        """Has a function compiled for any size, if that agrees with eager. Returns whether the client changed anything."""
        return await _mark_dynamic(ls, uri, qualname)

    @server.command(messages.RESTART_WORKER)
    async def restart_worker(ls: FuselensServer) -> None:
        await ls.restart()


def _register_showing(server: FuselensServer) -> None:
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

    @server.command(messages.SHOW_PLACE)
    async def show_place(ls: FuselensServer, uri: str, line: int, column: int) -> str:
        """Shows a place of a file, say a break's. Returns the URI that was shown."""
        start = lsp.Position(line, column)
        return await _show_range(ls, *notebooks.place_in_cell(ls.session, uri, lsp.Range(start, start)))


async def _run(ls: FuselensServer, uri: str, path: str, qualname: str) -> RunResult:
    document = ls.session.get(uri)
    text = document.run_text() if document is not None else None
    with ls.protocol.cancellable() as task:
        try:
            async with ls.show_progress(f"Fuselens: run {qualname}", task.cancel) as progress:
                result = await ls.checks.run(path, document, qualname, progress.report)
            if document is not None:
                document.ran_function(result, text)
                ls.refreshes.ask_for_annotations()
                ls.pictures_changed([document.uri])
            return result
        except asyncio.CancelledError:  # by the request or by the progress bar, which must be answered too
            return RunResult(qualname, False, "cancelled")


async def _mark_dynamic(ls: FuselensServer, uri: str, qualname: str) -> bool:
    document = ls.document(uri)
    view = ls.session.view(document)
    report = _function(view, qualname)
    function = next((f for f in view.annotated if f.qualname == qualname), None)
    finding = code_actions.for_any_size(view, function) if function else None
    if finding is None:
        raise JsonRpcInvalidParams(f"no size of {qualname} is fixed, or it is not compiled by a decorator")
    async with ls.show_progress(f"Fuselens: try {finding.fixes[0].title}", lambda: None):
        tried = await ls.trials.now(document, report, finding)
    best = next((fix for fix in tried.fixes if fix.verified), None)
    if best is None:
        why = tried.fixes[0].trial if tried.fixes else "it computes something else then"
        told = f"{qualname} is not changed: compiled for any size, {why}"
        ls.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, told))
        return False
    edits = code_actions.text_edits(view, view.compiled, best)
    if not edits or not ls.client("workspace.apply_edit"):
        raise JsonRpcException("the text has changed, or this client applies no edits", messages.REQUEST_FAILED)
    edit = code_actions.workspace_edit(view, edits, versioned=code_actions.takes_versions(ls))
    return (await ls.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit, best.title))).applied


def _function(view: View, qualname: str | None) -> Report:
    """The named function's report; without a name, that of the only one. Raises JsonRpcInvalidParams."""
    reports = view.reports(qualname)
    if not reports:
        raise JsonRpcInvalidParams(f"{qualname or 'this file'} has not been compiled yet")
    if len(reports) > 1 and qualname is None:
        names = ", ".join(report.function for report in reports)
        raise JsonRpcInvalidParams(f"which function? One of {names}")
    return reports[0]


def _first_line(text: str, line: int) -> int | None:
    """Of the function that is defined on ``line``; a docstring is no statement that runs."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    functions = (
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.lineno == line
    )
    for function in functions:
        body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
        return body[0].lineno if body else None
    return None


async def _show(ls: FuselensServer, address: str, line: int | None) -> str:
    """Has the client show a virtual document, with the cursor on ``line`` (from 1); one that cannot be asked to is
    told where the document is."""
    ls.documents.content(address)
    (shown,) = ls.encode([lsp.DocumentLink(_line(1), address)])
    return await _show_range(ls, shown.target or address, _line(line) if line else None)


async def _show_range(ls: FuselensServer, uri: str, selection: lsp.Range | None) -> str:
    if ls.client("window.show_document.support"):
        await ls.window_show_document_async(lsp.ShowDocumentParams(uri, take_focus=True, selection=selection))
    else:
        where = uris.to_fs_path(uri) if uri.startswith("file:") else uri
        message = f"{where}{f', line {selection.start.line + 1}' if selection else ''}"
        ls.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Info, message))
    return uri


def _line(number: int) -> lsp.Range:
    start = lsp.Position(number - 1, 0)
    return lsp.Range(start, start)
