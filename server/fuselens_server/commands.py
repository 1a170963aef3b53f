"""Commands for any editor. The extension's own have other ids, because languageclient registers these."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from pygls import uris
from pygls.exceptions import JsonRpcInvalidParams

from fuselens.report import RunResult

from . import messages
from .features import documents, summary
from .server import FuselensServer


def register(server: FuselensServer) -> None:
    @server.command(messages.RUN)
    async def run(ls: FuselensServer, uri: str, qualname: str) -> dict[str, Any]:
        path = uris.to_fs_path(uri) if uri.startswith("file:") else None
        if not path:
            raise JsonRpcInvalidParams(f"not a file: {uri}")
        with ls.protocol.cancellable() as task:
            try:
                async with ls.show_progress(f"Fuselens: run {qualname}", task.cancel) as progress:
                    result = await ls.checks.run(path, None, qualname, progress.report)
            except asyncio.CancelledError:  # by the request or by the progress bar, which must be answered too
                result = RunResult(qualname, False, "cancelled")
        return dataclasses.asdict(result)

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

    @server.command(messages.RESTART_WORKER)
    async def restart_worker(ls: FuselensServer) -> None:
        await ls.restart()
