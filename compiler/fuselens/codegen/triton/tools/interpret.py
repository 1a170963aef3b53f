"""Runs Triton kernels on the CPU under Triton's interpreter, in a process of its own.

``TRITON_INTERPRET`` takes effect when triton is imported, so the kernels run in a fresh process:
``python -m fuselens.codegen.triton.tools.interpret JOB``, where JOB is a file that holds the sources and the arguments.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
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


def interpret(jobs: Sequence[Job], timeout: float = 120) -> list[dict[str, Any]]:
    """The tensors of each job after its kernel ran. Raises RuntimeError with the child's stderr."""
    import torch

    with tempfile.TemporaryDirectory(prefix="fuselens-interpret-") as directory:
        place = Path(directory)
        torch.save(list(jobs), place / "jobs")
        environment = {
            **os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        }  # fmt: skip
        command = [sys.executable, "-m", __name__, str(place / "jobs"), str(place / "results")]
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr[-4000:])
        return torch.load(place / "results", weights_only=False)


def main(job_file: str, result_file: str) -> None:
    import torch

    from .offline import load_module

    modules: dict[str, Any] = {}
    results = []
    jobs: list[Job] = torch.load(job_file, weights_only=False)
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
    torch.save(results, result_file)


def together(launch: Callable[..., None], module: Any, info: KernelInfo) -> Callable[..., None]:
    """``launch`` of a kernel whose programs may be clusters. The interpreter runs one program after the other, so they run
    until each knows what the others gave: again, on the memory that was there before, for each number that they give, of
    which they know one more every time."""
    programs = info.launch.get("cluster", 1)
    if programs == 1:
        return launch

    def run(*sizes: int) -> None:
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

    return run


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
    main(sys.argv[1], sys.argv[2])
