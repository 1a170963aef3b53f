"""A worker in a process of its own, spoken to over the wire like the language server does."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from fuselens.record import wire
from fuselens.record.report import FileReport


class Client:
    """The server's end of one worker process."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        """``options`` are those of every request that says nothing else."""
        self.options = options or {}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fuselens.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | (environment or {}),
            cwd=cwd,
        )
        self.errors = bytearray()
        self.events: queue.Queue[wire.Event | None] = queue.Queue()
        self.progress: list[wire.Event] = []
        self.starting: list[str] = []  # what it said before it was ready
        self.ready: wire.Event | None = None
        self._next = 0
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._drain, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while (event := wire.read(self.process.stdout, wire.Event)) is not None:
            if event.kind == "starting":
                self.starting.append(event.message)
            else:
                self.events.put(event)
        self.events.put(None)

    def _drain(self) -> None:
        assert self.process.stderr is not None
        while data := os.read(self.process.stderr.fileno(), 1 << 16):
            self.errors += data

    def event(self, timeout: float = 150) -> wire.Event | None:
        return self.events.get(timeout=timeout)

    def send(self, method: str, path: Path | str = "", source: str | None = None, **fields: Any) -> int:
        self._next += 1
        fields["options"] = self.options | fields.get("options", {})
        assert self.process.stdin is not None
        wire.write(self.process.stdin, wire.Request(self._next, method, str(path), source, **fields))
        return self._next

    def result(self, identity: int) -> wire.Event:
        """The result of one request; progress events are collected, other results must not come first."""
        while True:
            event = self.event()
            assert event is not None, self.errors.decode()
            if event.kind == "early":
                continue  # the check takes long
            if event.kind == "progress":
                self.progress.append(event)
                continue
            assert event.kind == "result", event
            assert event.id == identity
            return event

    def check(self, path: Path | str, source: str | None = None, **fields: Any) -> FileReport:
        file = self.result(self.send("check", path, source, **fields)).file
        assert file is not None
        return file

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            self.process.wait()
