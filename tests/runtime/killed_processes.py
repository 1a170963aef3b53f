"""Processes that share a cache and are killed with -9 while they compile.

    python killed_processes.py FOLDER COMPILATIONS KILLS SEED

A process of its own, because what it forks must have no threads of OpenMP.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import fuselens
from fuselens import config

PROCESSES = 4
SEED = int(sys.argv[4])
_STEPS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x.exp(),
    lambda x: x.sin() * 3,
    lambda x: x.softmax(1),
    lambda x: x - x.mean(0),
    lambda x: x.cumsum(1),
    lambda x: torch.where(x > 0, x, 0.5),
)


def _function(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """One of some hundreds of programs: equal numbers are equal programs, so that processes meet in the cache."""
    choice = random.Random(number)
    steps = choice.choices(_STEPS, k=choice.randint(1, 4))

    def program(x: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x)
        return x.sum(1)

    return program


def _work(folder: Path, seed: int, done: Any, wrong: Any) -> None:
    """Compiles programs until it is killed; counts those whose values are eager's, and others."""
    choice = random.Random(seed)
    torch.set_num_threads(1)
    with config.patch(cache_dir=folder):
        while True:
            fuselens.reset()
            program, x = _function(choice.randrange(200)), torch.linspace(-1, 1, 12).reshape(3, 4)
            right = torch.allclose(fuselens.compile(program)(x), program(x), rtol=1e-4, atol=1e-5)
            counter = done if right else wrong
            with counter.get_lock():
                counter.value += 1


def _killed(folder: Path, compilations: int, kills: int) -> tuple[int, int, int]:
    """Compilations that were right and wrong, and processes that were killed: at least so many of each."""
    context = multiprocessing.get_context("fork")
    done, wrong = context.Value("i", 0), context.Value("i", 0)
    choice, running, killed = random.Random(SEED), [], 0
    while done.value + wrong.value < compilations or killed < kills:
        while len(running) < PROCESSES:
            process = context.Process(target=_work, args=(folder, choice.random(), done, wrong), daemon=True)
            process.start()
            running.append(process)
        time.sleep(choice.uniform(0.05, 1.2))
        victim = running.pop(choice.randrange(len(running)))
        assert victim.is_alive(), f"it ended by itself, with {victim.exitcode}"
        if not done.get_lock().acquire(timeout=60):  # a process that dies with the counter's lock would keep it
            raise AssertionError("a worker hangs")
        os.kill(victim.pid or 0, signal.SIGKILL)
        done.get_lock().release()
        victim.join()
        killed += 1
    for process in running:
        with done.get_lock():
            process.kill()
        process.join()
    return done.value, wrong.value, killed


if __name__ == "__main__":
    print(*_killed(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
