"""A server's listener in the process of a test, and programs that a user runs meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuselens.live import Event
from fuselens_server.work.live import LiveRuns, remove_abandoned

PATIENCE = 90


class Listening:
    """A server's listener in this process, and programs that a user runs meanwhile."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.heard: list[tuple[str, Event]] = []
        self.launched: list[asyncio.subprocess.Process] = []
        self.runs = LiveRuns(lambda path, event: self.heard.append((path, event)))

    async def launch(self, text: str, name: str = "program.py", live: str | None = "1") -> asyncio.subprocess.Process:
        path = self.directory / name
        path.write_text(text)
        environment = {k: v for k, v in os.environ.items() if k != "FUSELENS_LIVE"} | {"OMP_NUM_THREADS": "1"}
        environment |= {"FUSELENS_LIVE": live} if live is not None else {}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(path), env=environment, stdin=pipe, stdout=pipe, stderr=pipe
        )
        self.launched.append(process)
        return process

    async def end(self) -> None:
        for process in self.launched:
            if process.returncode is None:
                process.kill()
                await process.wait()
        self.runs.stop()
        remove_abandoned()

    async def run(self, text: str, name: str = "program.py", live: str | None = "1") -> str:
        return await ended(await self.launch(text, name, live))

    async def until(self, condition: Callable[[], Any]) -> None:
        for _ in range(PATIENCE * 20):
            if condition():
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it did not happen")

    def seen(self, name: str = "program.py") -> Any:
        return self.runs.seen(str(self.directory / name))


async def ended(process: asyncio.subprocess.Process, given: bytes | None = None) -> str:
    out, errors = await asyncio.wait_for(process.communicate(given), PATIENCE)
    assert process.returncode == 0, errors.decode()
    return out.decode()


async def says(process: asyncio.subprocess.Process, line: bytes) -> None:
    assert process.stdout is not None
    while (said := await asyncio.wait_for(process.stdout.readline(), PATIENCE)) != line:
        assert said, "it ended"
