"""The server's state, and what the checks and the features need of the editor's side."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import PurePath
from typing import Any, TypeVar
from urllib.parse import unquote

from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcParseError
from pygls.lsp.server import LanguageServer

from fuselens.live import Event

from . import messages, notebooks, settings
from .checking import Checks
from .convert import Encoding, SourceText
from .document_uri import CodeDocument, ReportDocument, parse
from .features import diagnostics, documents
from .fix_trials import FixTrials
from .live import LiveRuns
from .progress import CheckProgress
from .protocol import FuselensProtocol, converter
from .refreshes import Refreshes
from .session import Document, Session
from .settings import Settings
from .view import View
from .virtual_files import VirtualFiles
from .warming import Warming
from .worker_pool import Environment, WorkerPool, WorkerStatus

T = TypeVar("T")
logger = logging.getLogger(__name__)

REPUBLISH_SECONDS = 0.02
OBSERVED_SECONDS = 0.5  # between two looks at what runs say
CONFIGURATION_SECONDS = 5.0  # to wait for a client's configuration before going on without


class FuselensServer(LanguageServer):
    """The server's state, and what checks need of the editor's side (:class:`checking.Client`)."""

    protocol: FuselensProtocol

    def __init__(self) -> None:
        super().__init__(
            "fuselens",
            _version(),
            text_document_sync_kind=lsp.TextDocumentSyncKind.Incremental,
            notebook_document_sync=notebooks.SYNC,
            protocol_cls=FuselensProtocol,
            converter_factory=converter,
        )
        self.settings = Settings()
        self.folder_settings: dict[str, Settings] = {}  # of each workspace folder, by its path
        self.configured = asyncio.Event()
        self.session = Session()
        self.pool = WorkerPool(self.worker_changed)
        self.checks = Checks(self, self.session, self.pool)
        self.warming = Warming(self, self.pool, self.send_status)
        self.live = LiveRuns(self.live_changed)
        self.trials = FixTrials(self, self.pool, self.send_status)
        self.initial_options: Any = None
        self.worker_status: WorkerStatus | None = None
        self.refreshes = Refreshes(self)
        self.findings_changed = asyncio.Event()  # replaced each time
        self.files = VirtualFiles(self._text)
        self._served: set[str] = set()  # virtual documents that the client asked for through LSP
        self._background: set[asyncio.Future[Any]] = set()
        self._republishing: dict[Document, asyncio.TimerHandle] = {}
        self._observing: dict[Document, asyncio.TimerHandle] = {}
        self._running_checks = 0

    def feature(self, feature_name: str, options: Any = None) -> Callable[[Any], Any]:
        """Registers a handler; those of requests about documents serve cells of notebooks, too."""
        register = super().feature(feature_name, options)
        if not notebooks.TRANSLATED.match(feature_name):
            return register
        return lambda handler: register(notebooks.in_cells(self, handler))

    def report_server_error(self, error: Exception, source: Any) -> None:
        """pygls' loop tells in this way, too, that what came is not JSON: that is answered as JSON-RPC has it."""
        if source is JsonRpcException and isinstance(error, ValueError | RecursionError):
            self.protocol.refuse(None, JsonRpcParseError(f"not JSON: {error}"))
        else:
            super().report_server_error(error, source)

    def view(self, uri: str) -> View | None:
        """What features are functions of; None when ``uri`` is no open Python file."""
        document = self.session.get(uri)
        return self.session.view(document) if document else None

    def shown(self, uri: str) -> tuple[View, ReportDocument] | None:
        """What features of a virtual document are functions of; None when ``uri`` is none of an open file."""
        address = self._address(uri)
        view = self.view(address.file) if isinstance(address, ReportDocument) else None
        return (view, address) if view and isinstance(address, ReportDocument) else None

    def virtual_text(self, uri: str) -> tuple[SourceText, str] | None:
        """A virtual document's text and extension; None when there is no such document."""
        address = self._address(uri)
        content = self._content(address)
        return (SourceText(content.text, self.session.encoding), address.suffix) if address and content else None

    def take_encoding(self) -> None:
        """Counts columns as initialize settled it with the client."""
        encoding = self.workspace.position_encoding
        known: dict[str, Encoding] = {"utf-8": "utf-8", "utf-16": "utf-16", "utf-32": "utf-32"}
        self.session.encoding = known.get(str(getattr(encoding, "value", encoding)), "utf-16")

    # --- the client's side of checks ---------------------------------------------------------------------------------

    async def settled(self, path: str) -> tuple[Settings, Environment]:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.configured.wait(), CONFIGURATION_SECONDS)
        folder = self.folder(path)
        chosen = self.folder_settings.get(folder or "", self.settings)
        directory = folder if folder and os.path.isdir(folder) else None
        return chosen, Environment(chosen.python(folder), directory)

    @property
    def folders(self) -> list[str]:
        """The directories that the client has open, the innermost of nested ones first."""
        uris_ = list(self.workspace.folders) or ([self.workspace.root_uri] if self.workspace.root_uri else [])
        return sorted(filter(None, map(uris.to_fs_path, uris_)), key=len, reverse=True)

    def folder(self, path: str) -> str | None:
        """The workspace folder of a file; for one outside of them, the first."""
        folders = self.folders
        holding = (f for f in folders if PurePath(path).is_relative_to(f))
        return next(holding, self.workspace.root_path or next(iter(reversed(folders)), None))

    def focus(self, uri: str | None) -> None:
        """The person looks at another file, or at none of ours."""
        document = self.session.get(uri) if uri else None
        self.session.focus = unquote(document.uri if document else uri) if uri else None
        self.pool.reconsider()

    def publish(self, document: Document) -> None:
        """Also publishes that there is nothing to say about a checked file, so that a client knows it was looked at."""
        found = diagnostics.diagnostics(self.session.findings_view(document))
        if found or document.published or document.checked:
            self._publish(document, found)

    def publish_borrowers(self) -> None:
        """Shows in files without functions of their own what is known by now of how others ran them."""
        for document in self.session.documents:
            if document.checked is None and not document.parsed.functions:
                found = diagnostics.diagnostics(self.session.findings_view(document))
                if (found or document.published) and diagnostics.result_id(self.encode(found)) != document.given:
                    self._publish(document, found)

    def republish_soon(self, document: Document) -> None:
        """After edits, shows the findings at their new places, without those whose text was touched, and what is predicted
        of the new text: once for changes that come together, and not while a check is about to tell better."""
        self.cancel_republish(document)

        def republish() -> None:
            del self._republishing[document]
            if document.checking is None and self.session.is_open(document):
                self.publish(document)

        loop = asyncio.get_running_loop()
        self._republishing[document] = loop.call_later(REPUBLISH_SECONDS, republish)

    def cancel_republish(self, document: Document) -> None:
        handle = self._republishing.pop(document, None)
        if handle is not None:
            handle.cancel()

    def live_changed(self, path: str, event: Event) -> None:
        """A run said something about a file."""
        seen = self.live.seen(path)
        for document in self.session.of_path(path) if seen else ():
            self.observe(document)
            if event.recorded and document.lacks_inputs(event.function) and not document.checking:
                self.checks.opened(document)

    def observe(self, document: Document) -> None:
        """Shows what the last run said about a document, soon: runs say a lot."""
        seen = self.live.seen(document.path)
        if seen is None:
            return
        document.observe(seen)

        def show() -> None:
            del self._observing[document]
            if self.session.is_open(document):
                self.publish(document)
                self.refreshes.ask_for_annotations()

        if document not in self._observing:
            self._observing[document] = asyncio.get_running_loop().call_later(OBSERVED_SECONDS, show)

    def unpublish(self, document: Document) -> None:
        """Takes back what a closed document had. Clients that pull forget it by themselves."""
        if document.published:
            document.published = False
            self._wake_waiting()
            if not self.pulls_diagnostics:
                self._push(document, [])

    def forget(self, gone: Iterable[str]) -> None:
        """Takes back what was said about cells that a notebook has no more."""
        for uri in () if self.pulls_diagnostics else gone:
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    @property
    def pulls_diagnostics(self) -> bool:
        """Whether the client fetches diagnostics, and fetches them again when it is told to: it is then sent none."""
        capabilities = self.client_capabilities.text_document
        return bool(capabilities and capabilities.diagnostic) and self.refreshes.diagnostics

    def report_changed(self, document: Document, before: list[str]) -> None:
        changed = list(dict.fromkeys([*self.document_uris(document), *before]))
        if changed:
            self.protocol.notify(messages.DOCUMENTS_CHANGED, messages.DocumentsChanged(uris=changed))
        self.publish_borrowers()
        self.files.refresh(changed)
        self.warming.start(document)
        self.trials.start(document)
        self.refreshes.ask_for_annotations()
        for uri in self._served.intersection(changed):
            self.refreshes.ask_for_content(uri)

    def checks_changed(self, running: int) -> None:
        self._running_checks = running
        self.send_status()

    def show_progress(self, title: str, on_cancel: Callable[[], object]) -> CheckProgress:
        return CheckProgress(self, title, on_cancel)

    def document_uris(self, document: Document) -> list[str]:
        return [item.uri for item in documents.listings(self.session.view(document))]

    # --- status ------------------------------------------------------------------------------------------------------

    def worker_changed(self, status: WorkerStatus) -> None:
        self.worker_status = status
        self.send_status()

    def send_status(self) -> None:
        """One line of state for the editor's status bar; nothing before there was a worker to speak of."""
        status = self.worker_status
        if status is None:
            return
        state: messages.State = status.state
        message = status.message
        if state == "ready" and self._running_checks:
            state, message = "compiling", f"compiling {self._running_checks} file{'s' * (self._running_checks > 1)}"
        elif state == "ready" and self.warming.documents:
            message = f"building kernels of {', '.join(PurePath(d.path).name for d in self.warming.documents)}"
        elif state == "ready" and self.trials.documents:
            message = f"trying out fixes of {', '.join(PurePath(d.path).name for d in self.trials.documents)}"
        torch = status.versions.get("torch", "")
        body = messages.Status(state=state, message=message, torch=torch, interpreter=status.interpreter)
        self.protocol.notify(messages.STATUS, body)

    # --- settings ----------------------------------------------------------------------------------------------------

    async def load_settings(self) -> None:
        """The client's configuration section where it has one, under the options it was started with: those name the
        interpreter that an editor's own environment picker chose. Workspace folders may each have their own."""
        folders = {path: uris.from_fs_path(path) for path in self.folders}
        sections: list[Any] = [None] * (1 + len(folders))
        workspace = self.client_capabilities.workspace
        if workspace is not None and workspace.configuration:
            items = [lsp.ConfigurationItem(scope_uri=scope, section="fuselens") for scope in (None, *folders.values())]
            with contextlib.suppress(JsonRpcException, TimeoutError):
                asked = self.workspace_configuration_async(lsp.ConfigurationParams(items))
                found = list(await asyncio.wait_for(asyncio.shield(asked), CONFIGURATION_SECONDS))
                sections[: len(found)] = found
        problems: list[str] = []

        def read(section: Any) -> Settings:
            loaded, wrong = settings.read(section)
            loaded, more = settings.read(self.initial_options, loaded)
            problems.extend((*wrong, *more))
            return loaded

        self.settings, *others = map(read, sections)
        usual = settings.read(sections[0])[0].interpreter
        for k, section in enumerate(sections[1:]):  # one that a folder names for itself comes before the picker's
            own = settings.read(section)[0].interpreter
            if own and own != usual:
                others[k] = dataclasses.replace(others[k], interpreter=own)
        self.folder_settings = dict(zip(folders, others, strict=False))
        for problem in dict.fromkeys(problems):
            self.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Warning, problem))
        self.live.announce([folder for folder in folders if self.folder_settings[folder].live])
        self.pool.concurrent = self.settings.concurrent_checks
        self.configured.set()

    async def settings_changed(self) -> None:
        before = self.settings, self.folder_settings
        await self.load_settings()
        if (self.settings, self.folder_settings) != before:
            await self.restart()

    async def restart(self) -> None:
        """New workers, and every open document checked again with them."""
        self.checks.cancel_all()
        self.warming.cancel_all()
        self.trials.cancel_all()
        await self.pool.restart()
        for document in self.session.documents:
            self.checks.opened(document)

    # --- life --------------------------------------------------------------------------------------------------------

    def end_now(self) -> None:
        """Leaves no process and no socket behind. Safe at any time, also without an event loop."""
        self.pool.kill_now()
        self.live.stop()

    def end_with_loop(self) -> None:
        """Ties the workers' lives to the event loop's: whatever ends the loop (exit, stdin's end) ends them. SIGTERM
        leaves at once, because the thread that reads stdin cannot be interrupted."""

        async def watch() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.end_now()

        def terminate() -> None:
            self.end_now()
            self.files.close()
            os._exit(128 + signal.SIGTERM)

        self._in_background(watch())
        with contextlib.suppress(NotImplementedError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)

    def shutdown(self) -> None:
        self.end_now()
        super().shutdown()

    def content(self, uri: str) -> documents.Content:
        """A virtual document's text. Raises JsonRpcInvalidParams for one that does not exist (any more)."""
        found = self._content(parse(uri))
        if found is None:
            raise JsonRpcInvalidParams(f"no such document: {uri}")
        return found

    @property
    def shows_files(self) -> bool:
        """Whether the client opens nothing but files, as far as it tells."""
        if self.settings.virtual_documents == "auto":
            workspace = self.client_capabilities.workspace
            return not (self.settings.command_links or (workspace and workspace.text_document_content))
        return self.settings.virtual_documents == "files"

    def encode(self, value: T) -> T:
        """An LSP value as the client can open what it leads to."""
        return self.files.encode(value) if self.shows_files else value

    def link(self, document: ReportDocument) -> str:
        """The document's URI as the client can open it."""
        return (self.files.uri(document) if self.shows_files else None) or str(document)

    def _address(self, uri: str) -> ReportDocument | CodeDocument | None:
        return parse(uri) or self.files.address(uri)

    def _text(self, address: ReportDocument | CodeDocument) -> str | None:
        content = self._content(address)
        return content.text if content else None

    def _content(self, address: ReportDocument | CodeDocument | None) -> documents.Content | None:
        if isinstance(address, CodeDocument):
            return documents.code_content(address)
        view = self.view(address.file) if address else None
        return documents.report_content(view, address) if view and address else None

    def served(self, uri: str) -> None:
        self._served.add(uri)

    def document(self, uri: str) -> Document:
        """The open document, for commands. Raises JsonRpcInvalidParams."""
        document = self.session.get(uri)
        if document is None:
            raise JsonRpcInvalidParams(f"not an open Python file: {uri}")
        return document

    def _publish(self, document: Document, found: list[lsp.Diagnostic]) -> None:
        """Pushes, or has the client pull if that would give it anything new."""
        document.published = True
        self._wake_waiting()
        if not self.pulls_diagnostics:
            self._push(document, found)
        elif diagnostics.result_id(self.encode(found)) != document.given:
            self.refreshes.ask_for_diagnostics()

    def _push(self, document: Document, found: list[lsp.Diagnostic]) -> None:
        found = self.encode(found)
        document.given = diagnostics.result_id(found)
        for params in document.parcels(self.session, found):
            self.text_document_publish_diagnostics(params)

    def _wake_waiting(self) -> None:
        self.findings_changed.set()
        self.findings_changed = asyncio.Event()

    def _in_background(self, awaitable: Any) -> None:
        """Runs without anyone waiting; a client's refusal (of a refresh, say) is not our error."""
        task = asyncio.ensure_future(awaitable)
        self._background.add(task)

        def done(finished: asyncio.Future[Any]) -> None:
            self._background.discard(finished)
            if not finished.cancelled() and (error := finished.exception()) is not None:
                logger.info("background request failed: %s", error)

        task.add_done_callback(done)


def _version() -> str:
    try:
        return metadata.version("fuselens")
    except metadata.PackageNotFoundError:
        return "0"
