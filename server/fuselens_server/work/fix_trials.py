"""Fixes are tried out in the background, after each check that found some."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fuselens.record import wire
from fuselens.record.report import Diagnostic, Edit, FileReport, Fix, Report

from ..client.configuration import NotAllowedError, Settled
from ..texts.session import Document
from .keyed_tasks import KeyedTasks
from .turns import Urgency
from .worker_pool import StartError, WorkerDiedError, WorkerPool

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Key:
    """One function's fixes. Without a fingerprint they are tried out again after each check."""

    document: Document
    function: str
    fingerprint: str | int


class FixTrials:
    """At most one trial per function. It gives way to whatever somebody waits for, and goes on when the file is checked
    again and the function is still the same."""

    def __init__(self, configuration: Settled, pool: WorkerPool, on_change: Callable[[], None]) -> None:
        self._configuration = configuration
        self._pool = pool
        self._on_change = on_change
        self._tasks = KeyedTasks[_Key](lambda key: f"trying out the fixes of {key.function}", on_change)

    @property
    def documents(self) -> list[Document]:
        """Those whose fixes are being tried out, or wait for it."""
        return list(dict.fromkeys(key.document for key in self._tasks))

    def start(self, document: Document) -> None:
        """Tries out what was not tried out yet."""
        checked = document.checked
        wanted = {_key(document, r): r for r in checked.report.functions if has_untried(r)} if checked else {}
        for key in self._tasks:
            if key.document is document and key not in wanted:
                self._tasks.cancel(key)
        for key, report in wanted.items():
            if checked is not None and key not in self._tasks and self._configuration.of(document.path).try_fixes:
                source = checked.text.origin.text.removeprefix("\ufeff")
                self._tasks.start(key, self._try(key, report, source))

    def cancel(self, document: Document) -> None:
        for key in self._tasks:
            if key.document is document:
                self._tasks.cancel(key)

    def cancel_all(self) -> None:
        for document in self.documents:
            self.cancel(document)

    async def now(self, document: Document, report: Report, finding: Diagnostic) -> Diagnostic:
        """``finding``, which is none of the report's, with what became of its fixes: somebody waits for it. Raises
        StartError and WorkerDiedError."""
        source = document.checked.text.origin.text if document.checked else document.text.text
        others = [dataclasses.replace(d, fixes=()) for d in (*report.breaks, *report.diagnostics)]
        tried = await self._ask(document, report.function, source.removeprefix("\ufeff"), (*others, finding))
        return tried[-1]

    async def _try(self, key: _Key, report: Report, source: str) -> None:
        document = key.document
        findings = (*report.breaks, *report.diagnostics)
        self._on_change()
        try:
            tried = await self._ask(document, key.function, source, findings, Urgency.BACKGROUND)
        except NotAllowedError:
            return
        except (
            StartError,
            WorkerDiedError,
        ) as error:  # says nothing about the fixes: the next check has them tried out
            logger.info("the fixes of %s were not tried out: %s", key.function, error)
            return
        for current in document.checked.report.functions if document.checked else ():
            if _key(document, current) == key:
                take(current, findings, tried)

    async def _ask(
        self,
        document: Document,
        function: str,
        source: str,
        findings: Sequence[Diagnostic],
        urgency: Urgency = Urgency.FOCUSED,
    ) -> Sequence[Diagnostic]:
        settings, environment = await self._configuration.settled(document.path)
        request = wire.Request(
            0, "fix", document.path, source, (function,), {**settings.options, **document.options}, settings.limits,
            findings=tuple(findings),
        )  # fmt: skip
        event = await self._pool.submit(environment, request, lambda _: None, lambda: urgency)
        file = event.file or FileReport(document.path)
        tried = [d for r in file.functions for d in r.breaks]
        if len(tried) == len(findings):
            return tried
        why = next((d.message for d in file.diagnostics), "there was no answer")
        logger.info("the fixes of %s were not tried out: %s", function, why)
        return [failed(finding, why) for finding in findings]


def _key(document: Document, report: Report) -> _Key:
    return _Key(document, report.function, report.fingerprint or id(report))


def has_untried(report: Report) -> bool:
    return any(not fix.trial for d in (*report.breaks, *report.diagnostics) for fix in d.fixes)


def failed(finding: Diagnostic, why: str) -> Diagnostic:
    """``finding`` when its fixes could not be tried out."""
    fixes = (dataclasses.replace(fix, trial=fix.trial or f"it could not be tried out: {why}") for fix in finding.fixes)
    return dataclasses.replace(finding, fixes=tuple(fixes))


def take(report: Report, asked: Iterable[Diagnostic], tried: Iterable[Diagnostic]) -> None:
    """Notes in ``report`` what became of the fixes of ``asked``, its findings as they were then: places may have moved
    since."""
    asked = list(asked)
    outcomes = [
        [next((t for t in after.fixes if (t.base or t.edits) == fix.edits), None) for fix in before.fixes]
        for before, after in zip(asked, tried, strict=True)
    ]
    current = [*report.breaks, *report.diagnostics]
    if [len(d.fixes) for d in current] != [len(found) for found in outcomes]:
        return
    asked_for = [[fix.edits for fix in before.fixes] for before in asked]
    noted = [_noted(*each) for each in zip(current, outcomes, asked_for, strict=True)]
    report.breaks, report.diagnostics = noted[: len(report.breaks)], noted[len(report.breaks) :]


def _noted(finding: Diagnostic, outcomes: Sequence[Fix | None], asked: Sequence[tuple[Edit, ...]]) -> Diagnostic:
    """Without the fixes that the trial took out. What became of one that got more edits is known where none of them has
    moved since; elsewhere it is tried out again after the next check."""
    fixes: list[Fix] = []
    for fix, outcome, edits in zip(finding.fixes, outcomes, asked, strict=True):
        if outcome is not None and outcome.base:
            fixes.append(outcome if fix.edits == edits else fix)
        elif outcome is not None:
            names = ("verified", "trial", "together", "patch")
            kept = {name: getattr(outcome, name) for name in names}
            fixes.append(dataclasses.replace(fix, **kept))
    return dataclasses.replace(finding, fixes=tuple(fixes))
