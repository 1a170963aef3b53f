"""Texts that a check leaves out because they are heavy: made when a document is first opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuselens.config import ASSEMBLY
from fuselens.record import wire
from fuselens.record.report import FileReport, Report, Stage

from ..client.configuration import Settled
from ..documents.stages import comment
from ..texts.correspondence import Correspondence
from ..texts.document_uri import ReportDocument
from .keyed_tasks import KeyedTasks
from .worker_pool import StartError, WorkerDiedError, WorkerPool

if TYPE_CHECKING:
    from ..texts.session import Document, Session


_TOGETHER = (("ttir", "ttgir", "llir", "ptx"), ("sass",))


@dataclass(frozen=True, slots=True)
class _Key:
    document: Document
    function: str
    report: int  # its identity: a new one lacks them again
    forms: tuple[str, ...]


class LaterTexts:
    """At most one request per function for instructions, which a slow tool lists, and one for all else. ``on_change`` is
    told of the addresses that have text now."""

    def __init__(
        self,
        configuration: Settled,
        session: Session,
        pool: WorkerPool,
        on_change: Callable[[list[str]], None],
    ) -> None:
        self._configuration = configuration
        self._session = session
        self._pool = pool
        self._on_change = on_change
        self._tasks = KeyedTasks[_Key](lambda key: f"making the texts of {key.function}", lambda: None)

    async def make(self, address: ReportDocument) -> None:
        """Returns when the document has its text, or says why it has none."""
        if key := self._begin(address):
            await self._tasks.wait(key)

    def begin(self, address: ReportDocument) -> None:
        """Has it made, without waiting."""
        self._begin(address)

    def _begin(self, address: ReportDocument) -> _Key | None:
        document = self._session.get(address.file)
        checked = document.checked if document else None
        report = (
            next((r for r in checked.report.functions if r.function == address.qualname), None) if checked else None
        )
        if document is None or checked is None or report is None or not _lacking(report, address):
            return None
        forms = next(forms for forms in _TOGETHER if address.name.partition(".")[0] in forms)
        key = _Key(document, report.function, id(report), forms)
        if key not in self._tasks:
            source = checked.text.origin.text.removeprefix("\ufeff")
            self._tasks.start(key, self._make(document, report, source, forms))
        return key

    async def _make(self, document: Document, report: Report, source: str, forms: tuple[str, ...]) -> None:
        try:
            settings, environment = await self._configuration.settled(document.path)
            options = {
                **settings.options,
                **document.options,
                "build": not settings.warm_files,
                "assembly": list(forms),
            }
            request = wire.Request(0, "check", document.path, source, (report.function,), options, settings.limits)
            event = await self._pool.submit(environment, request, lambda _: None)
            file = event.file or FileReport(document.path)
            why = "; ".join(d.message for d in file.diagnostics) or "it was compiled otherwise this time"
        except (StartError, WorkerDiedError) as error:
            file, why = FileReport(document.path), str(error)
        made = next((r for r in file.functions if r.function == report.function), None)
        changed = take(report, made, why, forms)
        if document.checked is not None and any(r is report for r in document.checked.report.functions):
            found = Correspondence(document.checked.report)
            document.checked = dataclasses.replace(document.checked, correspondence=found)
        self._on_change(
            [str(ReportDocument(document.uri, report.function, s.name, s.suffix, graph)) for graph, s in changed]
        )


def _lacking(report: Report, address: ReportDocument) -> bool:
    found = (s for g in report.graphs if g.id == address.graph for s in g.stages if s.name == address.name)
    return any(stage.later for stage in found)


def take(report: Report, made: Report | None, why: str, forms: Collection[str] = ASSEMBLY) -> list[tuple[int, Stage]]:
    """Puts the texts of these ``forms`` that ``made`` has in the place of those that ``report`` lacks; where it has none,
    ``why``. Returns what is new, with the numbers of its graphs."""
    graphs = {graph.id: graph for graph in made.graphs} if made else {}
    changed = []
    for graph in report.graphs:
        other = graphs.get(graph.id)
        for place, stage in enumerate(graph.stages):
            if stage.later and stage.name.partition(".")[0] in forms:
                found = other.stage(stage.name) if other else None
                text = f"{comment(stage.suffix)} This text was not made: {why}\n"
                new = found if found and not found.later else dataclasses.replace(stage, text=text, later=False)
                graph.stages[place] = new
                changed.append((graph.id, new))
    return changed
