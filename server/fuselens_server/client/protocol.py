"""pygls' protocol, with what it lacks."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import inspect
import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import attrs
import cattrs
from cattrs.v import format_exception
from lsprotocol import types as lsp
from pygls.exceptions import (
    JsonRpcException,
    JsonRpcInvalidParams,
    JsonRpcInvalidRequest,
    JsonRpcMethodNotFound,
    JsonRpcServerNotInitialized,
)
from pygls.protocol import JsonRPCResponseMessage, LanguageServerProtocol, default_converter, lsp_method

from ..texts.document_uri import SCHEME
from . import messages, settings

if TYPE_CHECKING:
    from ..server import FuselensServer

logger = logging.getLogger(__name__)
_TEXTS = (
    lsp.TEXT_DOCUMENT_DID_OPEN, lsp.TEXT_DOCUMENT_DID_CHANGE, lsp.TEXT_DOCUMENT_DID_CLOSE, lsp.NOTEBOOK_DOCUMENT_DID_OPEN,
    lsp.NOTEBOOK_DOCUMENT_DID_CHANGE, lsp.NOTEBOOK_DOCUMENT_DID_CLOSE,
)  # fmt: skip


def converter() -> cattrs.Converter:
    """pygls' converter, to which a value that is in none of our enumerations is one of a newer client, and no error."""
    lenient = default_converter()

    def structure(value: Any, kind: type[enum.Enum]) -> Any:
        return kind(value) if value in kind._value2member_map_ else value

    for kind in lsp.ALL_TYPES_MAP.values():
        if isinstance(kind, enum.EnumMeta):
            lenient.register_structure_hook(kind, structure)
    return lenient


def _said(error: BaseException, kind: type | None) -> str:
    """What is wrong with a value, in the words of the LSP types where they have some."""
    return str(error) if kind is None and isinstance(error, ValueError) else format_exception(error, kind)


class FuselensProtocol(LanguageServerProtocol):
    """pygls' protocol with our custom requests, LSP 3.18's text document content, which pygls never advertises, answers
    to what is no message or comes before initialize or after shutdown, which pygls leaves open, cancellation of
    commands, which pygls answers but lets run on, and optional arguments of commands."""

    _server: FuselensServer

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked_to_shut_down = False
        self._commands: dict[str | int, asyncio.Task[Any]] = {}

    def _register_builtin_features(self) -> None:
        """Without pygls' own copies of the texts: the session has them, and knows what is not open."""
        super()._register_builtin_features()
        for method in _TEXTS:
            del self.fm.builtin_features[method]

    # --- messages as they come ---------------------------------------------------------------------------------------

    def structure_message(self, data: dict[str, Any]) -> dict[str, Any]:
        """pygls calls this for every object in a message; :meth:`handle_message` structures the message."""
        return data

    def handle_message(self, message: Any) -> None:
        if not isinstance(message, dict) or message.get("jsonrpc") != self.VERSION:
            self.refuse(None, JsonRpcInvalidRequest("not a message of JSON-RPC 2.0"))
        elif "method" not in message:
            self._take_response(message)
        elif "id" in message:
            self._take_request(message)
        else:
            self._take_notification(message)

    def refuse(self, request: str | int | None, error: JsonRpcException) -> None:
        """Answers a request with an error; None is what could not be read as far as its id."""
        logger.info("refused %r: %s", request, error)
        told = self._converter.unstructure(error.to_response_error())
        self._send_data({"jsonrpc": self.VERSION, "id": request, "error": told})

    def _take_request(self, message: dict[str, Any]) -> None:
        request, method = message["id"], message["method"]
        if not isinstance(request, str | int) or isinstance(request, bool):
            self.refuse(None, JsonRpcInvalidRequest(f"not an id: {request!r}"))
            return
        try:
            self._admit(method)
            kind = self.get_message_type(method)
            if kind is None or "id" not in attrs.fields_dict(kind):
                raise JsonRpcInvalidRequest(f"{method} is a notification, which has no id")
            structured = self._structured(message, kind)
        except JsonRpcException as error:
            self.refuse(request, error)
            return
        self.asked_to_shut_down |= method == lsp.SHUTDOWN
        super().handle_message(structured)

    def _admit(self, method: object) -> None:
        """Raises for a request that cannot be answered now, or ever."""
        if self.asked_to_shut_down:
            raise JsonRpcInvalidRequest("the server was asked to shut down")
        if (self._workspace is not None) is (method == lsp.INITIALIZE):
            initialized = self._workspace is not None
            raise JsonRpcInvalidRequest("initialized before") if initialized else JsonRpcServerNotInitialized()
        if not self._knows(method):
            raise JsonRpcMethodNotFound.of(str(method))

    def _take_notification(self, message: dict[str, Any]) -> None:
        method = message["method"]
        out_of_turn = self.asked_to_shut_down or self._workspace is None
        if (out_of_turn and method != lsp.EXIT) or not (self._knows(method) or method == lsp.CANCEL_REQUEST):
            logger.info("ignored the notification %r", method)
            return
        try:
            super().handle_message(self._structured(message, self.get_message_type(method)))
        except JsonRpcException as error:  # with no request to answer, the user is told
            self._server.report_server_error(error, JsonRpcInvalidParams)

    def _take_response(self, message: dict[str, Any]) -> None:
        request = message.get("id")
        future = self._request_futures.get(request) if isinstance(request, str | int) else None
        if future is None or request is None:
            logger.info("ignored a response to %r", request)
            return
        try:
            expected = self._result_types.pop(request, None) or JsonRPCResponseMessage
            structured = self._structured(message, lsp.ResponseErrorMessage if "error" in message else expected)
        except JsonRpcException as error:
            del self._request_futures[request]
            future.set_exception(error)
            return
        super().handle_message(structured)

    def _knows(self, method: object) -> bool:
        return isinstance(method, str) and (method in self.fm.builtin_features or method in self.fm.features)

    def _structured(self, message: dict[str, Any], kind: Any) -> Any:
        """The message as its type. Raises JsonRpcInvalidParams, which says what is wrong."""
        name = message.get("method", "response")
        try:
            return self._converter.structure(message, kind)
        except (cattrs.BaseValidationError, cattrs.StructureHandlerNotFoundError) as error:
            wrong = "; ".join(cattrs.transform_error(error, name, _said))
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:  # of hooks for unions
            wrong = f"{name}: {type(error).__name__}: {error}"
        raise JsonRpcInvalidParams(wrong)

    # --- what becomes of them ----------------------------------------------------------------------------------------

    def _execute_handler(self, msg_id: str | int, *arguments: Any, **more: Any) -> None:
        """Forgets what is done, which pygls does for requests alone: a command runs under an id of its own."""
        super()._execute_handler(msg_id, *arguments, **more)
        future = self._request_futures.get(msg_id)
        if future is not None:
            future.add_done_callback(lambda _: self._request_futures.pop(msg_id, None))

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

    @lsp_method(lsp.SHUTDOWN)
    def lsp_shutdown(self, *arguments: Any) -> Generator[Any, Any, None]:
        """As pygls does it, whose loop over the requests to be cancelled fails when one of them is forgotten meanwhile."""
        if (handler := self.fm.features.get(lsp.SHUTDOWN)) is not None:
            yield handler, arguments, None
        for request, future in list(self._request_futures.items()):
            if request != self.msg_id and not future.done():
                future.cancel()
        self._shutdown = True

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
        if not self._server.publisher.pulled:
            capabilities.diagnostic_provider = None  # a client must not get them both ways
        if not settings.read(params.initialization_options)[0].highlights:
            capabilities.document_highlight_provider = None
        capabilities.workspace = capabilities.workspace or lsp.WorkspaceOptions()
        capabilities.workspace.text_document_content = lsp.TextDocumentContentOptions([SCHEME])
        return result
