"""Real runs of user programs, seen by the server: what arrives, and that no state of the server harms a run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fuselens import live
from fuselens.live import Event, Hello
from fuselens.record import wire
from fuselens_server.work.live import LARGEST_MESSAGE, LiveRuns
from tests.server.listening import PATIENCE, Listening, ended, says

PROGRAM = """\
import fuselens, torch


@fuselens.compile
def f(x, *, scale):
    y = x.sin() * scale
    return y + 1


for n in (3, 4, 5):
    for _ in range(10):
        f(torch.ones(n), scale=2.0)
"""
PAUSED = """\
import sys
import fuselens, torch


@fuselens.compile
def f(x):
    return x.sin() + 1


f(torch.ones(3))
print("half", flush=True)
sys.stdin.readline()
for n in range(2, 5):
    x = torch.ones(n, n)
    assert torch.allclose(f(x), x.sin() + 1)
print("done")
"""
FLOOD = """\
import os, sys
from pathlib import Path
from fuselens import live; from fuselens.record import diagnostics

follower = live.follower(True, Path(os.environ["FUSELENS_CACHE_DIR"]), "/f.py", "f", 1)
finding = diagnostics.make("FL201", what="f" * 1000)
(sender,) = follower.senders
follower.finding(finding)
print("begun", flush=True)
sys.stdin.readline()
calls = 20_000
for _ in range(calls):
    follower.finding(finding)
    assert len(sender._waiting) <= live.QUEUE
assert sender.dropped > calls // 2, sender.dropped
print("done", flush=True)
"""
FORKING = """\
import os
import fuselens, torch


@fuselens.compile
def f(x):
    return x.sin() + 1


f(torch.ones(3))
child = os.fork()
f(torch.ones(3, 4) if child else torch.ones(3, 4, 5))
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("done")
"""
SERVER = """\
import asyncio
from fuselens_server.work.live import LiveRuns


async def main():
    live = LiveRuns(lambda path, event: print(event.kind, flush=True))
    await live.start()
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
"""


# --- what arrives ---------------------------------------------------------------------------------------------------


async def test_a_run_tells_of_itself(listening: Listening):
    await listening.run(PROGRAM)
    await listening.until(lambda: listening.seen() and listening.seen().functions["f", 4].calls == 30)
    (function,) = listening.seen().functions.values()
    assert (function.missed, len(function.graphs)) == (1, 2)
    (finding,) = function.findings.values()
    assert (finding.diagnostic.code, finding.diagnostic.span.line, finding.count) == ("FL201", 6, 1)
    assert finding.diagnostic.message == "recompiled: `f`, because of x: expected f32[3], found f32[4]"
    (((name, span), tensors),) = [(k, v) for k, v in function.shapes.items() if k[0] == "y"]
    assert (name, span.line, [t.shape[0] for t in tensors][0]) == ("y", 6, "3")
    assert [t.shape for t in function.arguments["x"]] == [("3",), ("4",)]
    assert all(g.fastest * g.calls <= g.seconds for g in function.graphs.values())


async def test_processes_are_asked_by_variable_or_by_folder(listening: Listening):
    await listening.run(PROGRAM, live=None)
    listening.runs.announce([str(listening.directory / "other")])
    await listening.run(PROGRAM, live=None)
    listening.runs.announce([str(listening.directory)])
    await listening.run(PROGRAM, live="0")
    assert listening.heard == []
    await listening.run(PROGRAM, live=None)
    await listening.until(lambda: listening.seen() and listening.seen().functions["f", 4].calls == 30)


async def test_two_runs_at_once(listening: Listening):
    """Each keeps its own account; the one that came last to the file is shown."""
    first, second = await listening.launch(PAUSED), await listening.launch(PAUSED)
    for process in (first, second):
        await says(process, b"half\n")
    assert "done" in await ended(first, b"\n")
    assert "done" in await ended(second, b"\n")
    path = os.path.realpath(listening.directory / "program.py")
    await listening.until(lambda: [r.functions["f", 5].missed for r in listening.runs._files[path]] == [2, 2])
    assert listening.seen() is listening.runs._files[path][-1]


async def test_forked_children_belong_to_the_run(listening: Listening):
    assert "done" in await listening.run(FORKING)
    await listening.until(lambda: listening.seen().functions["f", 5].missed == 2)
    path = os.path.realpath(listening.directory / "program.py")
    (run,) = listening.runs._files[path]
    assert len({process for process, _ in run.functions["f", 5].graphs}) == 2
    assert {f.diagnostic.message.rpartition("found ")[2] for f in run.functions["f", 5].findings.values()} == {
        "f32[3, 4]", "f32[3, 4, 5]",
    }  # fmt: skip


NOT_FOLLOWED = """\
import threading
import fuselens, torch
from fuselens import api, live

f = fuselens.compile(lambda x: x.sin() + 1)
f(torch.ones(3))
recorder = f.__fuselens__.recorder
make = lambda captured: None
assert recorder.follower is None
assert api._followed(make, recorder) is make
assert [t.name for t in threading.enumerate()] == ["MainThread"]
assert live._run.cache_info().currsize == 0
print("done")
"""


async def test_a_run_that_nobody_follows_pays_nothing(listening: Listening):
    """No thread, and graphs are called directly."""
    assert "done" in await listening.run(NOT_FOLLOWED, live=None)
    assert "done" in await listening.run(NOT_FOLLOWED, live="0")


# --- servers in every state -----------------------------------------------------------------------------------------


async def test_without_a_server(listening: Listening):
    listening.runs.stop()
    assert "done" in await ended(await listening.launch(PAUSED), b"\n")


async def test_the_server_is_killed(listening: Listening):
    listening.runs.stop()
    server = await listening.launch(SERVER, "server.py")
    await says(server, b"ready\n")
    run = await listening.launch(PAUSED)
    await says(server, b"graph\n")
    await says(run, b"half\n")
    server.kill()
    await server.wait()
    assert "done" in await ended(run, b"\n")
    left = list(live.endpoints(listening.directory / "cache"))
    assert len(left) == 1  # nobody could take it back
    assert "done" in await ended(await listening.launch(PAUSED), b"\n")  # nobody listens there
    again = LiveRuns(lambda *_: None)
    await again.start()
    ((_, endpoint),) = live.endpoints(listening.directory / "cache")
    assert endpoint != left[0][1]
    assert not Path(left[0][1].socket).parent.exists()
    again.stop()
    assert list(live.endpoints(listening.directory / "cache")) == []


async def test_a_stopped_server_stops_no_run(listening: Listening):
    """What does not fit into the queue is dropped: each of the calls returns, however many there are."""
    listening.runs.stop()
    server = await listening.launch(SERVER, "server.py")
    await says(server, b"ready\n")
    flood = await listening.launch(FLOOD, "flood.py")
    await says(server, b"finding\n")
    await says(flood, b"begun\n")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert "done" in await ended(flood, b"\n")
        assert "done" in await ended(await listening.launch(PAUSED), b"\n")
    finally:
        server.kill()
        await server.wait()


# --- who may connect ------------------------------------------------------------------------------------------------


def modes(*paths: Path) -> list[int]:
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


async def test_only_the_user_can_reach_it(listening: Listening):
    ((file, endpoint),) = live.endpoints(listening.directory / "cache")
    path = Path(endpoint.socket)
    assert modes(file, file.parent, path, path.parent) == [0o600, 0o700, 0o600, 0o700]
    assert len(endpoint.token) == 32
    listening.runs.stop()
    assert not file.exists()
    assert not path.parent.exists()


async def test_endpoints_of_others_are_not_believed(listening: Listening):
    ((file, _),) = live.endpoints(listening.directory / "cache")
    file.chmod(0o640)
    assert list(live.endpoints(listening.directory / "cache")) == []
    file.chmod(0o600)
    (file.parent / "broken.json").write_text("{")
    (file.parent / "broken.json").chmod(0o600)
    assert len(list(live.endpoints(listening.directory / "cache"))) == 1
    file.parent.chmod(0o755)
    assert list(live.endpoints(listening.directory / "cache")) == []


def framed(message: object) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body


EVENT = wire.encode(Event("finding", "/f.py", "f", 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hello", "rest"),
    [
        (lambda token: wire.encode(Hello("wrong", "run", 1, "")), EVENT),
        (lambda token: wire.encode(Hello(token + "é", "run", 1, "")), EVENT),
        (lambda token: framed({"token": token}), EVENT),
        (lambda token: framed([1, 2]), EVENT),
        (lambda token: framed("word"), EVENT),
        (lambda token: b"\0\0\0\5junk!", EVENT),
        (lambda token: struct.pack(">I", LARGEST_MESSAGE + 1), b""),
        (lambda token: wire.encode(Hello(token, "run", 1, "")), framed({"kind": "finding", "file": 5})),
        (lambda token: wire.encode(Hello(token, "run", 1, "")), framed({"kind": "times", "calls": "many"})),
        (lambda token: wire.encode(Hello(token, "run", 1, "")), b"\xff\xff\xff\xff"),
    ],
)  # fmt: skip
async def test_strangers_and_nonsense_are_turned_away(
    listening: Listening, hello: Callable[[str], bytes], rest: bytes
) -> None:
    ((_, endpoint),) = live.endpoints(listening.directory / "cache")
    reader, writer = await asyncio.open_unix_connection(endpoint.socket)
    writer.write(hello(endpoint.token) + rest)
    try:
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""  # it hung up
    except ConnectionResetError:
        pass
    writer.close()
    assert listening.heard == []
    good = socket.socket(socket.AF_UNIX)
    good.connect(endpoint.socket)
    good.sendall(wire.encode(Hello(endpoint.token, "run", 1, "")) + EVENT)  # type: ignore[arg-type]
    await listening.until(lambda: [path for path, _ in listening.heard] == [os.path.realpath("/f.py")])
    good.close()


# --- in the editor --------------------------------------------------------------------------------------------------


async def test_the_editor_shows_the_last_run(new_editor: Any, tmp_path: Path):
    """A function without example inputs is compiled with what the run recorded; its recompilation is at its line."""
    environment = {"FUSELENS_CACHE_DIR": str(tmp_path / "cache")}
    editor = await new_editor().start(tmp_path, environment=environment, options={"live": True})
    try:
        file, found = await editor.open(tmp_path / "program.py", PROGRAM)
        assert [d.code for d in found] == ["FL921"]  # the program's own call
        ((_, endpoint),) = live.endpoints(tmp_path / "cache")
        assert endpoint.folders == (str(tmp_path),)
        live_environment = {k: v for k, v in os.environ.items() if k != "FUSELENS_LIVE"} | environment
        run = await asyncio.create_subprocess_exec(sys.executable, str(file.path), env=live_environment)
        assert await asyncio.wait_for(run.wait(), PATIENCE) == 0

        def shown() -> list[Any]:
            return [d for d in editor.diagnostics[file.uri].diagnostics if not d.code.startswith("FL4")]

        await editor.until(lambda: [d.code for d in shown()] == ["FL201"], PATIENCE)
        (recompiled,) = shown()
        assert file.at(recompiled.range) == "x.sin"
        assert "expected f32[3], found f32[4] (last run)" in recompiled.message
        for _ in range(200):
            titles = await file.titles()
            if any("30 calls" in title for title in titles):
                break
            await asyncio.sleep(0.1)
        assert any(t.startswith("last run: 30 calls · 1 recompile · ") for t in titles), titles
        assert "1 graph" in titles[1]
        assert "Seen in last run: `y`: `f32[3]`, `f32[" in (await file.hover("y = x") or "")
        assert "Seen in last run: `f32[3]`, `f32[4]`" in (await file.hover("x, *") or "")
        assert "**Last run**: 30 calls · 1 recompile" in (await file.hover("f(x, *") or "")
        file.insert(0, "# above\n")
        await editor.until(lambda: [d.range.start.line for d in shown()] == [6])
    finally:
        await editor.stop()
    assert list(live.endpoints(tmp_path / "cache")) == []
    assert not Path(endpoint.socket).parent.exists()
