"""What is superseded makes place: many saves cost little more than the last one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import psutil
import pytest
from lsprotocol import types as lsp

from fuselens.record import wire
from fuselens_server.work.worker_pool import Environment, WorkerPool

from .conftest import Editor

pytestmark = pytest.mark.asyncio(loop_scope="module")
LOOP = "import fuselens\nwhile True: pass\n@fuselens.compile\ndef f(x): return x\n"
HEAD = """\
import fuselens
from jaxtyping import Float32
from torch import Tensor
@fuselens.compile
def f(x: Float32[Tensor, "8"]):
"""


async def test_of_a_cancelled_request_nothing_runs_on(tmp_path: Path) -> None:
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    pool = WorkerPool(lambda _: None)
    try:
        for _ in range(3):
            begun = asyncio.Event()

            def heard(event: wire.Event, begun: asyncio.Event = begun) -> None:
                if event.kind == "progress":
                    begun.set()

            request = wire.Request(0, "check", str(path), options={"execution": "import"})
            task = asyncio.create_task(pool.submit(Environment(sys.executable, str(tmp_path)), request, heard))
            await asyncio.wait_for(begun.wait(), 180)
            (worker,) = pool.pids
            assert len(psutil.Process(worker).children()) == 1
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            _, alive = psutil.wait_procs(psutil.Process(worker).children(recursive=True), 5)  # it was killed already
            assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        await pool.close()


async def test_after_many_saves_the_findings_of_the_last_text_stand(editor, tmp_path):
    file, _ = await editor.open(tmp_path / "storm.py", HEAD + "    return x\n")
    for k in range(40):
        file.path.write_text(text := HEAD + "    # more\n" * k + "    print(x)\n    return x\n")
        file.replace(text)
        editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))

    def found() -> list[int]:
        known = editor.diagnostics[file.uri].diagnostics
        return [d.range.start.line for d in known if d.code == "FL103" and not d.data.get("predicted")]

    await editor.until(lambda: found() == [44], 60)


async def test_a_check_that_makes_place_shows_nothing_more(tmp_path):
    """Each save moves the finding by a line, at another moment of the check before, whose worker is slow to end it."""
    editor = await Editor().start(tmp_path)
    try:
        file, _ = await editor.open(tmp_path / "slow.py", _with_kernels(1))
        (worker,) = map(psutil.Process, editor.worker_pids())
        shown: set[tuple[int | None, int]] = set()

        async def watch(seconds: float) -> None:
            end = asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < end:
                known = editor.diagnostics[file.uri]
                shown.update((known.version, d.range.start.line) for d in known.diagnostics if d.code == "FL103")
                await asyncio.sleep(0.01)

        for version in range(2, 10):
            file.path.write_text(text := _with_kernels(version))
            file.replace(text)
            editor.client.text_document_did_save(lsp.DidSaveTextDocumentParams(file.identifier))
            await watch(0.3 + 0.1 * version)
            worker.suspend()
            asyncio.get_running_loop().call_later(0.6, worker.resume)
        await watch(3)
        assert shown
        assert {(version, line) for version, line in shown if version is not None and line != 5 + version} == set()
    finally:
        await editor.stop()


def _with_kernels(lines: int) -> str:
    """A break below so many lines, among kernels that no cache has."""
    kernels = "".join(f"    x = (x * {lines}.{k} + {k}).softmax(0).cumsum(0)\n" for k in range(1, 40))
    return HEAD + "    # more\n" * lines + "    print(x)\n" + kernels + "    return x\n"


async def test_what_a_cold_worker_does_is_said_and_predictions_come_first(tmp_path):
    """Before torch is imported there are only predictions, from the source."""
    editor = await Editor().start(tmp_path)
    try:
        await _opened_cold(editor, tmp_path)
    finally:
        await editor.stop()


async def _opened_cold(editor: Editor, tmp_path: Path) -> None:
    path = tmp_path / "cold.py"
    path.write_text(HEAD + "    print(x)\n    return x\n")
    file = editor.show(path)
    await editor.until(lambda: file.uri in editor.diagnostics, 60)
    first = editor.diagnostics[file.uri].diagnostics
    states = [(status.state, status.message) for status in editor.notifications["fuselens/status"]]
    assert [(d.code, d.data.get("predicted")) for d in first] == [("FL103", True)]
    assert {state for state, _ in states} == {"starting"}

    def settled() -> bool:
        found = editor.diagnostics[file.uri].diagnostics
        return [d.data.get("predicted") for d in found if d.code == "FL103"] == [None]

    await editor.until(settled, 120)
    states = [(status.state, status.message) for status in editor.notifications["fuselens/status"]]
    said = [message for state, message in states if state == "starting"]
    assert [m.split()[0] for m in said] == ["starting", "importing", "starting"]
    assert all(word in said[1] for word in ("torch 2.", "Python 3."))
    assert ("compiling", "compiling cold.py") in states
