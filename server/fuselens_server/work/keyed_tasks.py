"""Tasks of which there is at most one for each of some things, and what is done about documents in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from ..client.configuration import Settled
from ..texts.session import Document
from .worker_pool import WorkerPool

logger = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)


class KeyedTasks(Generic[K]):
    """Iterates over the keys whose task has not ended. ``on_end`` runs after each task, however it ended; the error of
    one that failed is logged as ``describe`` names its key."""

    def __init__(self, describe: Callable[[K], str], on_end: Callable[[], object]) -> None:
        self._describe = describe
        self._on_end = on_end
        self._tasks: dict[K, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._tasks))

    def __contains__(self, key: object) -> bool:
        return key in self._tasks

    def start(self, key: K, work: Coroutine[Any, Any, None]) -> None:
        """In place of the task that ``key`` has."""
        self.cancel(key)
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._done(key, done))

    def of(self, key: K) -> asyncio.Task[None] | None:
        """The task that ``key`` has. One that was cancelled is not, also while it ends."""
        return self._tasks.get(key)

    async def wait(self, key: K) -> None:
        """Returns when the task of ``key`` has ended, however it did."""
        if task := self.of(key):
            await asyncio.wait([task])

    def cancel(self, key: K) -> bool:
        """Whether there was one."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()
        return task is not None

    def _done(self, key: K, task: asyncio.Task[None]) -> None:
        if self.of(key) is task:
            del self._tasks[key]
        self._on_end()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed", self._describe(key), exc_info=error)


class Background:
    """At most one piece of work for each document. ``on_change`` runs when one begins or ends; ``taken`` is told of a document about
    which something was found."""

    doing: ClassVar[str]  # as in "proving model.py"

    def __init__(
        self, configuration: Settled, pool: WorkerPool, on_change: Callable[[], None], taken: Callable[[Document], None]
    ) -> None:
        self._configuration = configuration
        self._pool = pool
        self._on_change = on_change
        self._taken = taken
        self._tasks = KeyedTasks[Document](lambda document: f"{self.doing} {document.path}", on_change)

    @property
    def documents(self) -> list[Document]:
        """Those that something is being done about, or that wait for it."""
        return list(self._tasks)

    def cancel(self, document: Document) -> None:
        self._tasks.cancel(document)

    def cancel_all(self) -> None:
        for document in self._tasks:
            self.cancel(document)
