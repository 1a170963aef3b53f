"""Asking the client to fetch again what it fetched before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException

if TYPE_CHECKING:
    from ..server import FuselensServer
    from ..texts.session import Document

PATIENCE_SECONDS = 5.0  # with a client that does not answer

logger = logging.getLogger(__name__)


class Refreshes:
    """Requests of kinds that the client supports, one of each kind at a time: what changes while one is under way
    leads to one more, so that a burst of checks does not make a client fetch everything as many times."""

    def __init__(self, server: FuselensServer) -> None:
        self._server = server
        self._under_way: dict[str, bool] = {}  # True: once more afterwards
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def diagnostics(self) -> bool:
        """Whether the client can be told to pull diagnostics again."""
        return self._server.client("workspace.diagnostics.refresh_support")

    def ask_for_diagnostics(self) -> None:
        if self.diagnostics:
            self._ask(lsp.WORKSPACE_DIAGNOSTIC_REFRESH, lambda: self._server.workspace_diagnostic_refresh_async(None))

    def ask_for_annotations(self) -> None:
        """Code lenses and inlay hints."""
        server = self._server
        if server.client("workspace.code_lens.refresh_support"):
            self._ask(lsp.WORKSPACE_CODE_LENS_REFRESH, lambda: server.workspace_code_lens_refresh_async(None))
        if server.client("workspace.inlay_hint.refresh_support"):
            self._ask(lsp.WORKSPACE_INLAY_HINT_REFRESH, lambda: server.workspace_inlay_hint_refresh_async(None))

    def marked(self, document: Document) -> None:
        """What became of a document since a revision is known, or shown no more."""
        self._server.publish(document)
        self._server.documents_changed(self._server.document_uris(document))
        self.ask_for_annotations()

    def ask_for_content(self, uri: str) -> None:
        if self._server.client("workspace.text_document_content"):
            parameters = lsp.TextDocumentContentRefreshParams(uri)
            self._ask(uri, lambda: self._server.workspace_text_document_content_refresh_async(parameters))

    def _ask(self, key: str, request: Callable[[], Awaitable[object]]) -> None:
        if key in self._under_way:
            self._under_way[key] = True
            return
        self._under_way[key] = False
        task = asyncio.get_running_loop().create_task(self._run(key, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, key: str, request: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(request())), PATIENCE_SECONDS)
            except (JsonRpcException, TimeoutError) as error:  # a client's refusal is not our error
                logger.info("%s was refused: %s", key, error)
            if not self._under_way.pop(key):
                return
            self._under_way[key] = False
