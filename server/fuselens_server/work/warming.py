"""Warm files: what the user's own run of a file will need is built in the background, after each check of it."""

from __future__ import annotations

import logging

from fuselens.record import wire
from fuselens.record.report import FileReport

from ..client.configuration import NotAllowedError
from ..texts.session import Document
from .keyed_tasks import Background
from .turns import Urgency
from .worker_pool import StartError, WorkerDiedError

logger = logging.getLogger(__name__)


class Warming(Background):
    """At most one build per document. It gives way to whatever somebody waits for."""

    doing = "warming"

    def start(self, document: Document) -> None:
        """Builds what is cold. What a build before this one did not come to is part of it."""
        self.cancel(document)
        wanted = self._configuration.of(document.path).warm_files
        if not wanted or not document.cold or document.checked is None or document.preview:
            return
        self._tasks.start(document, self._warm(document, document.checked.text.origin.text))

    async def _warm(self, document: Document, source: str) -> None:
        try:
            settings, environment = await self._configuration.settled(document.path)
        except NotAllowedError:
            return
        functions = tuple(sorted(document.cold))
        text = source.removeprefix("\ufeff")
        request = wire.Request(0, "warm", document.path, text, functions, settings.options, settings.limits)
        self._on_change()
        try:
            event = await self._pool.submit(environment, request, lambda _: None, lambda: Urgency.BACKGROUND)
        except (StartError, WorkerDiedError) as error:
            logger.info("%s was not warmed: %s", document.path, error)
            return
        result = event.file or FileReport(document.path)
        for finding in result.diagnostics:  # a limit that was passed: not tried again
            logger.info("%s was not warmed: %s", document.path, finding.message)
        if document.warmed(functions, result.functions):
            self._taken(document)
