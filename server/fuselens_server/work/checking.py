"""From a saved file to published results: asks the worker, keeps the outcome, tells the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import PurePath
from typing import Protocol

from fuselens.record import diagnostics, wire
from fuselens.record.report import Diagnostic, FileReport, RunResult

from ..client.configuration import NotAllowedError, Settled
from ..client.progress import CheckProgress
from ..texts.session import Document, Session, disk_text
from .keyed_tasks import KeyedTasks
from .worker_pool import StartError, WorkerDiedError, WorkerPool

EARLY_SECONDS = 0.3  # what a check has found is not shown before its end if that comes so soon


class Client(Protocol):
    """What a check needs of the editor's side."""

    def publish(self, document: Document) -> None:
        """Shows the document's findings as they are now."""
        ...

    def report_changed(self, document: Document, before: list[str]) -> None:
        """A new outcome is kept: lenses, hints and the virtual documents (``before``: the old ones) are new."""
        ...

    def checks_changed(self, running: int) -> None: ...

    def show_progress(self, title: str, on_cancel: Callable[[], object]) -> CheckProgress: ...

    def document_uris(self, document: Document) -> list[str]: ...


class Checks:
    """At most one check per document; a newer one replaces the older, whose child in the worker is killed."""

    def __init__(self, client: Client, configuration: Settled, session: Session, pool: WorkerPool) -> None:
        self._client = client
        self._configuration = configuration
        self._session = session
        self._pool = pool
        self._tasks = KeyedTasks[Document](
            lambda document: f"checking {document.path}", lambda: client.checks_changed(len(self._tasks))
        )

    def opened(self, document: Document) -> bool:
        """Checks a document just opened, unless it is shown with unsaved changes: only saved code runs."""
        on_disk = disk_text(document.path)
        saved = on_disk is None or document.matches(on_disk)
        if saved:
            self.saved(document)
        return saved

    def saved(self, document: Document) -> None:
        self.cancel(document)
        self._tasks.start(document, self._check(document))

    async def finished(self, document: Document) -> None:
        """Returns when the check in flight has ended, if there is one."""
        await self._tasks.wait(document)

    def changed_on_disk(self, path: str) -> None:
        """Checks the open files that import the one that changed."""
        for document in self._session.importers(path):
            if document not in self._tasks:
                self.opened(document)

    def cancel(self, document: Document) -> None:
        if self._tasks.cancel(document):
            document.checking = None

    @property
    def documents(self) -> list[Document]:
        """Those that are being checked, or wait for it."""
        return list(self._tasks)

    def cancel_all(self) -> None:
        for document in self._tasks:
            self.cancel(document)

    def preview(self, document: Document, wanted: bool) -> None:
        """Looks at a file that compiles nothing as if it compiled its modules, or no more."""
        document.preview = wanted
        document.parse()
        self.opened(document)

    async def run(
        self, path: str, document: Document | None, qualname: str, progress: Callable[[str], None]
    ) -> RunResult:
        """Runs a function compiled and eagerly. Environment trouble is the result's ``error``."""
        try:
            settings, environment = await self._configuration.settled(path)
            if settings.execution == "never":
                finding = diagnostics.make("FL923", what=qualname)
                return RunResult(qualname, False, finding.message, error=finding)
            source = document.source if document is not None else None
            options = settings.options if document is None else {**settings.options, **document.options}
            request = wire.Request(0, "run", path, source, (qualname,), options=options, limits=settings.limits)
            event = await self._pool.submit(environment, request, lambda event: progress(event.message))
        except (StartError, WorkerDiedError) as error:
            finding = _finding(error)
            return RunResult(qualname, False, finding.message, error=finding)
        if event.run is None:
            return RunResult(qualname, False, "cancelled")
        return event.run

    async def _check(self, document: Document) -> None:
        before = self._client.document_uris(document)
        failure = document.parse()
        if failure is not None:
            document.fail(failure)
        elif not document.parsed.functions:
            document.clear()
        else:
            document.begin()
            self._client.checks_changed(len(self._tasks))
            await self._ask_worker(document)
        if self._session.is_open(document):
            self._client.publish(document)
            self._client.report_changed(document, before)

    async def _ask_worker(self, document: Document) -> None:
        try:
            settings, environment = await self._configuration.settled(document.path)
        except NotAllowedError as error:
            document.fail(error.diagnostic)
            document.checked = None  # from a time when it was allowed
            return
        if settings.execution == "never":
            document.not_executed()
            return
        source = document.checking.origin.text if document.checking else document.text.text
        request = wire.Request(
            0, "check", document.path, source.removeprefix("\ufeff"), limits=settings.limits,
            options={**settings.options, **document.options, "build": not settings.warm_files},
            known={name: report.fingerprint for name, report in document.offered.items()},
        )  # fmt: skip
        task = self._tasks.of(document)
        timers: list[asyncio.TimerHandle] = []

        def later(show: Callable[[], None]) -> None:
            """A check that makes place for another one still hears of its text until nothing of it runs."""

            def due() -> None:
                if self._tasks.of(document) is task:
                    show()

            timers.append(asyncio.get_running_loop().call_later(EARLY_SECONDS, due))

        def heard(event: wire.Event) -> None:
            if event.kind == "early" and (found := event.file) is not None:
                later(lambda: self._found_early(document, found))
            elif event.kind == "starting":
                p.report_now(event.message)
            else:
                p.report(event.message)

        later(lambda: self._show_predictions(document))
        async with self._client.show_progress(
            f"Fuselens: {PurePath(document.path).name}", lambda: self.cancel(document)
        ) as p:
            try:
                event = await self._pool.submit(environment, request, heard, lambda: self._session.urgency(document))
            except (StartError, WorkerDiedError) as error:
                document.fail(_finding(error))
                return
            finally:
                for timer in timers:
                    timer.cancel()
        document.finish(event.file or FileReport(document.path))

    def _show_predictions(self, document: Document) -> None:
        """While a worker is started, say: of a file about which nothing else is known."""
        if document.checking is not None and document.checked is None and document.failed is None:
            self._client.publish(document)

    def _found_early(self, document: Document, file: FileReport) -> None:
        if document.checking is not None and document.checked is not None:
            document.found_early(file)
            self._client.publish(document)


def _finding(error: StartError | WorkerDiedError) -> Diagnostic:
    if isinstance(error, StartError):
        return error.diagnostic
    return diagnostics.make("FL906", why=str(error), where="")
