"""Who may use a worker next: what is most urgent, and what runs gives way to it."""

from __future__ import annotations

import asyncio
import enum
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class Urgency(enum.IntEnum):
    """How soon somebody wants to see a result; less is sooner."""

    FOCUSED = 0  # what the person looks at, or has asked for
    OPEN = 1  # other open files
    BACKGROUND = 2  # what nobody waits for
    IDLE = 3  # what is done when there is nothing else to do, and the person does not type
    LAST = 4  # after that, too


REST_SECONDS = 1.5  # after a keystroke nothing idle runs: soon that text is saved, and finds the processors free


@dataclass(slots=True, eq=False)
class _Entry:
    urgency: Callable[[], int]
    order: int
    admitted: asyncio.Future[None] | None = None
    task: asyncio.Task[Any] | None = None
    displaced: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        return self.urgency(), self.order

    @property
    def idle(self) -> bool:
        return self.urgency() >= Urgency.IDLE

    def displace(self) -> None:
        """Ends what runs. It waits for another turn."""
        if self.task is not None and not self.displaced:
            self.displaced = True
            self.task.cancel()


@dataclass(slots=True)
class Turns:
    """``places`` pieces of work at once. How urgent one is may change while it waits and while it runs: it is asked
    each time that it matters; :meth:`reconsider` says that it may have changed."""

    places: int
    _running: list[_Entry] = field(default_factory=list)
    _waiting: list[_Entry] = field(default_factory=list)
    _orders: itertools.count[int] = field(default_factory=itertools.count)
    _rest: asyncio.TimerHandle | None = None  # until it goes off, nothing idle begins

    async def run(self, urgency: Callable[[], int], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What ``work()`` gives, once its turn has come. For what is more urgent it is cancelled, and begun again when
        its turn comes once more."""
        entry = _Entry(urgency, next(self._orders))
        while True:
            await self._enter(entry)
            entry.task = asyncio.create_task(work())
            try:
                return await entry.task
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if not entry.displaced or current is None or current.cancelling():
                    raise
            finally:
                self._leave(entry)

    def typed(self) -> None:
        """The person types: what is idle gives way, and waits until they pause."""
        for entry in self._running:
            if entry.idle:
                entry.displace()
        if self._rest is not None:
            self._rest.cancel()
        self._rest = asyncio.get_running_loop().call_later(REST_SECONDS, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self._admit()

    def reconsider(self) -> None:
        """Displaces what runs while something more urgent waits."""
        waiting = sorted(self._waiting, key=lambda e: e.rank)
        leaving = sum(e.displaced for e in self._running)  # each of them makes place for one
        for entry in waiting[leaving:]:
            free = [e for e in self._running if e.task is not None and not e.displaced]
            last = max(free, key=lambda e: e.rank, default=None)
            if last is None or last.urgency() <= entry.urgency():
                return
            last.displace()

    async def _enter(self, entry: _Entry) -> None:
        entry.admitted = asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        self._admit()
        self.reconsider()
        try:
            await entry.admitted
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            else:
                self._leave(entry)
            raise

    def _leave(self, entry: _Entry) -> None:
        self._running.remove(entry)
        entry.task, entry.displaced = None, False
        self._admit()

    def _admit(self) -> None:
        while len(self._running) < self.places and (entry := self._next()) is not None:
            self._waiting.remove(entry)
            self._running.append(entry)
            assert entry.admitted is not None
            if not entry.admitted.done():
                entry.admitted.set_result(None)

    def _next(self) -> _Entry | None:
        """The most urgent of those that may begin now."""
        ready = [e for e in self._waiting if self._rest is None or not e.idle]
        return min(ready, key=lambda e: e.rank, default=None)
