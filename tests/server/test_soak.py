"""Many saves of many files while processes are killed at random: nothing leaks, and in the end all is as if nothing
had happened. ``make sweep`` runs it at its full length (``FUSELENS_SOAK=saves,files``)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

from tests.server.processes import descendants, marked

HEAD = "import fuselens\nimport torch\n\n\ndef example():\n    return (torch.ones(8),)\n\n\n"
FUNCTION = "@fuselens.compile(example_inputs=example)\ndef f{0}(x):\n{1}    y = x.sin() * {2}\n    return y + {0}\n\n\n"
BODIES = (
    "",
    "    # why\n",
    "    print(x)\n",
    "    if x.sum() > 0:\n        x = -x\n",
    "    x = x.tolist()[0] + x\n",
    "    import shared\n    x = shared.scaled(x)\n",
    "\n\n",
)
ENDINGS = (
    "", "", "", "", "", "", "x = (\n", "raise ValueError('no')\n", "import os\nos.abort()\n", "# é 😀\n", "import shared\n",
    "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n", "import time\ntime.sleep(1)\n",
)  # fmt: skip
SHARED = "def scaled(x):\n    return x * {0}\n"

CENSUS = """
import collections, gc, json, sys
from fuselens_server import __main__, registration

def counted():
    server = registration.create()

    @server.command("soak.census")
    def census(ls):
        gc.collect()
        kinds = collections.Counter(type(o).__name__ for o in gc.get_objects() if ours(type(o)))
        return json.dumps([sys.getallocatedblocks(), kinds])

    return server

def ours(kind):
    return str(kind.__module__).partition(".")[0] in ("fuselens", "fuselens_server", "_asyncio")

__main__.create = counted
sys.exit(__main__.main([]))
"""  # a server that counts its objects on request

CACHED = {"Names"}  # of a few imported modules, whoever imports them


# --- processes, as /proc shows them ----------------------------------------------------------------------------------


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def _resident_mib(pid: int) -> float:
    return _status(pid, "RssAnon") / 1024


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@dataclass(frozen=True)
class State:
    """What a server takes up."""

    resident: float  # MiB
    descriptors: int
    threads: int
    blocks: int  # of Python's memory
    kinds: dict[str, int]  # its objects of our types, and its tasks

    @classmethod
    async def of(cls, editor: Any) -> State:
        pid = editor.process.pid
        census = await editor.execute("soak.census")
        return cls(_resident_mib(pid), _descriptors(pid), _status(pid, "Threads"), *json.loads(census))

    def __str__(self) -> str:
        kinds = {
            name: self.kinds.get(name, 0) for name in ("Document", "Report", "TrackedText", "Span", "Task", "_Entry")
        }
        return f"{self.resident:.1f} MiB, {self.blocks} blocks, {self.descriptors} descriptors, {self.threads} threads, {kinds}"


# --- the editor's side -----------------------------------------------------------------------------------------------


async def idle(editor: Any, seconds: float, background: bool = False) -> None:
    """Until no file is being checked (nor anything done in the background), and that has been so for a while."""
    states = editor.notifications["fuselens/status"]
    until, since = time.monotonic() + seconds, time.monotonic()
    before: Any = None
    while time.monotonic() - since < 1.5:
        await asyncio.sleep(0.1)
        now = editor.publications, len(states) if background else 0
        busy = (
            not states
            or states[-1].state in ("compiling", "starting")
            or (background and states[-1].message != "ready")
        )
        if now != before or busy:
            before, since = now, time.monotonic()
        assert time.monotonic() < until, states[-1]


class Person:
    """Opens, edits, saves, renames and closes files at random."""

    def __init__(self, editor: Any, root: Path, files: int, seed: int) -> None:
        self.editor, self.root = editor, root
        self.random = random.Random(seed)
        self.names = [root / f"file{k}.py" for k in range(files)]
        self.opened: dict[Path, Any] = {}
        self.looking: list[asyncio.Task[Any]] = []
        self.saves = 0
        self.kills = Counter[str]()
        self.write_shared()

    def write_shared(self) -> None:
        (self.root / "shared.py").write_text(SHARED.format(self.random.randint(1, 3)))

    def text(self) -> str:
        functions = self.random.sample(range(4), self.random.randint(0, 3))
        made = [FUNCTION.format(k, self.random.choice(BODIES), self.random.randint(1, 3)) for k in functions]
        return HEAD + "".join(made) + self.random.choice(ENDINGS)

    def open(self, path: Path) -> None:
        if not path.exists():
            path.write_text(self.text())
        self.opened[path] = self.editor.show(path)

    def save(self, path: Path) -> None:
        file = self.opened[path]
        path.write_text(file.text)
        self.editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
        self.saves += 1

    def rename(self, path: Path) -> None:
        """In the editor: closed under one name, opened under another."""
        self.opened.pop(path).close()
        other = path.with_name(
            path.name.replace("file", "renamed") if "file" in path.name else path.name.replace("renamed", "file")
        )
        self.names[self.names.index(path)] = other
        if path.exists():
            path.rename(other)
        self.open(other)

    async def look(self, path: Path) -> None:
        file = self.opened[path]
        await file.lenses()
        await file.hints()
        await file.hover("x.sin()" if "x.sin()" in file.text else "torch")

    def act(self) -> None:
        path = self.random.choice(self.names)
        if path not in self.opened:
            return self.open(path)
        file = self.opened[path]
        what = self.random.random()
        if what < 0.03:
            self.opened.pop(path).close()
        elif what < 0.06:
            self.rename(path)
        elif what < 0.08:
            path.unlink(missing_ok=True)
        elif what < 0.1:
            self.write_shared()
        elif what < 0.2:
            file.insert(self.random.randint(0, 8), self.random.choice(("\n", "# more\n", "x = 1\n", "(\n")))
        elif what < 0.25:
            self.looking.append(asyncio.create_task(self.look(path)))
        elif what < 0.253:
            self.looking.append(asyncio.create_task(self.editor.execute("fuselens.server.restartWorker")))
        else:
            file.replace(self.text() if self.random.random() < 0.8 else file.text)
            self.save(path)
        return None

    def close_all(self) -> None:
        for file in self.opened.values():
            file.close()
        self.opened.clear()

    def kill(self) -> None:
        """A worker, a child of one, or what a child runs: a compiler, say."""
        workers = self.editor.worker_pids()
        below = [pid for worker in workers for pid in descendants(worker)]
        victims = self.random.choice((workers, below, below[-1:]))
        if victims:
            victim = self.random.choice(victims)
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{victim}/comm").read_text().strip()
                os.kill(victim, signal.SIGKILL)
                self.kills["worker" if victim in workers else name] += 1


async def shown(editor: Any, opened: dict[Path, Any]) -> dict[str, list[str]]:
    """File → what is said about it. The lenses and hints of one that could not be checked are those of an earlier text."""
    found: dict[str, list[str]] = {}
    for path, file in opened.items():
        published = editor.diagnostics.get(file.uri)
        every = published.diagnostics if published else []
        found[path.name] = sorted(map(repr, every))
        if all(d.severity != lsp.DiagnosticSeverity.Error for d in every):
            found[path.name] += [*await file.titles(), *map(repr, await file.hints())]
    return found


async def soak(new_editor: Any, root: Path, saves: int, files: int, seed: int) -> None:
    mark, begun = uuid.uuid4().hex, time.monotonic()
    project, temporary, cache = (root / name for name in ("project", "temporary", "cache"))
    for folder in (project, temporary):
        folder.mkdir()
    environment = {"SOAK": mark, "TMPDIR": str(temporary), "FUSELENS_CACHE_DIR": str(cache)}
    editor = await new_editor().start(project, None, environment, (sys.executable, "-P", "-c", CENSUS))
    person = Person(editor, project, files, seed)
    states: list[State] = []

    async def measure(what: str) -> State:
        states.append(await State.of(editor))
        print(f"{time.monotonic() - begun:.0f} s, {what}: {dict(person.kills)}, {states[-1]}", flush=True)
        return states[-1]

    try:
        person.names[0].write_text(HEAD + FUNCTION.format(0, BODIES[3], 1))
        person.open(person.names[0])
        await idle(editor, 120, background=True)
        person.close_all()
        await idle(editor, 60)
        empty = await measure("nothing open")
        for path in person.names:
            person.open(path)
        steady = None
        while person.saves < saves:
            before = person.saves
            person.act()
            if person.random.random() < 0.1:
                person.kill()
            await asyncio.sleep(person.random.choice((0, 0, 0, 0.05, 0.2, 0.6)))
            if person.saves != before and person.saves % max(1, saves // 10) == 0:
                await idle(editor, 600)
                now = await measure(f"{person.saves} saves")
                steady = steady or now
        assert steady is not None
        await asyncio.gather(*person.looking)
        for path in person.opened:  # what died with a process is shown until the next save, so each is saved once more
            person.save(path)
        await idle(editor, 600)
        await idle(editor, 1200, background=True)
        found = await shown(editor, person.opened)
        late = await measure("end")
        assert late.resident <= steady.resident * 1.25 + 4
        assert late.descriptors <= steady.descriptors + 2
        assert late.threads <= steady.threads + 4  # threads for large reports come as they are needed
        (worker,) = editor.worker_pids()
        assert _descriptors(worker) <= 6
        assert marked(mark) == {editor.process.pid, worker}
        paths = list(person.opened)
        person.close_all()
        await idle(editor, 60)
        closed = await measure("all closed")
        assert {k: n for k, n in closed.kinds.items() if k not in CACHED and n > empty.kinds.get(k, 0)} == {}
        assert closed.blocks <= empty.blocks * 1.25
        assert [line for line in editor.log if "fuselens_server.work.worker_pool: worker" not in line] == []
    finally:
        await editor.stop()
    assert marked(mark) == set()
    assert [path for path in temporary.iterdir() if not path.name.startswith("torch")] == []
    fresh = await new_editor().start(project, {"tryFixes": False, "warmFiles": False}, environment)
    try:
        again = {path: fresh.show(path) for path in paths}
        await idle(fresh, 600)
        other = await shown(fresh, again)
        assert {name: (found[name], other[name]) for name in found if found[name] != other[name]} == {}
    finally:
        await fresh.stop()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(600)
async def test_a_short_soak(new_editor, tmp_path):
    await soak(new_editor, tmp_path, saves=40, files=6, seed=20)


@pytest.mark.sweep
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.timeout(7200)
async def test_a_thousand_saves(new_editor, tmp_path):
    saves, files = map(int, os.environ.get("FUSELENS_SOAK", "1000,50").split(","))
    await soak(new_editor, tmp_path, saves, files, int(os.environ.get("FUSELENS_SWEEP_SEED", "1") or 1))
