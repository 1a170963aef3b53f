"""Compilations foreseen: after a check, the calls that a file's program makes of its functions are counted in the background."""

from __future__ import annotations

import logging

from fuselens.record import wire
from fuselens.record.report import FORETOLD, Report

from ..client.configuration import NotAllowedError
from ..texts.session import Checked, Document
from .keyed_tasks import Background
from .turns import Urgency
from .worker_pool import StartError, WorkerDiedError

logger = logging.getLogger(__name__)


class Foretelling(Background):
    """At most one per document. It gives way to whatever somebody waits for, and begins again with each check: calls may be in other
    functions than those that an edit changed."""

    doing = "foretelling compilations of"

    def start(self, document: Document) -> None:
        """Asks for what is foreseen of the functions that were compiled."""
        self.cancel(document)
        checked, settings = document.checked, self._configuration.of(document.path)
        wanted = checked is not None and any(report.graphs for report in checked.report.functions)
        if settings.foretell_recompiles and wanted and checked is not None and not document.preview:
            self._tasks.start(document, self._foretell(document, checked))

    async def _foretell(self, document: Document, checked: Checked) -> None:
        self._on_change()
        try:
            settings, environment = await self._configuration.settled(document.path)
            source = checked.text.origin.text.removeprefix("\ufeff")
            options = {**settings.options, **document.options, "idle": True}
            names = tuple(report.function for report in checked.report.functions if report.graphs)
            request = wire.Request(0, "recompiles", document.path, source, names, options, settings.limits)
            event = await self._pool.submit(environment, request, lambda _: None, lambda: Urgency.BACKGROUND)
        except (NotAllowedError, StartError, WorkerDiedError) as error:
            logger.info("compilations of %s were not foretold: %s", document.path, error)
            return
        if document.checked is not checked or event.file is None:
            return
        for finding in event.file.diagnostics:
            logger.info("compilations of %s were not foretold: %s", document.path, finding.message)
        told = {report.function: report for report in event.file.functions}
        for report in checked.report.functions:
            _take(report, told.get(report.function))
        self._taken(document)


def _take(report: Report, told: Report | None) -> None:
    """Puts what is foreseen in the place of what was."""
    report.foreseen = told.foreseen if told is not None else None
    report.diagnostics = [d for d in report.diagnostics if d.code not in FORETOLD]
    report.diagnostics += [d for d in told.diagnostics if d.code in FORETOLD] if told is not None else []
