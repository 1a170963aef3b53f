"""Live runs of programs as they are: kernels that are timed, threads, workers, notebooks, runs that are killed."""

from __future__ import annotations

import os

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
    assert {phase for phase, _ in kernels} == {"forward", "backward"}
    assert all(k.calls > 0 and k.seconds > 0 for k in kernels.values())
    forward = {line: k for (phase, _), k in kernels.items() if phase == "forward" for line in {s.line for s in k.spans}}
    assert set(forward) == {8, 9, 10}
    assert forward[8] is forward[9]
    assert forward[10] is not forward[8]


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
