"""The server: what its parts share, its state as the status bar shows it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from functools import cached_property
from importlib import metadata
from pathlib import PurePath
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcParseError
from pygls.lsp.server import LanguageServer

from .client import messages
from .client.abilities import Abilities
from .client.configuration import Configuration
from .client.progress import CheckProgress
from .client.protocol import FuselensProtocol, converter
from .client.publishing import Publisher
from .client.refreshes import Refreshes
from .client.settings import Settings
from .documents import stages as documents
from .documents.virtual_documents import VirtualDocuments
from .ending import Ending
from .kernels.drafts import Drafts
from .texts import executed_cells, notebooks
from .texts.convert import Encoding
from .texts.observed import Executed
from .texts.session import Document, Session
from .texts.view import View
from .what_if.searching import Changes
from .work.checking import Checks
from .work.fix_trials import FixTrials
from .work.foretelling import Foretelling
from .work.later_texts import LaterTexts
from .work.live import LiveRuns
from .work.machines import Machines
from .work.proving import Proofs
from .work.since import Comparing
from .work.warming import Warming
from .work.worker_pool import WorkerPool, WorkerStatus

T = TypeVar("T")
SHOWN = {
    "code_lens",
    "code_lens_show",
    "inlay_hints",
    "on_names",
    "compare_with",
}  # settings of what is shown: what was checked stays as it is
logger = logging.getLogger(__name__)


class FuselensServer(LanguageServer):
    """Also the editor's side of checks (:class:`checking.Client`)."""

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
        self.configuration = Configuration(self)
        self.session = Session()
        self.publisher = Publisher(self)
        self.documents = VirtualDocuments(self)
        self.refreshes = Refreshes(self)
        self.pool = WorkerPool(self.worker_changed)
        self.checks = Checks(self, self.configuration, self.session, self.pool)
        self.warming = Warming(self.configuration, self.pool, self.send_status, self.publish)
        self.trials = FixTrials(self.configuration, self.pool, self.send_status)
        self.machines = Machines(self.configuration, self.pool)
        self.proofs = Proofs(self.configuration, self.pool, self.machines, self.send_status, self._told_later)
        self.changes = Changes(self.configuration, self.pool, self.send_status, self._told_later)
        self.since = Comparing(self.configuration, self.pool, self.refreshes.marked, self.send_status)
        self.foretelling = Foretelling(self.configuration, self.pool, self.send_status, self._told_later)
        self.later_texts = LaterTexts(self.configuration, self.session, self.pool, self.documents_changed)
        self.kernels = Drafts(self)
        self.ending = Ending(self.leave)
        self.live = LiveRuns(self.publisher.live_changed, lambda text: _cell_of(self.session, text))
        self._worker_status: WorkerStatus | None = None
        self._configuring = 0
        self._background: set[asyncio.Future[Any]] = set()

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

    # --- what features ask -------------------------------------------------------------------------------------------

    @cached_property
    def client(self) -> Abilities:
        return Abilities(self.client_capabilities)

    @property
    def settings(self) -> Settings:
        return self.configuration.settings

    def view(self, uri: str) -> View | None:
        """What features are functions of; None when ``uri`` is no open Python file."""
        document = self.session.get(uri)
        return self.session.view(document) if document else None

    def document(self, uri: str) -> Document:
        """The open document, for commands. Raises JsonRpcInvalidParams."""
        document = self.session.get(uri)
        if document is None:
            raise JsonRpcInvalidParams(f"not an open Python file: {uri}")
        return document

    def encode(self, value: T) -> T:
        """An LSP value as the client takes it."""
        return self.client.fit(self.documents.encode(value))

    def take_encoding(self) -> None:
        """Counts columns as initialize settled it with the client."""
        encoding = self.workspace.position_encoding
        known: dict[str, Encoding] = {"utf-8": "utf-8", "utf-16": "utf-16", "utf-32": "utf-32"}
        self.session.encoding = known.get(str(getattr(encoding, "value", encoding)), "utf-16")

    def focus(self, uri: str | None) -> None:
        """The person looks at another file, or at none of ours."""
        document = self.session.get(uri) if uri else None
        self.session.focus = unquote(document.uri if document else uri) if uri else None
        self.pool.reconsider()

    # --- the client's side of checks ---------------------------------------------------------------------------------

    def publish(self, document: Document) -> None:
        self.publisher.publish(document)

    def report_changed(self, document: Document, before: list[str]) -> None:
        self.documents_changed(list(dict.fromkeys([*self.document_uris(document), *before])))
        self.publisher.publish_borrowers()
        self.warming.start(document)
        self.trials.start(document)
        self.proofs.start(document)
        self.since.again(document)
        self.foretelling.start(document)
        self.changes.start(document)
        self.refreshes.ask_for_annotations()

    def _told_later(self, document: Document) -> None:
        self.publish(document)
        self.documents_changed(self.document_uris(document))
        self.refreshes.ask_for_annotations()

    def documents_changed(self, changed: list[str]) -> None:
        """Virtual documents have new text, or are gone."""
        if changed and self.settings.notifications:
            self.protocol.notify(messages.DOCUMENTS_CHANGED, messages.DocumentsChanged(uris=changed))
        self.documents.changed(changed)

    def pictures_changed(self, uris: list[str]) -> None:
        """A run said something new about these files."""
        if self.settings.notifications:
            self.protocol.notify(messages.PICTURES_CHANGED, messages.PicturesChanged(uris=uris))

    def checks_changed(self, running: int) -> None:
        self.send_status()

    def show_progress(self, title: str, on_cancel: Callable[[], object]) -> CheckProgress:
        return CheckProgress(self, title, on_cancel)

    def document_uris(self, document: Document) -> list[str]:
        return [item.uri for item in documents.listings(self.session.view(document))]

    # --- status ------------------------------------------------------------------------------------------------------

    def worker_changed(self, status: WorkerStatus) -> None:
        self._worker_status = status
        self.send_status()

    def send_status(self) -> None:
        """One line of state for the editor's status bar; nothing before there was a worker to speak of."""
        status = self._worker_status
        if status is None or not self.settings.notifications:
            return
        state: messages.State = status.state
        message = status.message
        if state == "ready" and self.checks.documents:
            names = [PurePath(document.path).name for document in self.checks.documents]
            state, message = "compiling", f"compiling {names[0] if len(names) == 1 else f'{len(names)} files'}"
        elif state == "ready" and self._configuring:
            state, message = "compiling", "taking new settings"
        elif state == "ready" and (doing := self._in_the_background()):
            message = "; ".join(doing)
        torch = status.versions.get("torch", "")
        body = messages.Status(state=state, message=message, torch=torch, interpreter=status.interpreter)
        self.protocol.notify(messages.STATUS, body)

    def _in_the_background(self) -> list[str]:
        """What goes on though nobody waits for it. Several may at once: a trial goes on while a C++ compiler works."""
        works = {
            "building kernels": self.warming.documents,
            "trying out fixes": self.trials.documents,
            "proving functions": self.proofs.documents,
            "trying changes": self.changes.documents,
            "foretelling compilations": self.foretelling.documents,
            "looking at earlier revisions": self.since.documents,
        }
        return [
            f"{work} of {', '.join(PurePath(d.path).name for d in waiting)}"
            for work, waiting in works.items()
            if waiting
        ]

    # --- life --------------------------------------------------------------------------------------------------------

    async def configure(self, *, again: bool = True) -> None:
        """Takes the client's settings. Where that is done ``again``, what was checked with others is checked once more."""
        self._configuring += 1
        self.send_status()
        try:
            changed = await self.configuration.load()
            self.live.announce(self.configuration.live_folders)
            self.pool.concurrent = self.settings.concurrent_checks
            if changed & SHOWN:
                self.refreshes.ask_for_annotations()
            if again and "compare_with" in changed:
                for document in self.session.documents:
                    self.since.again(document)
            if again and changed - SHOWN:
                await self.restart()
        finally:
            self._configuring -= 1
            self.send_status()

    async def restart(self) -> None:
        """New workers, and every open document checked again with them."""
        self.cancel_all()
        await self.pool.restart()
        for document in self.session.documents:
            self.checks.opened(document)

    def cancel_all(self) -> None:
        self.checks.cancel_all()
        self.warming.cancel_all()
        self.trials.cancel_all()
        self.proofs.cancel_all()
        self.changes.cancel_all()
        self.since.cancel_all()
        self.foretelling.cancel_all()

    @property
    def exit_status(self) -> int:
        """As LSP has it."""
        return 0 if self.protocol.asked_to_shut_down else 1

    def end_now(self) -> None:
        """Leaves no process and no socket behind. Safe at any time, also without an event loop."""
        self.pool.kill_now()
        self.live.stop()

    def leave(self, status: int | None = None) -> NoReturn:
        """Ends the process at once, with all that belongs to it, from any thread."""
        for clean in (self.pool.kill_now, self.live.stop, self.documents.files.close):
            with contextlib.suppress(Exception):  # the loop may be at work on the same things
                clean()
        os._exit(self.exit_status if status is None else status)

    def end_with_loop(self) -> None:
        """Ties the workers' lives to the event loop's: whatever ends the loop (exit, stdin's end) ends them. SIGTERM
        leaves at once, because the thread that reads stdin cannot be interrupted."""

        async def watch() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                self.ending.begin()
                self.end_now()

        self._in_background(watch())
        with contextlib.suppress(NotImplementedError, ValueError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.leave, 128 + signal.SIGTERM)

    def shutdown(self) -> None:
        self.end_now()
        super().shutdown()

    def _in_background(self, awaitable: Any) -> None:
        """Runs without anyone waiting; a client's refusal (of a refresh, say) is not our error."""
        task = asyncio.ensure_future(awaitable)
        self._background.add(task)

        def done(finished: asyncio.Future[Any]) -> None:
            self._background.discard(finished)
            if not finished.cancelled() and (error := finished.exception()) is not None:
                logger.info("background request failed: %s", error)

        task.add_done_callback(done)


def _cell_of(session: Session, text: str) -> Executed | None:
    """The cell of an open notebook that has a text which ran."""
    return executed_cells.find((d for d in session.documents if isinstance(d, notebooks.Notebook)), text)


def _version() -> str:
    try:
        return metadata.version("fuselens")
    except metadata.PackageNotFoundError:
        return "0"
