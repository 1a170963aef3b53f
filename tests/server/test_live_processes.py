"""Live runs of programs as they are: kernels that are timed, threads, workers, notebooks, runs that are killed."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from lsprotocol import types as lsp

from fuselens_server.features import last_run
from fuselens_server.features.diagnostics import diagnostics
from fuselens_server.features.hover import hover
from fuselens_server.texts import executed_cells
from fuselens_server.texts.convert import SourceText
from fuselens_server.texts.notebooks import Cell, Notebook
from fuselens_server.texts.session import Session
from tests.server.listening import Listening, ended, says

TIMED = """\
import time
import fuselens, torch
from fuselens import live


@fuselens.compile
def f(x, w):
    y = (x.sin() + 1).sum(1, keepdim=True)
    z = (x * y).relu() @ w
    return (z.exp() + 1) / z.sum()


live.REST, live.WORTH = 0.01, 2
x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)


def step():
    w.grad = None
    result = f(x, w)
    result.sum().backward()
    return result.detach(), w.grad


first = step()
clock = live._run().clock
end = time.monotonic() + 60
while not (len(clock.graphs) == 2 and all(n for g in clock.graphs for n, _ in g.taken)) and time.monotonic() < end:
    assert all(torch.equal(a, b) for a, b in zip(first, step()))
live.REST = 600.0
time.sleep(0.1 + sum(live.TURNS))  # a turn that has begun ends
for armed in (True, False):
    for graph in clock.graphs:
        assert graph.probe.arm() if armed else graph.probe.disarm() is None
    assert all(torch.equal(a, b) for a, b in zip(first, step()))
before = [g.probe.read() for g in clock.graphs]
step()
assert before == [g.probe.read() for g in clock.graphs]  # nothing is timed in between
time.sleep(0.6)
print("done")
"""
THREADS = """\
import threading
import fuselens, torch


@fuselens.compile
def f(x):
    return x.sin() + 1


def work(n):
    x = torch.full((n,), float(n))
    for _ in range(50):
        assert torch.allclose(f(x), x.sin() + 1)


f(torch.ones(2))
threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3, 4, 5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""
WORKERS = """\
import fuselens, torch
from torch.utils.data import DataLoader, Dataset


@fuselens.compile
def augmented(x):
    return x.sin() + 1


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return augmented(torch.full((3,), float(i)))


augmented(torch.ones(3))
loader = DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork")
for _ in range(2):
    found = torch.cat(list(loader))
    assert torch.allclose(found, torch.arange(8.0).sin()[:, None].expand(8, 3) + 1)
print("done")
"""
KERNEL = """\\
import hashlib, json, linecache, os, sys, types

# As Jupyter's kernel and IPython run cells: a name by the text's digest, the text kept for tracebacks, magics as calls.
namespace = {"__name__": "__main__", "get_ipython": lambda: types.SimpleNamespace(run_line_magic=lambda *_: None)}
for number, line in enumerate(sys.stdin):
    text, digest = json.loads(line), hashlib.sha1(line.encode()).hexdigest()[:12]
    name = f"/tmp/ipykernel_{os.getpid()}/{digest}.py" if JUPYTER else f"<ipython-input-{number}-{digest}>"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    exec(compile(text, name, "exec"), namespace)
    print("ran", flush=True)
"""
CELLS = (
    "%matplotlib inline\nimport fuselens, torch",
    "\n@fuselens.compile\ndef f(x):\n    y = x.sin() * 2\n    return y",
    "for n in (3, 4):\n    f(torch.ones(n))",
)
RAN = (
    "get_ipython().run_line_magic('matplotlib', 'inline')\nimport fuselens, torch\n",
    f"{CELLS[1].strip()}\n",
    CELLS[2],
)
ENDLESS = """\
import fuselens, torch


@fuselens.compile
def f(x):
    return x.sin() + 1


f(torch.ones(3))
f(torch.ones(4))
print("begun", flush=True)
while True:
    f(torch.ones(4))
"""


async def test_kernels_are_timed(listening: Listening):
    assert "done" in await listening.run(TIMED)
    await listening.until(lambda: listening.seen() and len(listening.seen().functions["f", 6].kernels()) >= 3)
    kernels = listening.seen().functions["f", 6].kernels()
    assert {phase for phase, *_ in kernels} == {"forward", "backward"}
    assert all(k.calls > 0 and k.seconds > 0 for k in kernels.values())
    lines = [{s.line for s in k.spans} for (phase, *_), k in kernels.items() if phase == "forward"]
    assert set().union(*lines) == {8, 9, 10}
    assert any(
        {8, 9} <= together for together in lines
    )  # one may also have the product of line 9, as of small matrices
    assert not any({8, 10} <= together for together in lines)


async def test_threads(listening: Listening):
    assert "done" in await listening.run(THREADS)
    await listening.until(lambda: listening.seen() and listening.seen().functions["f", 5].calls >= 190)
    assert listening.seen().functions["f", 5].calls <= 201


async def test_workers_of_a_data_loader(listening: Listening):
    """Forked while the parent is connected: they tell by connections of their own, as processes of the same run."""
    assert "done" in await listening.run(WORKERS)
    await listening.until(lambda: listening.seen() and listening.seen().functions["augmented", 5].calls == 17)
    (run,) = listening.runs._files[os.path.realpath(listening.directory / "program.py")]
    assert len({process for process, _ in run.functions["augmented", 5].graphs}) == 5


async def test_a_run_that_is_killed_leaves_what_it_said(listening: Listening):
    run = await listening.launch(ENDLESS)
    await says(run, b"begun\n")
    await listening.until(lambda: listening.seen() and listening.seen().functions["f", 4].missed == 1)
    await listening.until(lambda: listening.seen().functions["f", 4].calls > 2)
    run.kill()
    await run.wait()
    await listening.until(lambda: not listening.runs.connections)
    seen = listening.seen()
    assert seen.functions["f", 4].missed == 1
    again = await listening.launch(ENDLESS.replace("while True", "for _ in range(3)"))
    await ended(again)
    await listening.until(lambda: listening.seen() is not seen and listening.seen().functions["f", 4].calls == 5)


@pytest.mark.parametrize("jupyter", [True, False])
async def test_cells_of_a_notebook(listening: Listening, jupyter: bool):
    """A kernel's names of cells are none that an editor knows: what they say is shown where the text is."""
    path = str(listening.directory / "book.ipynb")
    cells = [Cell(f"{path}#{k}", 1, SourceText(text)) for k, text in enumerate(CELLS)]
    book, session = Notebook(f"file://{path}", path, 1, cells, "utf-16"), Session()
    session.add(book, book.uris)
    listening.runs.cell_of = lambda text: executed_cells.find([book], text)
    kernel = await listening.launch(KERNEL.replace("JUPYTER", str(jupyter)), "kernel.py")

    async def run(*texts: str) -> Any:
        assert kernel.stdin is not None
        for text in texts:
            kernel.stdin.write(json.dumps(text).encode() + b"\n")
            await says(kernel, b"ran\n")

    def shown() -> tuple[str, list[tuple[str, int]], str]:
        seen = listening.runs.seen(path)
        if seen is None:
            return "", [], ""
        book.observe(seen)
        view = session.view(book)
        (f,) = view.annotated
        found = [(str(d.code), d.range.start.line) for d in diagnostics(view) if d.code == "FL201"]
        y = SourceText(book.text.text).position(book.text.text.index("y = x"))
        about = hover(view, lsp.Position(y.line, y.character))
        text = about.contents.value if about and isinstance(about.contents, lsp.MarkupContent) else ""
        return last_run.title(view, f).rpartition(" · ")[0], found, text

    await run(*RAN)
    await listening.until(lambda: shown()[0] == "last run: 2 calls · 1 recompile")
    assert shown()[1] == [("FL201", 5)]  # of the module: two lines, an empty one, the decorator and the head before
    assert "Seen in last run: `y`: `f32[3]`" in shown()[2]

    cells[0].text = SourceText(CELLS[0] + "\nimport math")
    cells[1].text = SourceText("# above\n" + CELLS[1] + "  # behind")
    book.change_cells(lsp.NotebookDocumentCellChanges(), 2)
    assert shown()[1] == []  # the edits touch all there is, but for what is between them
    cells[1].text = SourceText("# above\n" + CELLS[1])
    book.change_cells(lsp.NotebookDocumentCellChanges(), 3)
    assert shown()[1] == [("FL201", 7)]

    await run(cells[1].text.text, "f(torch.ones(5))")
    await listening.until(lambda: shown()[0] == "last run: 1 call")
    assert shown()[1] == []
    cells[1].text = SourceText("# other\n" + cells[1].text.text.replace("* 2", "* 3"))
    book.change_cells(lsp.NotebookDocumentCellChanges(), 4)
    assert shown()[2] == ""
