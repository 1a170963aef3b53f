"""After a check, and after all else, changes of each function are measured: on copies, and within a budget of processor time."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fuselens.record import diagnostics, wire
from fuselens.record.report import FileReport, Report, WhatIf
from fuselens.source.changes.asking import Question, Search, search

from ..client.configuration import NotAllowedError, Settled
from ..client.settings import Settings
from ..texts.session import Checked, Document
from ..work.keyed_tasks import Background
from ..work.turns import Urgency
from ..work.worker_pool import Environment, StartError, WorkerDiedError, WorkerPool

logger = logging.getLogger(__name__)
_LEAST_SECONDS = 0.5  # of processor time: with less nothing is begun again
Progress = Callable[[str], None]


class Changes(Background):
    """At most one search per document, function by function. It gives way to everything else; what a process has used by then counts."""

    doing = "trying changes of"

    def __init__(
        self, configuration: Settled, pool: WorkerPool, on_change: Callable[[], None], taken: Callable[[Document], None]
    ) -> None:
        super().__init__(configuration, pool, on_change, taken)
        self._turn = asyncio.Lock()  # two that measure at once would measure each other

    def start(self, document: Document) -> None:
        """Tries changes of the functions of which nothing is known yet."""
        self.cancel(document)
        checked, settings = document.checked, self._configuration.of(document.path)
        wanted = [r for r in checked.report.functions if _may_be_tried(r)] if checked else []
        if settings.what_if_seconds and wanted and checked is not None and not document.preview:
            self._tasks.start(document, self._search(document, checked, wanted))

    async def now(self, document: Document, report: Report, progress: Progress) -> None:
        """Searches for changes of a function, for somebody who waits. Raises StartError, WorkerDiedError."""
        checked = document.checked
        seconds = self._configuration.of(document.path).what_if_seconds or Settings().what_if_seconds
        found = await self._found(document, report.function, seconds, Urgency.FOCUSED, progress)
        report.what_if = found
        if document.checked is checked:
            self._taken(document)

    async def _search(self, document: Document, checked: Checked, wanted: list[Report]) -> None:
        self._on_change()
        seconds = self._configuration.of(document.path).what_if_seconds
        for report in wanted:
            try:
                async with self._turn:
                    found = await self._found(document, report.function, seconds, Urgency.LAST, lambda _: None)
            except (NotAllowedError, StartError, WorkerDiedError) as error:
                logger.info("no change of %s was tried: %s", report.function, error)
                return
            if document.checked is checked:
                report.what_if = found
                self._taken(document)

    async def _found(
        self, document: Document, function: str, seconds: float, urgency: Urgency, progress: Progress
    ) -> WhatIf:
        settings, environment = await self._configuration.settled(document.path)
        checked = document.checked
        source = checked.text.origin.text.removeprefix("\ufeff") if checked else document.source
        idle = {"idle": True} if urgency is Urgency.LAST else {}
        request = wire.Request(
            0, "changes", document.path, source, (function,), {**settings.options, **document.options, **idle}, settings.limits
        )  # fmt: skip
        asker = Asker(self._pool, environment, request, urgency, progress)
        return await answered(search(function, seconds), asker.ask)


def _may_be_tried(report: Report) -> bool:
    return bool(report.graphs) and report.compiled and (report.what_if is None or bool(report.what_if.stopped))


async def answered(asking: Search, ask: Callable[[Question], Awaitable[wire.Event]]) -> WhatIf:
    """What a search finds whose questions are answered by ``ask``."""
    question = next(asking)
    while True:
        event = await ask(question)
        try:
            question = asking.send(event)
        except StopIteration as end:
            return end.value


class _SpentError(Exception):
    """What was displaced has used all the processor time of its question."""


@dataclasses.dataclass(slots=True)
class Asker:
    """Asks a worker. ``request`` is what questions have in common."""

    pool: WorkerPool
    environment: Environment
    request: wire.Request
    urgency: Urgency
    progress: Progress

    async def ask(self, question: Question) -> wire.Event:
        displaced = 0.0

        def spent(seconds: float) -> None:
            nonlocal displaced
            displaced += seconds

        def again() -> wire.Request:
            """The request, with the processor time that is left when it begins."""
            left = question.processor_seconds - displaced
            if left < _LEAST_SECONDS:
                raise _SpentError
            seconds = self.request.limits.seconds + 2 * question.processor_seconds
            limits = dataclasses.replace(self.request.limits, seconds=seconds, processor_seconds=left)
            options: dict[str, Any] = {**self.request.options, **question.options}
            return dataclasses.replace(self.request, method=question.method, options=options, limits=limits)

        try:
            event = await self.pool.submit(
                self.environment, again, lambda event: self.progress(event.message), lambda: self.urgency, spent
            )  # fmt: skip
        except _SpentError:
            limit = f"{question.processor_seconds:.3g} s of processor time, with what made place for other work,"
            finding = diagnostics.make("FL905", limit=limit, where="")
            event = wire.Event(0, "result", file=FileReport(self.request.path, [], [finding]))
        return dataclasses.replace(event, processor_seconds=event.processor_seconds + displaced)
