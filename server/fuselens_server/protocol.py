"""pygls' protocol, with what it lacks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from lsprotocol import types as lsp
from pygls.protocol import LanguageServerProtocol, lsp_method

from . import messages
from .document_uri import SCHEME

if TYPE_CHECKING:
    from .server import FuselensServer


class FuselensProtocol(LanguageServerProtocol):
    """pygls' protocol with our custom requests, LSP 3.18's text document content, which pygls never advertises, and
    cancellation of commands, which pygls answers but lets run on."""

    _server: FuselensServer

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._commands: dict[str | int, asyncio.Task[Any]] = {}

    @contextlib.contextmanager
    def cancellable(self) -> Iterator[asyncio.Task[Any]]:
        """While in the block, a cancellation of the request being handled cancels the current task."""
        task, request = asyncio.current_task(), self.msg_id
        assert task is not None
        if request is not None:
            self._commands[request] = task
        try:
            yield task
        finally:
            if request is not None:
                self._commands.pop(request, None)

    def _handle_cancel_notification(self, msg_id: str | int) -> None:
        task = self._commands.pop(msg_id, None)
        super()._handle_cancel_notification(msg_id)
        if task is not None:
            task.cancel()

    def get_message_type(self, method: str) -> type[Any] | None:  # type: ignore[override]  # pygls caches its own
        return messages.REQUEST_TYPES.get(method) or super().get_message_type(method)

    @lsp_method(lsp.INITIALIZE)
    def lsp_initialize(self, params: lsp.InitializeParams) -> Generator[Any, Any, lsp.InitializeResult]:
        result = yield from super().lsp_initialize(params)
        capabilities = result.capabilities
        if not self._server.pulls_diagnostics:
            capabilities.diagnostic_provider = None  # a client must not get them both ways
        capabilities.workspace = capabilities.workspace or lsp.WorkspaceOptions()
        capabilities.workspace.text_document_content = lsp.TextDocumentContentOptions([SCHEME])
        return result
