"""Findings on their way to the client: pushed, or pulled when it is told that there are new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from lsprotocol import types as lsp

from fuselens.live import Event

from ..features import diagnostics
from ..texts.session import Document

if TYPE_CHECKING:
    from ..server import FuselensServer

REPUBLISH_SECONDS = 0.005
OBSERVED_SECONDS = 0.5  # between two looks at what runs say
RECORDED_SECONDS = 0.5  # in which a run may record more


class Publisher:
    """``changed`` is set, and replaced, each time there are new findings."""

    def __init__(self, server: FuselensServer) -> None:
        self._server = server
        self.changed = asyncio.Event()
        self._republishing: dict[Document, asyncio.TimerHandle] = {}
        self._observing: dict[Document, asyncio.TimerHandle] = {}
        self._recorded: dict[Document, asyncio.TimerHandle] = {}
        self._timed: set[Document] = set()  # among those, documents of which a run said what lines and documents show

    @property
    def pulled(self) -> bool:
        """Whether the client fetches diagnostics, and fetches them again when it is told to: it is then sent none."""
        return self._server.client("text_document.diagnostic") and self._server.refreshes.diagnostics

    def publish(self, document: Document) -> None:
        """Also publishes that there is nothing to say about a checked file, so that a client knows it was looked at."""
        found = self._found(document)
        if found or document.published or document.checked:
            self._publish(document, found)

    def publish_borrowers(self) -> None:
        """Shows in files without functions of their own what is known by now of how others ran them."""
        for document in self._server.session.documents:
            if document.checked is None and not document.parsed.functions:
                found = self._found(document)
                if (found or document.published) and diagnostics.result_id(found) != document.given:
                    self._publish(document, found)

    def republish_soon(self, document: Document) -> None:
        """After edits, shows the findings at their new places, without those whose text was touched, and what is predicted
        of the new text: once for changes that come together, and not while a check is about to tell better."""
        self.cancel_republish(document)

        def republish() -> None:
            del self._republishing[document]
            if document.checking is None and self._server.session.is_open(document):
                self.publish(document)

        self._republishing[document] = asyncio.get_running_loop().call_later(REPUBLISH_SECONDS, republish)

    def cancel_republish(self, document: Document) -> None:
        handle = self._republishing.pop(document, None)
        if handle is not None:
            handle.cancel()

    def live_changed(self, path: str, event: Event) -> None:
        """A run said something about a file."""
        seen = self._server.live.seen(path)
        for document in self._server.session.of_path(path) if seen else ():
            if event.kind in ("kernels", "finding"):
                self._timed.add(document)
            self.observe(document)
        if seen is None or not event.recorded:
            return
        for document in self._server.session.documents:
            what = seen.run, path, event.function
            if what not in document.heard and document.may_take_inputs(path, seen.program):
                document.heard.add(what)
                self._check_soon(document)

    def _check_soon(self, document: Document) -> None:
        """Once for all that a run records at a time, and after a check that is under way."""

        def check() -> None:
            del self._recorded[document]
            if document.checking is not None:
                self._check_soon(document)
            elif self._server.session.is_open(document):
                self._server.checks.opened(document)

        if document not in self._recorded:
            self._recorded[document] = asyncio.get_running_loop().call_later(RECORDED_SECONDS, check)

    def observe(self, document: Document) -> None:
        """Shows what the last run said about a document, soon: runs say a lot."""
        seen = self._server.live.seen(document.path)
        if seen is None:
            return
        document.observe(seen)

        def show() -> None:
            del self._observing[document]
            if self._server.session.is_open(document):
                self.publish(document)
                self._server.refreshes.ask_for_annotations()
                self._server.pictures_changed([document.uri])
                if document in self._timed:
                    self._server.documents_changed(self._server.document_uris(document))
            self._timed.discard(document)

        if document not in self._observing:
            self._observing[document] = asyncio.get_running_loop().call_later(OBSERVED_SECONDS, show)

    def unpublish(self, document: Document) -> None:
        """Takes back what a closed document had. Clients that pull forget it by themselves."""
        if document.published:
            document.published = False
            self._wake_waiting()
            if not self.pulled:
                self._push(document, [])

    def forget(self, gone: Iterable[str]) -> None:
        """Takes back what was said about cells that a notebook has no more."""
        for uri in () if self.pulled else gone:
            self._server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))

    def _found(self, document: Document) -> list[lsp.Diagnostic]:
        return diagnostics.published(self._server, document)

    def _publish(self, document: Document, found: list[lsp.Diagnostic]) -> None:
        """Pushes, or has the client pull if that would give it anything new."""
        document.published = True
        self._wake_waiting()
        if not self.pulled:
            self._push(document, found)
        elif diagnostics.result_id(found) != document.given:
            self._server.refreshes.ask_for_diagnostics()

    def _push(self, document: Document, found: list[lsp.Diagnostic]) -> None:
        """``found`` is as the client takes it."""
        document.given = diagnostics.result_id(found)
        for params in document.parcels(self._server.session, found):
            self._server.text_document_publish_diagnostics(self._server.client.fit_whole(params))

    def _wake_waiting(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
