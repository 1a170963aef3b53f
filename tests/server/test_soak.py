"""Many saves of many files while workers are killed at random: nothing leaks, and in the end all is as if nothing
had happened. ``make sweep`` runs it at its full length (``FUSELENS_SOAK=saves,files``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp

HEAD = "import fuselens\nimport torch\n\n\ndef example():\n    return (torch.ones(8),)\n\n\n"
FUNCTION = "@fuselens.compile(example_inputs=example)\ndef f{0}(x):\n{1}    y = x.sin() * {2}\n    return y + {0}\n\n\n"
BODIES = (
    "",
    "    # why\n",
    "    print(x)\n",
    "    if x.sum() > 0:\n        x = -x\n",
    "    x = x.tolist()[0] + x\n",
    "\n\n",
)
ENDINGS = ("", "", "", "", "x = (\n", "raise ValueError('no')\n", "import os\nos.abort()\n", "# é 😀\n")


class Project:
    """Files whose texts change at random."""

    def __init__(self, root: Path, files: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.paths = [root / f"file{k}.py" for k in range(files)]

    def text(self) -> str:
        functions = self.random.sample(range(4), self.random.randint(0, 3))
        made = [FUNCTION.format(k, self.random.choice(BODIES), self.random.randint(1, 3)) for k in functions]
        return HEAD + "".join(made) + self.random.choice(ENDINGS)


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _children(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def shown(editor: Any, opened: dict[Path, Any]) -> dict[str, list[tuple[Any, ...]]]:
    """File → what is said about it."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for path, file in opened.items():
        published = editor.diagnostics.get(file.uri)
        every = published.diagnostics if published else []
        found[path.name] = sorted(((d.code, d.message, d.severity, repr(d.range)) for d in every), key=repr)
    return found


async def quiet(editor: Any) -> None:
    """Until nothing has been published for a while and no file is being compiled."""
    states = editor.notifications["fuselens/status"]
    still = 0
    while still < 20:
        before = len(states), sum(len(p.diagnostics) for p in editor.diagnostics.values()), editor.publications
        await asyncio.sleep(0.1)
        after = len(states), sum(len(p.diagnostics) for p in editor.diagnostics.values()), editor.publications
        still = still + 1 if before == after and states and states[-1].state == "ready" else 0


async def soak(new_editor: Any, root: Path, saves: int, files: int, seed: int) -> None:
    project = Project(root, files, seed)
    chance = project.random
    editor = await new_editor().start(root)
    opened: dict[Path, Any] = {}
    measured: list[tuple[float, int]] = []
    try:
        for count in range(saves):
            path = chance.choice(project.paths)
            if path not in opened:
                path.write_text(project.text())
                opened[path] = editor.show(path)
            elif chance.random() < 0.05:
                opened.pop(path).close()
                continue
            else:
                file = opened[path]
                file.replace(project.text())
                path.write_text(file.text)
                editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
            if chance.random() < 0.03:
                for worker in editor.worker_pids():
                    victims = [worker] if chance.random() < 0.5 else _children(worker)
                    for victim in victims[:1]:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(victim, signal.SIGKILL)
            await asyncio.sleep(chance.choice((0, 0, 0.05, 0.3)))
            if count % max(1, saves // 8) == 0:
                await quiet(editor)
                measured.append((_resident_mib(editor.process.pid), _descriptors(editor.process.pid)))
        for file in opened.values():  # what died with a worker is shown until the next save, so each is saved once more
            editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
        await quiet(editor)
        found = shown(editor, opened)
        (worker,) = editor.worker_pids()
        assert _children(worker) == []
        assert set(_children(editor.process.pid)) == {worker}
        early, late = (
            measured[len(measured) // 3],
            (_resident_mib(editor.process.pid), _descriptors(editor.process.pid)),
        )
        assert late[1] <= early[1] + 4, measured
        assert late[0] <= early[0] * 1.25 + 8, measured
        assert _descriptors(worker) < 40
    finally:
        await editor.stop()
    fresh = await new_editor().start(root)
    try:
        again = {path: fresh.show(path) for path in opened}
        await quiet(fresh)
        assert found == shown(fresh, again)
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
