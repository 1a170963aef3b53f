"""An editor for measurements: one server, and what it says."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

PATIENCE = 180.0


class Editor:
    """``now()`` is the time since the server's process was started, in seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.published: dict[str, lsp.PublishDiagnosticsParams] = {}
        self.statuses: list[tuple[float, str, str]] = []  # when, state, message
        self.progress: list[tuple[float, str]] = []  # when, text
        self.reports = 0
        self._news = asyncio.Event()
        self._started = time.perf_counter()
        self._versions: dict[str, int] = {}
        self._client = LanguageClient("benchmark", "1")
        self._listen()

    def now(self) -> float:
        return time.perf_counter() - self._started

    def _listen(self) -> None:
        @self._client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def publish(params: lsp.PublishDiagnosticsParams) -> None:
            self.published[params.uri] = params
            self._news.set()

        @self._client.feature("fuselens/documentsChanged")
        def documents_changed(params: Any) -> None:
            self.reports += 1
            self._news.set()

        @self._client.feature("fuselens/status")
        def status(params: Any) -> None:
            self.statuses.append((self.now(), params.state, params.message))
            self._news.set()

        @self._client.feature(lsp.WINDOW_WORK_DONE_PROGRESS_CREATE)
        def create(params: lsp.WorkDoneProgressCreateParams) -> None:
            return None

        @self._client.feature(lsp.PROGRESS)
        def progress(params: lsp.ProgressParams) -> None:
            value = params.value
            told = value if isinstance(value, dict) else {k: getattr(value, k, "") for k in ("title", "message")}
            self.progress.append((self.now(), f"{told.get('title') or ''} {told.get('message') or ''}".strip()))

    async def start(self) -> None:
        self._started = time.perf_counter()
        await self._client.start_io(sys.executable, "-m", "fuselens_server")
        capabilities = lsp.ClientCapabilities(window=lsp.WindowClientCapabilities(work_done_progress=True))
        await self._client.initialize_async(
            lsp.InitializeParams(
                capabilities,
                root_uri=self.folder.as_uri(),
                initialization_options={"allowedFolders": [str(self.folder)], **SETTINGS},
            )
        )
        self._client.initialized(lsp.InitializedParams())

    async def until(self, condition: Callable[[], Any]) -> float:
        """Waits until it holds; the time then."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._news.clear()
                await self._news.wait()
        return self.now()

    def open(self, path: Path) -> str:
        uri = path.as_uri()
        self._versions[uri] = 1
        item = lsp.TextDocumentItem(uri, "python", 1, path.read_text())
        self._client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        return uri

    def change(self, uri: str, text: str, where: lsp.Range | None = None) -> int:
        """All of it becomes ``text``, or what is at ``where``; the version that it is then."""
        version = self._versions[uri] = self._versions[uri] + 1
        whole = lsp.TextDocumentContentChangeWholeDocument(text)
        change = whole if where is None else lsp.TextDocumentContentChangePartial(where, text)
        identifier = lsp.VersionedTextDocumentIdentifier(version, uri)
        self._client.text_document_did_change(lsp.DidChangeTextDocumentParams(identifier, [change]))
        return version

    def save(self, uri: str) -> None:
        self._client.text_document_did_save(lsp.DidSaveTextDocumentParams(lsp.TextDocumentIdentifier(uri)))

    def forget(self) -> None:
        """What comes from now on counts."""
        self.published.clear()
        self.reports = 0

    def process(self) -> psutil.Process:
        assert self._client._server is not None
        return psutil.Process(self._client._server.pid)

    async def stop(self) -> None:
        await self._client.shutdown_async(None)
        self._client.exit(None)
        await self._client.stop()


SETTINGS: dict[str, Any] = {}  # of the server, beside what holds by default


@asynccontextmanager
async def editor(folder: Path) -> AsyncIterator[Editor]:
    made = Editor(folder)
    await made.start()
    yield made
    await made.stop()
