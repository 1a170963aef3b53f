"""How long single kernels take, in calls of their own: what is measured here disturbs no other figure.

On the CPU a copy of each graph's unit looks at the clock around its kernels (:mod:`fuselens.runtime.kernel_times`). On a GPU
torch's profiler says how long each kernel ran.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..record.report import KernelRun

if TYPE_CHECKING:
    from ..runtime.kernel_times import Probe

_BUILDING = 10.0  # seconds after which no more copies are built
_CALLING = 0.5  # seconds for calls
_MOST_CALLS = 50
_LEAST_COPY = 32 * 1024  # bytes below which the call of a copy takes longer than the copy
_LARGEST_COPY = 1 << 30

Probed = tuple[Sequence[KernelRun], "Probe"]  # the kernels of a unit, without their times, and what times them


def timed(probed: Iterable[Probed], call: Callable[[], object]) -> list[KernelRun]:
    """The kernels with the median time of each in repeated calls of ``call``; those that could not be timed lack it."""
    end, armed, left = time.perf_counter() + _BUILDING, [], []
    for kernels, probe in probed:
        if time.perf_counter() < end and probe.arm():
            armed.append((kernels, probe))
        else:
            left += kernels
    taken: list[list[list[float]]] = [[[] for _ in kernels] for kernels, _ in armed]
    try:
        _repeat(call, [probe for _, probe in armed], taken)
    finally:
        for _, probe in armed:
            probe.disarm()
    found = [
        replace(kernel, seconds=statistics.median(times)) if times else kernel
        for (kernels, _), of_unit in zip(armed, taken, strict=True)
        for kernel, times in zip(kernels, of_unit, strict=True)
    ]
    return [_with_copy(kernel, "cpu") for kernel in found] + left


def _repeat(call: Callable[[], object], probes: Sequence[Probe], taken: list[list[list[float]]]) -> None:
    call()  # the first one loads what was built
    end = time.perf_counter() + _CALLING
    for turn in range(_MOST_CALLS if probes else 0):
        if turn >= 3 and time.perf_counter() > end:
            break
        before = [probe.read() for probe in probes]
        call()
        for probe, old, times in zip(probes, before, taken, strict=True):
            for (calls, seconds), (had, spent), of_kernel in zip(probe.read(), old, times, strict=True):
                if calls > had:
                    of_kernel.append((seconds - spent) / (calls - had))


def timed_on_gpu(kernels: Iterable[KernelRun], call: Callable[[], object]) -> list[KernelRun]:
    """The same for kernels of a GPU, by torch's profiler; graphs that have kernels of one name share its time."""
    times = _profiled(call)
    found = [replace(k, seconds=statistics.median(times[k.name])) if k.name in times else k for k in kernels]
    return [_with_copy(kernel, "cuda") for kernel in found]


def _profiled(call: Callable[[], object]) -> dict[str, list[float]]:
    """The seconds that each kernel ran on the GPU in repeated calls, by its name."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        end = time.perf_counter() + _CALLING
        for turn in range(_MOST_CALLS):
            if turn >= 3 and time.perf_counter() > end:
                break
            call()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profiler.events() or ():
        if str(event.device_type) == "DeviceType.CUDA":
            times.setdefault(event.name, []).append(event.device_time * 1e-6)
    return times


def _with_copy(kernel: KernelRun, device: str) -> KernelRun:
    """With the time of a copy that moves as many bytes."""
    moved = kernel.bytes or 0
    if kernel.seconds is None or not _LEAST_COPY <= moved <= _LARGEST_COPY:
        return kernel
    with contextlib.suppress(RuntimeError, MemoryError):  # no memory for it
        return replace(kernel, copy_seconds=_copy_seconds(moved // 8, device))
    return kernel


@functools.lru_cache(maxsize=64)
def _copy_seconds(elements: int, device: str) -> float | None:
    """The median time of a copy that reads and writes so many elements of four bytes."""
    source, target = (torch.zeros(elements, dtype=torch.float32, device=device) for _ in range(2))
    if device == "cuda":
        times = [seconds for of_kernel in _profiled(lambda: target.copy_(source)).values() for seconds in of_kernel]
        return statistics.median(times) if times else None
    times, end = list[float](), time.perf_counter() + _CALLING / 4
    while len(times) < 5 or (len(times) < _MOST_CALLS and time.perf_counter() < end):
        start = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
