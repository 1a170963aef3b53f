"""What is wrong with a function that differs from eager: a bisection in a thread, whose requests are made in the loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuselens.bisecting.bisection import Bisection
from fuselens.bisecting.faults import Faults
from fuselens.record import wire
from fuselens.record.report import Proof, Span

_BISECTING = 4  # times what a proof may take
Asked = Callable[[wire.Method, str, tuple[str, ...], dict[str, Any]], Coroutine[Any, Any, wire.Event]]


async def explained(
    answer: wire.Event, asked: Asked, path: str, function: str, place: Span | None, folder: Path, seconds: float
) -> Proof:  # fmt: skip
    """The proof that a ``verify`` answers with, and what is wrong where something is. Programs that show it go into
    ``folder``; ``seconds`` are what the proof was allowed to take."""
    asking = _Asking(asked)
    search = Bisection(asking.ask, folder, time.monotonic() + _BISECTING * seconds)
    try:
        return await asyncio.to_thread(Faults(search, path, function, place).explained, answer)
    finally:
        asking.close()


@dataclass(slots=True)
class _Asking:
    """Requests of a thread, made in the loop. After :meth:`close` none is, and what is under way ends."""

    asked: Asked
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _current: concurrent.futures.Future[wire.Event] | None = None
    _closed: bool = False

    def ask(self, method: wire.Method, path: str, names: tuple[str, ...], options: dict[str, Any]) -> wire.Event:
        with self._lock:
            if self._closed:
                raise concurrent.futures.CancelledError
            self._current = asyncio.run_coroutine_threadsafe(self.asked(method, path, names, options), self.loop)
        return self._current.result()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._current is not None:
                self._current.cancel()
