"""How long single kernels take, in calls of their own: what is measured here disturbs no other figure.

On the CPU a copy of each graph's unit looks at the clock around its kernels (:mod:`fuselens.runtime.kernel_times`). On a GPU
torch's profiler says how long each kernel ran.
"""

from __future__ import annotations

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

Probed = tuple[Sequence[KernelRun], "Probe"]  # the kernels of a unit, without their times, and what times them


def timed(
    probed: Iterable[Probed], call: Callable[[], object], training: Callable[[], object] | None = None
) -> list[KernelRun]:
    """The kernels with the median time of each in repeated calls of ``call``, and those that are in calls of ``training`` alone; those
    that could not be timed lack it."""
    end, armed, left = time.perf_counter() + _BUILDING, [], []
    for kernels, probe in probed:
        if time.perf_counter() < end and probe.arm():
            armed.append((kernels, probe))
        else:
            left += kernels
    try:
        taken = [_repeat(each, armed) for each in (call, training) if each is not None]
    finally:
        for _, probe in armed:
            probe.disarm()
    kernels = [kernel for of_unit, _ in armed for kernel in of_unit]
    return [*map(_with_times, kernels, zip(*taken, strict=True)), *left]


def _with_times(kernel: KernelRun, taken: Sequence[Sequence[float]]) -> KernelRun:
    """With the median of the first times that there are: those of calls, and those of calls in training."""
    times = next(filter(None, taken), None)
    return kernel if times is None else replace(kernel, seconds=statistics.median(times), trains=not taken[0])


def _repeat(call: Callable[[], object], armed: Sequence[Probed]) -> list[list[float]]:
    """The seconds that each kernel took in calls."""
    taken: list[list[float]] = [[] for kernels, _ in armed for _ in kernels]
    call()  # the first one loads what was built
    end = time.perf_counter() + _CALLING
    for turn in range(_MOST_CALLS if armed else 0):
        if turn >= 3 and time.perf_counter() > end:
            break
        before = [known for _, probe in armed for known in probe.read()]
        call()
        after = [known for _, probe in armed for known in probe.read()]
        for (calls, seconds), (had, spent), times in zip(after, before, taken, strict=True):
            if calls > had:
                times.append((seconds - spent) / (calls - had))
    return taken


def timed_on_gpu(
    kernels: Iterable[KernelRun], call: Callable[[], object], training: Callable[[], object] | None = None
) -> list[KernelRun]:
    """The same for kernels of a GPU, by torch's profiler; graphs that have kernels of one name share its time."""
    times = [profiled(each) for each in (call, training) if each is not None]
    return [_with_times(kernel, [found.get(kernel.name, []) for found in times]) for kernel in kernels]


def profiled(call: Callable[[], object]) -> dict[str, list[float]]:
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
