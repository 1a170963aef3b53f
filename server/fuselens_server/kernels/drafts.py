"""Drafts of kernels that are open in the editor: each save has one verified, and what came of it is shown in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types as lsp
from pygls import uris

from fuselens.pins import drafts, place, project, sentences, texts, trying
from fuselens.pins.place import Unreadable
from fuselens.pins.records import Draft, Found, Verdict
from fuselens.record import wire

from ..texts.convert import SourceText
from ..work.keyed_tasks import KeyedTasks
from ..work.worker_pool import StartError, WorkerDiedError

if TYPE_CHECKING:
    from ..server import FuselensServer


@dataclass(slots=True)
class Open:
    """A draft, or a pinned kernel, as it is shown. ``verdict`` is of the text with the hash that it names."""

    uri: str
    path: Path
    text: str
    verdict: Verdict | None = None
    doing: str = ""  # what verifying it is at; "" where nobody does
    why: str = ""  # what is wrong with what is known of it


class Drafts:
    def __init__(self, server: FuselensServer) -> None:
        self._server = server
        self._open: dict[str, Open] = {}
        self._tasks = KeyedTasks[str](lambda uri: f"verifying {uri}", lambda: None)

    def get(self, uri: str) -> Open | None:
        return self._open.get(uri)

    def opened(self, uri: str, text: str) -> bool:
        """Whether it is a kernel of a project, which is nothing to compile on its own."""
        path = uris.to_fs_path(uri) if uri.startswith("file:") else None
        if not path or not place.is_kept(path):
            return False
        found = self._open[uri] = Open(uri, Path(path), text)
        if place.is_draft(path):
            self._read(found)
            self._show(found)
        return True

    def changed(self, uri: str, text: str) -> None:
        found = self._open.get(uri)
        if found is not None:
            found.text = text
            self._server.refreshes.ask_for_annotations()

    def saved(self, uri: str) -> bool:
        found = self._open.get(uri)
        if found is not None and place.is_draft(str(found.path)):
            with contextlib.suppress(Unreadable):  # verifying it says why
                found.text = place.read(found.path)
            self.verify(found)
        return found is not None

    def closed(self, uri: str) -> None:
        if self._open.pop(uri, None) is not None:
            self._tasks.cancel(uri)
            if not self._server.publisher.pulled:
                self._push(uri, [])

    def draft(self, found: Open) -> Draft | None:
        try:
            return drafts.read(found.path)
        except Unreadable as error:
            found.why = str(error)
            return None

    def is_verified(self, found: Open, draft: Draft) -> bool:
        """Whether the verdict is of what is shown."""
        return found.verdict is not None and found.verdict.text == texts.hash_of(draft.unit.language, found.text)

    def verify(self, found: Open) -> None:
        self._tasks.start(found.uri, self._verify(found))

    async def verified(self, found: Open) -> None:
        """Returns when nobody verifies it any more."""
        await self._tasks.wait(found.uri)

    def told(self, found: Open) -> None:
        """Something else is known of it."""
        self._read(found)
        self._show(found)

    async def _verify(self, found: Open) -> None:
        found.doing = "verifying"
        self._server.refreshes.ask_for_annotations()
        title = f"Fuselens: verify {found.path.name}"
        try:
            async with self._server.show_progress(title, lambda: self._tasks.cancel(found.uri)) as progress:

                def heard(message: str) -> None:
                    found.doing = message.partition(": ")[2] or message
                    progress.report(message)
                    self._server.refreshes.ask_for_annotations()

                found.verdict = await self._judged(found, heard)
                found.why = ""
        except (Unreadable, OSError, StartError, WorkerDiedError) as error:
            found.verdict, found.why = None, str(error)
        finally:
            found.doing = ""
            self._show(found)

    async def _judged(self, found: Open, heard: Callable[[str], None]) -> Verdict:
        """Asks workers what verifying wants to know, until it knows."""
        said = [""]

        def hear(event: wire.Event) -> None:
            said[0] = event.message
            heard(event.message)

        configuration = self._server.configuration
        settings, _ = await configuration.settled(str(found.path))
        asking = trying.trying(found.path, place.read(found.path), settings.limits)
        try:
            question = next(asking)
            while True:
                settings, environment = await configuration.settled(str(question.path))
                options = {**settings.options, "execution": settings.execution, **question.options}
                if settings.execution == "never":
                    raise Unreadable("nothing is executed: the setting `execution` is `never`")
                request = wire.Request(
                    0, "kernel", str(question.path), None, (question.function,), options, settings.limits
                )
                question = asking.send((await self._server.pool.submit(environment, request, hear), said[0]))
        except StopIteration as end:
            return end.value

    def _read(self, found: Open) -> None:
        draft = self.draft(found)
        found.verdict = draft.verdict if draft is not None else None

    def _show(self, found: Open) -> None:
        if found.uri in self._open:
            if self._server.publisher.pulled:
                self._server.refreshes.ask_for_diagnostics()
            else:
                self._push(found.uri, self.findings(found))
            self._server.refreshes.ask_for_annotations()

    def findings(self, found: Open) -> list[lsp.Diagnostic]:
        text = SourceText(found.text, self._server.session.encoding)

        def diagnostic(found: Found, severity: lsp.DiagnosticSeverity) -> lsp.Diagnostic:
            start = text.line_start(found.line)
            place = text.range(start + found.column, start + len(text.line(found.line)))
            return lsp.Diagnostic(place, found.message, severity, found.code or None, source="fuselens")

        if found.why:
            return [diagnostic(Found(1, found.why, code="FL624"), lsp.DiagnosticSeverity.Warning)]
        if found.verdict is None:
            return []
        if found.verdict.found:
            return [diagnostic(each, lsp.DiagnosticSeverity.Error) for each in found.verdict.found]
        slower = found.verdict.verified is not None and found.verdict.verified.slower
        severity = lsp.DiagnosticSeverity.Warning if slower else lsp.DiagnosticSeverity.Information
        return [diagnostic(Found(1, sentences.verdict(found.verdict)), severity)]

    def _push(self, uri: str, found: list[lsp.Diagnostic]) -> None:
        params = lsp.PublishDiagnosticsParams(uri, found)
        self._server.text_document_publish_diagnostics(self._server.client.fit_whole(params))

    def pin_of(self, found: Open) -> Path:
        """Where the pin of a draft is, if there is one."""
        return place.pins_of(place.root_of_draft(found.path)) / found.path.parent.name / found.path.name

    def is_pinned(self, found: Open, draft: Draft) -> bool:
        """Whether what is shown is what is pinned."""
        try:
            kept = place.read(self.pin_of(found))
        except Unreadable:
            return False
        return texts.hash_of(draft.unit.language, kept) == texts.hash_of(draft.unit.language, found.text)

    def pin(self, found: Open) -> Path:
        """Raises what :func:`fuselens.pins.project.pin` does."""
        return project.pin(found.path, place.read(found.path))
