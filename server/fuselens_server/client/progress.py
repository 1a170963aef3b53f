"""Work-done progress of one check, for clients that show it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

if TYPE_CHECKING:
    from ..server import FuselensServer

DELAY_SECONDS = 0.4  # quicker checks show none: a bar that flashes on each save is noise


class CheckProgress:
    """An async context manager. The client is asked for a token in the background, so that one that never answers
    delays nothing; ``on_cancel`` runs when the user cancels."""

    def __init__(self, server: FuselensServer, title: str, on_cancel: Callable[[], object]) -> None:
        self._server = server
        self._title = title
        self._on_cancel = on_cancel
        self._token = uuid.uuid4().hex
        self._stage = ""
        self._begun = False
        self._opening: asyncio.Task[None] | None = None
        self._slow = asyncio.Event()

    async def __aenter__(self) -> CheckProgress:
        if self._server.client("window.work_done_progress"):
            self._opening = asyncio.create_task(self._open())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._begun:
            self._server.work_done_progress.end(self._token, lsp.WorkDoneProgressEnd())
        self._server.work_done_progress.tokens.pop(self._token, None)

    def report(self, stage: str) -> None:
        self._stage = stage
        if self._begun:
            self._server.work_done_progress.report(self._token, lsp.WorkDoneProgressReport(message=stage))

    def report_now(self, stage: str) -> None:
        """Of what is known to take long."""
        self.report(stage)
        self._slow.set()

    async def _open(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._slow.wait(), DELAY_SECONDS)
        progress = self._server.work_done_progress
        with contextlib.suppress(JsonRpcException):
            # Shielded, as every request of ours whose wait may be given up: cancelling it would cancel pygls' future,
            # which then fails on the client's late answer and shows that to the user.
            parameters = lsp.WorkDoneProgressCreateParams(self._token)
            await asyncio.shield(self._server.window_work_done_progress_create_async(parameters))
            begin = lsp.WorkDoneProgressBegin(title=self._title, message=self._stage or None, cancellable=True)
            progress.begin(self._token, begin)
            self._begun = True
            loop = asyncio.get_running_loop()
            progress.tokens[self._token].add_done_callback(
                lambda future: future.cancelled() and loop.call_soon_threadsafe(self._on_cancel)
            )
