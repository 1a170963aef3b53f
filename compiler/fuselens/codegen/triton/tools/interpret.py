"""Runs Triton kernels on the CPU under Triton's interpreter, in processes of their own.

``TRITON_INTERPRET`` takes effect when triton is imported, which takes seconds. So one process has imported it and runs
each list of jobs in a fork: ``python -m fuselens.codegen.triton.tools.interpret`` reads folders from its input.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....ir.contracts.source import KernelInfo, Source


@dataclass(slots=True)
class Job:
    """A kernel launch: the kernel's name, its tensors by storage (flat, modified in place) and its sizes."""

    source: Source
    kernel: str
    tensors: dict[str, Any]
    sizes: dict[str, int]
    grid: int


def interpret(jobs: Sequence[Job], seconds: int = 120) -> list[dict[str, Any]]:
    """The tensors of each job after its kernel ran. Raises RuntimeError with what the process wrote on stderr."""
    import torch

    with tempfile.TemporaryDirectory(prefix="fuselens-interpret-") as directory:
        place = Path(directory)
        torch.save(list(jobs), place / "jobs")
        process = _interpreter(os.getpid())
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{seconds} {place}\n")
        process.stdin.flush()
        if (status := process.stdout.readline()) != "0\n":
            raise RuntimeError((place / "errors").read_text("utf-8", "replace")[-4000:] or f"wait status {status}")
        return torch.load(place / "results", weights_only=False)


@functools.cache
def _interpreter(_of: int) -> subprocess.Popen[str]:
    """The process that runs the jobs of a process. It ends when its input does."""
    environment = {
        **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", __name__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip


def serve() -> None:
    """Runs what each line of the input names, and answers with the wait status."""
    from triton.runtime import interpreter  # noqa: F401 - what forks need

    from . import offline  # noqa: F401

    for line in sys.stdin:
        seconds, place = line.rstrip("\n").split(" ", 1)
        child = os.fork()
        if child == 0:
            signal.alarm(int(seconds))
            os.dup2(os.open(Path(place, "errors"), os.O_WRONLY | os.O_CREAT), 2)
            os.dup2(2, 1)
            status = 1
            try:
                run(Path(place))
                status = 0
            except Exception:  # noqa: BLE001 - whatever it is, the caller is told
                traceback.print_exc()
            finally:
                os._exit(status)
        print(os.waitpid(child, 0)[1], flush=True)


def run(place: Path) -> None:
    """Runs the jobs in a folder, and leaves their tensors there."""
    import torch

    from .offline import load_module

    modules: dict[str, Any] = {}
    results = []
    jobs: list[Job] = torch.load(place / "jobs", weights_only=False)
    for number, job in enumerate(jobs):
        module = modules.get(job.source.text)
        if module is None:
            module = modules[job.source.text] = load_module(job.source)
        info = job.source.kernel(job.kernel)
        assert info is not None
        tensors = [_as_kernels_see(job.tensors[a]) for a in info.arguments[: info.pointers]]
        try:
            if job.grid:
                launch = functools.partial(getattr(module, info.function)[(job.grid,)], *tensors)
                together(launch, module, info)(*(job.sizes[s] for s in info.sizes))
        except Exception as error:
            raise RuntimeError(f"job {number}, {job.kernel}:\n{job.source.text}") from error
        results.append(job.tensors)
    torch.save(results, place / "results")


def together(launch: Callable[..., None], module: Any, info: KernelInfo) -> Callable[..., None]:
    """``launch`` of a kernel whose programs may be clusters. The interpreter runs one program after the other, so they run
    until each knows what the others gave: again, on the memory that was there before, for each number that they give, of
    which they know one more every time."""
    programs = info.launch.get("cluster", 1)
    if programs == 1:
        return launch

    def repeated(*sizes: int) -> None:
        from triton.runtime.interpreter import interpreter_builder

        given: dict[tuple[int, int], Any] = {}  # by program, and which of its numbers
        asked: Counter[int] = Counter()
        known = 0

        def of_programs(x: Any) -> tuple[Any, ...]:
            program = interpreter_builder.grid_idx[0]
            number = asked[program]
            asked[program] += 1
            if number >= known:
                given[program, number] = x
                return (x,) * programs
            first = program // programs * programs
            return tuple(given[first + k, number] for k in range(programs))

        setattr(module, f"of_{programs}_programs", of_programs)
        module.leave_cluster = lambda: None
        while True:
            asked.clear()
            with _undoing(interpreter_builder) as undo:
                launch(*sizes)
            if known >= max(asked.values(), default=0):
                return
            known += 1
            undo()

    return repeated


@contextmanager
def _undoing(builder: Any) -> Iterator[Callable[[], None]]:
    """Gives what takes back the stores that programs do inside."""
    store, overwritten = builder.create_masked_store, []

    def keeping(places: Any, value: Any, mask: Any, *how: Any) -> Any:
        before = builder.create_masked_load(
            places, mask, None, *how, False
        )  # `how` is about caches: as many words as this Triton has
        overwritten.append((places, before, mask, *how))
        return store(places, value, mask, *how)

    def undo() -> None:
        for place in reversed(overwritten):
            store(*place)

    builder.create_masked_store = keeping
    try:
        yield undo
    finally:
        builder.create_masked_store = store


def _as_kernels_see(tensor: Any) -> Any:
    """Numbers of eight bits are bits."""
    import torch

    return tensor.view(torch.uint8) if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


if __name__ == "__main__":
    serve()
