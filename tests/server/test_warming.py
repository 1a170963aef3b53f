"""Warm files: the user's own run after a check builds nothing, and what is cold is remembered until it is built."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fuselens.record import diagnostics as codes
from fuselens.record import wire
from fuselens.record.report import FileReport, Graph, Report
from fuselens_server.client.settings import Settings
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.session import Document
from fuselens_server.work.turns import Urgency
from fuselens_server.work.warming import Warming
from fuselens_server.work.worker_pool import Environment, WorkerDiedError

FILE = """\
import fuselens
import torch


def example():
    return torch.ones(8, requires_grad=True), -torch.ones(8)


@fuselens.compile(example_inputs=example)
def toy(a, b):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    @fuselens.compile(example_inputs=lambda: (torch.ones(3, 4),))
    def forward(self, x):
        return torch.relu(self.linear(x)).sin() + torch.arange(4)


if __name__ == "__main__":
    toy(*example()).sum().backward()
    Layer()(torch.ones(3, 4)).sum().backward()
"""
COMPILER = """\
#!/bin/sh
[ "$1" = --version ] || echo run >> {log}
exec g++ "$@"
"""


async def test_a_run_after_a_check_builds_nothing(new_editor: Any, tmp_path: Path):
    cache, compiler = tmp_path / "cache", tmp_path / "compiler"
    log = cache / "log"  # a compiler that a check starts can write nowhere else
    compiler.write_text(COMPILER.format(log=log))
    compiler.chmod(0o755)
    environment = {"CXX": str(compiler), "FUSELENS_CACHE_DIR": str(cache)}
    editor = await new_editor().start(tmp_path, environment=environment)

    def messages() -> list[str]:
        return [s.message for s in editor.notifications["fuselens/status"]]

    try:
        file, found = await editor.open(tmp_path / "file.py", FILE)
        assert [d.code for d in found if not d.code.startswith("FL4")] == ["FL101"]
        await editor.until(lambda: any("building kernels of file.py" in m for m in messages()))
        await editor.until(lambda: messages()[-1] == "ready", 120)
        built, kept = log.read_text(), set(cache.rglob("*"))
        assert built
        run = [sys.executable, file.path.name]
        subprocess.run(run, cwd=tmp_path, env=os.environ | environment, check=True, timeout=120)
        assert log.read_text() == built
        added = {path.relative_to(cache).parts[0] for path in set(cache.rglob("*")) - kept}
        assert added == {"frame"}  # a check captures each frame, to show how; a run keeps what it captured
        for sides in ("1, -1", "-1, 1"):  # of the branch on data: the example goes one way only
            calls = f"[toy(example()[0], torch.ones(8) * s) for s in ({sides})]"
            text = FILE.replace("toy(*example())", f"sum({calls})")
            (tmp_path / "file.py").write_text(text)
            subprocess.run(run, cwd=tmp_path, env=os.environ | environment, check=True, timeout=120)
            assert log.read_text() == built
        (tmp_path / "file.py").write_text(FILE.replace("ones(3, 4)", "ones(5, 4)"))  # the test can tell
        subprocess.run(run, cwd=tmp_path, env=os.environ | environment, check=True, timeout=120)
        assert log.read_text() != built
    finally:
        await editor.stop()


RECORDED = """\
import fuselens
import torch


@fuselens.compile
def f(x, k):
    y = x.sin() * k
    print("a break")
    return y + 1


if __name__ == "__main__":
    x = torch.ones(6, 4, requires_grad=True)
    f(x, 2).sum().backward()
    with torch.no_grad():
        f(x * 2, 2)
        f(torch.ones(7, 4), 2)
    with torch.inference_mode():
        f(torch.ones(4), 3)
"""


async def test_a_followed_run_says_what_the_next_one_needs(new_editor: Any, tmp_path: Path):
    cache, compiler = tmp_path / "cache", tmp_path / "compiler"
    log = cache / "log"
    compiler.write_text(COMPILER.format(log=log))
    compiler.chmod(0o755)
    environment = {"CXX": str(compiler), "FUSELENS_CACHE_DIR": str(cache)}
    path = tmp_path / "file.py"
    path.write_text(RECORDED)
    followed = os.environ | environment | {"FUSELENS_LIVE": "1"}
    subprocess.run([sys.executable, path.name], cwd=tmp_path, env=followed, check=True, timeout=120)
    editor = await new_editor().start(tmp_path, environment=environment)
    try:
        await editor.open(path, RECORDED.replace("y + 1", "y.cos() - 1"))
        last = lambda: editor.notifications["fuselens/status"][-1].message  # noqa: E731
        await editor.until(lambda: last().startswith("building kernels"))
        await editor.until(lambda: last() == "ready", 120)
        built = log.read_text()
        subprocess.run([sys.executable, path.name], cwd=tmp_path, env=os.environ | environment, check=True, timeout=120)
        assert log.read_text() == built
    finally:
        await editor.stop()


class Pool:
    """Keeps requests; each ends when it is told to."""

    def __init__(self) -> None:
        self.requests: list[wire.Request] = []
        self.answer: asyncio.Future[wire.Event] | None = None

    async def submit(self, environment: Environment, request: wire.Request, progress: Any, urgency: Any) -> wire.Event:
        assert urgency() == Urgency.BACKGROUND
        self.requests.append(request)
        self.answer = asyncio.get_running_loop().create_future()
        return await self.answer

    async def end(self, outcome: wire.Event | Exception | None = None) -> None:
        await settle()
        assert self.answer is not None
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome or wire.Event(1, "result", file=FileReport("/f.py")))
        await settle()


class Client:
    settings = Settings()

    def __init__(self) -> None:
        self.published: list[Document] = []

    async def settled(self, path: str) -> tuple[Settings, Environment]:
        return self.settings, Environment("python")

    def of(self, path: str) -> Settings:
        return self.settings

    def publish(self, document: Document) -> None:
        self.published.append(document)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def compiled(name: str) -> Report:
    return Report(name, "/f.py", graphs=[Graph(0, name, None, 1)], fingerprint=name)


@pytest.fixture
def document() -> Document:
    made = Document("file:///f.py", "/f.py", 1, SourceText("text"))
    made.begin()
    made.finish(FileReport("/f.py", [compiled("f"), compiled("g"), Report("refused", "/f.py")]))
    return made


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def pool() -> Pool:
    return Pool()


async def test_what_was_built_is_cold_no_more(document: Document, client: Client, pool: Pool):
    warming = Warming(client, pool, lambda: None, client.publish)  # type: ignore[arg-type]
    warming.start(document)
    await pool.end()
    assert [(r.method, r.functions, r.source) for r in pool.requests] == [("warm", ("f", "g"), "text")]
    assert (document.cold, warming.documents) == (set(), [])
    document.begin()
    document.finish(FileReport("/f.py", [Report("f", "/f.py", fingerprint="f", unchanged=True), compiled("g")]))
    warming.start(document)
    await pool.end()
    assert pool.requests[-1].functions == ("g",)


async def test_what_was_not_built_stays_cold(document: Document, client: Client, pool: Pool):
    warming = Warming(client, pool, lambda: None, client.publish)  # type: ignore[arg-type]
    warming.start(document)
    await settle()
    document.begin()
    document.finish(FileReport("/f.py", [Report("f", "/f.py", fingerprint="f", unchanged=True), Report("g", "/f.py")]))
    warming.start(document)  # replaces the one under way
    await pool.end(WorkerDiedError("killed"))
    assert [r.functions for r in pool.requests] == [("f", "g"), ("f",)]
    assert (document.cold, warming.documents) == ({"f"}, [])
    warming.start(document)
    await settle()
    warming.cancel_all()
    await settle()
    assert (document.cold, warming.documents) == ({"f"}, [])


async def test_what_could_not_be_built_is_shown_once(document: Document, client: Client, pool: Pool):
    warming = Warming(client, pool, lambda: None, client.publish)  # type: ignore[arg-type]
    failure = codes.make("FL402", None, what="graph of f", why="it did not compile")
    for _ in range(2):
        document.cold = {"f"}
        warming.start(document)
        await pool.end(wire.Event(1, "result", file=FileReport("/f.py", [Report("f", "/f.py", diagnostics=[failure])])))
    assert client.published == [document]
    assert document.checked
    assert document.checked.report.functions[0].diagnostics == [failure]


async def test_it_can_be_switched_off(document: Document, client: Client, pool: Pool):
    client.settings = Settings(warm_files=False)
    warming = Warming(client, pool, lambda: None, client.publish)  # type: ignore[arg-type]
    warming.start(document)
    await settle()
    assert pool.requests == []
