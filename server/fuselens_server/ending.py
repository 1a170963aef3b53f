"""The end of the process: it comes soon after the client's, whatever the event loop, a thread or a worker is stuck in."""

from __future__ import annotations

import faulthandler
import io
import os
import select
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from .work.sessions import alive

GRACE_SECONDS = 3.0  # for the event loop to end by itself
_LOOK_SECONDS = 1.0  # between two looks at the client


class Source(io.BufferedReader):
    """The client's messages, one read after the other. ``asked`` is when the last read began; ``on_end`` is told that the
    client's end is closed and all has been read."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(io.FileIO(descriptor))
        self.asked = time.monotonic()
        self.on_end: Callable[[], object] = lambda: None

    def readline(self, size: int | None = -1) -> bytes:
        self.asked = time.monotonic()
        line = super().readline(size)
        if not line:
            self.on_end()
        return line


class Ending:
    """A thread that ends the process by ``leave`` when :meth:`begin` was called some seconds ago, or the client is gone and
    nobody reads what it had said: the loop may be held up in a handler, by a write that nobody takes, or by a task that
    does not end. Does nothing before :meth:`watch`."""

    def __init__(self, leave: Callable[[], NoReturn]) -> None:
        self._leave = leave
        self._source: Source | None = None
        self._begun = threading.Event()
        self._client: int | None = None

    def watch(self, source: Source) -> None:
        self._source, source.on_end = source, self.begin
        threading.Thread(target=self._watch, args=(source,), name="ending", daemon=True).start()

    def watch_client(self, pid: int | None) -> None:
        """The process that LSP says to end with: others may hold its end of our stdin. One that cannot be seen from
        here, say from a container, is not watched."""
        if os.name == "posix" and pid is not None and pid > 0 and alive(pid):
            self._client = pid

    def begin(self) -> None:
        if self._source is not None and not self._begun.is_set():
            # the last resort, also where a thread does not let go of the interpreter, or its own end hangs
            faulthandler.dump_traceback_later(2 * GRACE_SECONDS, exit=True, file=open(os.devnull, "wb"))  # noqa: SIM115
            self._begun.set()

    def _watch(self, source: Source) -> None:
        while not self._begun.wait(_LOOK_SECONDS):
            if self._client is not None and not alive(self._client):
                self.begin()
            elif _closed(source):
                self._wait_for_reader(source)
        time.sleep(GRACE_SECONDS)
        self._leave()

    def _wait_for_reader(self, source: Source) -> None:
        """Returns when all was read, or nothing was for a while."""
        seen = time.monotonic()
        while not self._begun.wait(_LOOK_SECONDS):
            if time.monotonic() - max(seen, source.asked) > GRACE_SECONDS:
                self.begin()


def _closed(source: Source) -> bool:
    """Whether the client has closed its end, though there may be more to read."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(source.fileno(), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))
