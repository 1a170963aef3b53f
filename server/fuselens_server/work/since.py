"""What became of open files since a revision of git: compared in the background, for who asked for it.

git runs in threads, and checks are the worker's, when nothing more urgent wants it. The comparison itself is the compiler's
(:mod:`fuselens.history`), as on the command line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fuselens.history import blaming, comparing, told
from fuselens.history.dependencies import Facts
from fuselens.history.folder import Folder
from fuselens.history.git import GitError, Repository, Sides
from fuselens.history.snapshots import Snapshots, Wanted
from fuselens.record import wire

from ..client.configuration import NotAllowedError, Settled
from ..client.settings import Settings
from ..texts.session import Document
from ..texts.view import SinceRevision
from .keyed_tasks import KeyedTasks
from .turns import Urgency
from .worker_pool import Environment, StartError, WorkerDiedError, WorkerPool

logger = logging.getLogger(__name__)
T = TypeVar("T")
AUTO = "auto"  # where the work left the default branch
_MOST_FACTS = 20_000
_OPTIONS = {"build": False, "keep_sizes": False, "background": True}


class NotComparedError(Exception):
    """There is nothing to show; the message says why."""


class Comparing:
    """At most one comparison per document. ``changed`` is told of each that is new, or gone."""

    def __init__(
        self, configuration: Settled, pool: WorkerPool, changed: Callable[[Document], None], on_change: Callable[[], None]
    ) -> None:  # fmt: skip
        self._configuration = configuration
        self._pool = pool
        self._changed = changed
        self._on_change = on_change
        self._facts: dict[str, Facts] = {}  # of sources, by their contents: the next save changes a few
        self._tasks = KeyedTasks[Document](lambda document: f"comparing {document.path}", on_change)

    @property
    def documents(self) -> list[Document]:
        return list(self._tasks)

    def again(self, document: Document) -> None:
        """Compares a document that was saved, or opened, where somebody asked for it."""
        revision = document.compared_with or self._configuration.of(document.path).compare_with
        if revision and not document.preview and document.annotated():
            self._tasks.start(document, self._quietly(document, revision))
            self._on_change()

    async def _quietly(self, document: Document, revision: str) -> None:
        try:
            await self.compare(document, revision, lambda _: None)
        except NotComparedError as error:
            logger.info("%s was not compared with %s: %s", document.path, revision, error)
            self._show(document, None)

    def cancel(self, document: Document) -> None:
        self._tasks.cancel(document)

    def cancel_all(self) -> None:
        for document in self._tasks:
            self.cancel(document)

    def forget(self, document: Document) -> None:
        """Takes the marks away; saving the document compares it no more."""
        self.cancel(document)
        document.compared_with = ""
        self._show(document, None)

    async def compare(self, document: Document, revision: str, progress: Callable[[str], None]) -> told.Told:
        """Compares, and keeps what came of it with the document. Raises NotComparedError."""
        text = document.on_disk
        try:
            settings, environment = await self._configuration.settled(document.path)
            repository = await asyncio.to_thread(Repository.of, Path(document.path))
            sides = await asyncio.to_thread(sides_of, repository, revision)
            outcome = await self._compared(repository, sides, revision, document, settings, environment, progress)
        except (GitError, NotAllowedError, StartError, WorkerDiedError) as error:
            raise NotComparedError(str(error)) from error
        self._show(
            document, SinceRevision(outcome, text if text.origin is document.on_disk.origin else document.on_disk)
        )
        return outcome

    def _show(self, document: Document, since: SinceRevision | None) -> None:
        if document.since is not since:
            document.since = since
            self._changed(document)

    async def _compared(
        self, repository: Repository, sides: Sides, revision: str, document: Document, settings: Settings,
        environment: Environment, progress: Callable[[str], None],
    ) -> told.Told:  # fmt: skip
        async def answers(wanted: list[Wanted]) -> list[Any]:
            out = []
            for one in wanted:
                if one.revision.folder:
                    progress(one.about)
                request = wire.Request(
                    0, "check", one.path, None, (), {**settings.options, **_OPTIONS}, settings.limits, revision=one.revision
                )  # fmt: skip
                event = await self._pool.submit(environment, request, lambda _: None, lambda: Urgency.BACKGROUND)
                out.append(one.placed(event.file))
            return out

        folder = Folder(repository)
        try:
            if len(self._facts) > _MOST_FACTS:
                self._facts = {}
            snapshots = Snapshots(repository, folder, self._facts)
            wanted = comparing.paths_below(repository.top, [document.path])
            found = await _driven(comparing.compare(snapshots, sides, wanted), answers)
            blamed = await _driven(blaming.blame(snapshots, found), answers)
            return told.told(found, revision if revision != AUTO else sides.old.short, blamed)
        finally:
            await asyncio.shield(asyncio.to_thread(folder.close))


def sides_of(repository: Repository, revision: str) -> Sides:
    """What a file is compared with: always as it is now. Raises GitError."""
    if revision == AUTO:
        return Sides(repository.default_base())
    return Sides(repository.sides(revision).old)


@dataclass(frozen=True, slots=True)
class _Ended:
    value: Any


async def _driven(work: Generator[list[Wanted], list[Any], T], answers: Callable[[list[Wanted]], Any]) -> T:
    """What the work comes to. Its own steps run in a thread, and end there also where nobody waits any more."""
    given: list[Any] | None = None
    while True:
        step = asyncio.ensure_future(asyncio.to_thread(_step, work, given))
        try:
            wanted = await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise
        if isinstance(wanted, _Ended):
            return wanted.value
        given = await answers(wanted)


def _step(work: Generator[list[Wanted], list[Any], Any], given: list[Any] | None) -> list[Wanted] | _Ended:
    try:
        return work.send(given) if given is not None else next(work)
    except StopIteration as end:
        return _Ended(end.value)
