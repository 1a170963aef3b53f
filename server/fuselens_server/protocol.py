"""pygls' protocol, with what it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import attrs
from lsprotocol import types as lsp
from pygls.protocol import LanguageServerProtocol, lsp_method

from . import messages
from .document_uri import SCHEME

if TYPE_CHECKING:
    from .server import FuselensServer


class FuselensProtocol(LanguageServerProtocol):
    """pygls' protocol with our custom requests, LSP 3.18's text document content, which pygls never advertises,
    cancellation of commands, which pygls answers but lets run on, and optional arguments of commands."""

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

    @lsp_method(lsp.WORKSPACE_EXECUTE_COMMAND)
    def lsp_workspace__execute_command(self, params: lsp.ExecuteCommandParams) -> Generator[Any, Any, Any]:
        """Arguments that have a default may be left out, which pygls refuses."""
        handler = self.fm.commands.get(params.command)
        if handler is not None:
            given = list(params.arguments or ())
            left_out = list(inspect.signature(getattr(handler, "func", handler)).parameters.values())[1 + len(given) :]
            if left_out and all(parameter.default is not parameter.empty for parameter in left_out):
                params = attrs.evolve(params, arguments=[*given, *(parameter.default for parameter in left_out)])
        return (yield from super().lsp_workspace__execute_command(params))

    @lsp_method(lsp.INITIALIZE)
    def lsp_initialize(self, params: lsp.InitializeParams) -> Generator[Any, Any, lsp.InitializeResult]:
        result = yield from super().lsp_initialize(params)
        capabilities = result.capabilities
        if not self._server.pulls_diagnostics:
            capabilities.diagnostic_provider = None  # a client must not get them both ways
        capabilities.workspace = capabilities.workspace or lsp.WorkspaceOptions()
        capabilities.workspace.text_document_content = lsp.TextDocumentContentOptions([SCHEME])
        return result
