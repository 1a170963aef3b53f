"""Proofs: after a check, and after all that somebody waits for, each function is compared with eager and with float64."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuselens.record import wire
from fuselens.record.report import Proof, Report

from ..client.configuration import NotAllowedError, Settled
from ..texts.session import Checked, Document
from .explaining import explained
from .keyed_tasks import Background
from .machines import Machines
from .turns import Urgency
from .worker_pool import StartError, WorkerDiedError, WorkerPool

logger = logging.getLogger(__name__)


class Proofs(Background):
    """At most one per document, function by function. It gives way to everything else, and begins again then."""

    doing = "proving"

    def __init__(
        self, configuration: Settled, pool: WorkerPool, machines: Machines, on_change: Callable[[], None],
        taken: Callable[[Document], None],
    ) -> None:  # fmt: skip
        super().__init__(configuration, pool, on_change, taken)
        self._machines = machines
        self._folder: Path | None = None

    def start(self, document: Document) -> None:
        """Proves what was not proved yet; what was found wrong is looked at again."""
        self.cancel(document)
        checked, settings = document.checked, self._configuration.of(document.path)
        wanted = [r for r in checked.report.functions if _may_be_proved(r)] if checked else []
        if settings.prove_seconds and wanted and checked is not None and not document.preview:
            self._tasks.start(document, self._prove(document, checked, wanted))

    async def _prove(self, document: Document, checked: Checked, wanted: list[Report]) -> None:
        source = checked.text.origin.text.removeprefix("\ufeff")
        self._on_change()
        for report in wanted:
            try:
                proof = await self._proved(document, report, source)
            except (NotAllowedError, StartError, WorkerDiedError) as error:
                logger.info("%s was not proved: %s", report.function, error)
                return
            if document.checked is checked:
                report.diagnostics = [d for d in report.diagnostics if report.proof is None or d != report.proof.fault]
                report.diagnostics += [proof.fault] if proof.fault is not None else []
                report.proof = proof
                self._taken(document)
        unknown = [r for r in checked.report.functions if r.machine is None]
        for device in dict.fromkeys(r.device for r in unknown):
            machine = await self._machines.of(document.path, device)
            if machine is not None and document.checked is checked:
                for report in (r for r in unknown if r.device == device):
                    report.machine = machine
                self._taken(document)

    async def _proved(self, document: Document, report: Report, source: str) -> Proof:
        settings, environment = await self._configuration.settled(document.path)
        seconds = settings.prove_seconds
        limits = wire.Limits(seconds, settings.memory_limit)
        options = {**settings.options, **document.options, "idle": True, "gradients": True}

        async def asked(method: wire.Method, path: str, names: tuple[str, ...], more: dict[str, Any]) -> wire.Event:
            text = source if path == document.path else None
            request = wire.Request(0, method, path, text, names, options | more, limits)
            return await self._pool.submit(environment, request, lambda _: None, lambda: Urgency.IDLE)

        answer = await asked("verify", document.path, (report.function,), {})
        folder = self._place(document, report)
        return await explained(answer, asked, document.path, report.function, report.span, folder, seconds)

    def _place(self, document: Document, report: Report) -> Path:
        """Where minimal programs go, for as long as the person wants them."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="fuselens-faults-"))
        return self._folder / f"{Path(document.path).stem}-{report.function}"


def _may_be_proved(report: Report) -> bool:
    return bool(report.graphs) and report.compiled and (report.proof is None or report.proof.fault is not None)
