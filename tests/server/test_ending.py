"""After exit, the end of stdin or the client's death the server is gone, with its workers, whatever it was stuck in."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .raw_session import RawSession

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

# A server whose commands hold up its event loop, its threads and its end.
STUCK = """
import asyncio, sys, threading, time
import fuselens_server.__main__ as main

create = main.create

def stuck():
    server = create()

    @server.command("stubborn")
    async def stubborn(ls):
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

    @server.command("threads")
    async def threads(ls):
        for _ in range(64):
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
        threading.Thread(target=time.sleep, args=(3600,)).start()

    @server.command("loop")
    def loop(ls):
        time.sleep(3600)

    return server

main.create = stuck
sys.exit(main.main([]))
"""

SLOW = "import fuselens, time\n@fuselens.compile\ndef f(x):\n    return x\ntime.sleep(3600)\n"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RawSession]]:
    made: list[RawSession] = []

    def make(*command: str, reads: bool = True) -> RawSession:
        made.append(RawSession(tmp_path, *command, reads=reads))
        return made[-1]

    yield make
    for session in made:
        session.clean_up()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def hang_up(session: RawSession) -> None:
    assert session.process.stdin is not None
    session.process.stdin.close()


def leave(session: RawSession) -> None:
    session.answer(session.send("shutdown", request=True))
    session.send("exit")


def test_after_hostile_commands(start, tmp_path, good):
    session = start().begin(allowedFolders=["/"])
    session.open(tmp_path / "slow.py", SLOW)
    session.open(tmp_path / "good.py", good)
    uri = (tmp_path / "good.py").as_uri()
    until(session.workers)
    for name in (
        "run",
        "runFunction",
        "check",
        "preview",
        "fixAll",
        "documents",
        "explain",
        "openKernel",
        "openDocument",
        "nothing",
    ):
        for arguments in (
            (),
            (None,),
            ({},),
            ("x" * 1_000_000, "y"),
            (uri, 3),
            (uri, "toy", {}, []),
            ("file:///dev/zero", "f"),
        ):
            session.command(f"fuselens.server.{name}", *arguments)
    session.command(None)
    session.command(["a"], {})
    for _ in range(20):
        session.command("fuselens.server.run", uri, "toy")
        session.command("fuselens.server.restartWorker")
    leave(session)
    assert session.exit_status() == 0
    assert session.left() == {}


def test_with_a_worker_that_is_stopped_and_has_much_to_read(start, tmp_path, good):
    session = start().begin(allowedFolders=["/"])
    session.open(tmp_path / "good.py", good)
    session.findings(tmp_path / "good.py")
    worker = min(session.workers())  # beside it there may be a child of its, which has checked the file
    os.kill(worker, signal.SIGSTOP)
    large = good + "#" * 1_000_000
    for n in range(4):
        session.open(tmp_path / f"large{n}.py", large)
    session.command("fuselens.server.restartWorker")
    leave(session)
    assert session.exit_status() == 0
    assert session.left() == {}


@pytest.mark.parametrize("command", ["stubborn", "threads"])
def test_with_what_does_not_end(start, tmp_path, good, command):
    session = start(sys.executable, "-c", STUCK).begin(allowedFolders=["/"])
    session.open(tmp_path / "good.py", good)
    session.findings(tmp_path / "good.py")
    session.command(command)
    leave(session)
    assert session.exit_status() == 0
    assert session.left() == {}


@pytest.mark.parametrize("command", ["stubborn", "threads", "loop", None])
def test_without_an_exit(start, tmp_path, good, command):
    session = start(sys.executable, "-c", STUCK).begin(allowedFolders=["/"])
    session.open(tmp_path / "slow.py", SLOW)
    until(session.workers)
    if command is not None:
        session.command(command)
    hang_up(session)
    assert session.exit_status() == 1
    assert session.left() == {}


def test_exit_without_shutdown(start):
    session = start().begin()
    session.send("exit")
    assert session.exit_status() == 1


def test_a_client_that_takes_nothing(start, tmp_path, good):
    """The server is stuck in a write to it."""
    session = start(reads=False)
    session.send("initialize", {"processId": None, "rootUri": None, "capabilities": {}}, request=True)
    session.send("initialized", {})
    stdin = session.process.stdin
    assert stdin is not None
    while select.select([], [stdin], [], 3)[1]:  # until both pipes are full
        session.send("textDocument/hover", {"unknown": "x" * 200}, request=True)
    hang_up(session)
    assert session.exit_status() == 1
    assert session.left() == {}


def test_all_that_was_said_is_answered_after_the_client_hung_up(start):
    """What is piped into the server is read to its end."""
    session = start()
    for _ in range(300):
        last = session.send("textDocument/hover", {}, request=True)
    hang_up(session)
    session.answer(last)
    assert session.exit_status() == 1


def test_with_a_client_that_is_killed(start, tmp_path, good):
    """While another process holds its end of the pipe: what a client started inherits that."""
    client = subprocess.Popen(["sleep", "3600"])
    session = start().begin(client.pid, allowedFolders=["/"])
    session.open(tmp_path / "slow.py", SLOW)
    until(session.workers)
    client.kill()
    client.wait()
    assert session.exit_status() == 1
    assert session.left() == {}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_with_streams_that_are_closed(start, closed):
    """A descriptor's number must not go to something else."""
    session = start("bash", "-c", f"exec {sys.executable} -m fuselens_server {closed}")
    hang_up(session)
    assert session.exit_status() == 1
    assert session.left() == {}
