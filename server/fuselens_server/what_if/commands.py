"""The commands of *What if*: to search now, and to make a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams

from fuselens.record.report import Report

from ..client import messages
from ..features import code_actions
from ..server import FuselensServer
from ..texts.session import Document
from ..texts.view import View
from ..work.worker_pool import StartError, WorkerDiedError
from . import shown


def register(server: FuselensServer) -> None:
    @server.command(messages.WHAT_IF)
    async def what_if(ls: FuselensServer, uri: str, qualname: str) -> dict[str, Any]:
        """The changes of a function that gain, and where all that was tried can be read; searched for where they are not known."""
        document = ls.document(uri)
        report = _report(ls.session.view(document), qualname)
        if report.what_if is None or report.what_if.stopped:
            with ls.protocol.cancellable() as task:
                async with ls.show_progress(f"Fuselens: what if, of {qualname}", task.cancel) as progress:
                    await _search(ls, document, report, progress.report)
        return shown.listed(ls.session.view(document), report)

    @server.command(messages.APPLY_CHANGE)
    async def apply_change(ls: FuselensServer, uri: str, qualname: str, number: int) -> bool:
        """Makes a change, by its number in the list that ``what_if`` gave. Returns whether the client changed anything."""
        view = ls.session.view(ls.document(uri))
        offered = shown.applicable(view, _report(view, qualname))
        if not 0 <= number < len(offered):
            raise JsonRpcInvalidParams(f"the text has changed, or {qualname} has no such change")
        fix = shown.fix_of(offered[number])
        edits = code_actions.text_edits(view, view.compiled, fix)
        if not edits or not ls.client("workspace.apply_edit"):
            raise JsonRpcException("the text has changed, or this client applies no edits", messages.REQUEST_FAILED)
        edit = code_actions.workspace_edit(view, edits, versioned=code_actions.takes_versions(ls))
        return (await ls.workspace_apply_edit_async(lsp.ApplyWorkspaceEditParams(edit, fix.title))).applied


async def _search(ls: FuselensServer, document: Document, report: Report, progress: Callable[[str], None]) -> None:
    try:
        await ls.changes.now(document, report, progress)
    except (StartError, WorkerDiedError) as error:
        raise JsonRpcException(str(error), messages.REQUEST_FAILED) from error


def _report(view: View, qualname: str) -> Report:
    report = view.function(qualname)
    if report is None or not report.compiled:
        raise JsonRpcInvalidParams(f"{qualname} has not been compiled yet")
    return report
