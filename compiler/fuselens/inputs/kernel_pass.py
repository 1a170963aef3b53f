"""How long single kernels take, in calls of their own: what is measured here disturbs no other figure.

On the CPU a copy of each graph's unit looks at the clock around its kernels (:mod:`fuselens.runtime.kernel_times`). On a GPU
torch's profiler says how long each kernel ran.
"""

from __future__ import annotations

import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ..record.report import KernelRun

if TYPE_CHECKING:
    from ..runtime.kernel_times import OperatorTimes, Probe

_BUILDING = 10.0  # seconds after which no more copies are built
_CALLING = 0.5  # seconds for calls
_MOST_CALLS = 50
_GRAPH = re.compile(r" graph (\d+)( backward)?(?: \([^()]+:\d+\))?$")  # what a graph's range is called
_LABEL = re.compile(r"^\w+::| \([^()]+:\d+\)$")  # what a range has more than the name of its kernel or operator

# The kernels of a unit, without their times, and what times them.
Probed = tuple[Sequence[KernelRun], "Probe | OperatorTimes"]


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
    """The same for kernels and operators on a GPU, by torch's profiler: what they launch in the ranges of their graphs."""
    profiles = [profiled(each) for each in (call, training) if each is not None]
    graphs: dict[tuple[int, str], list[KernelRun]] = {}
    for kernel in kernels:
        graphs.setdefault((kernel.graph, kernel.phase), []).append(kernel)
    found = []
    for graph, own in graphs.items():
        taken = [profile.times(graph, own) for profile in profiles]
        found += map(_with_times, own, zip(*taken, strict=True))
    return found


@dataclass(frozen=True, slots=True)
class Profile:
    """What ran on the GPU in so many ``calls``: the seconds of each kernel by its name, and for each call of a graph, by its number and
    phase, what ran in its ranges, in their order: their names and seconds."""

    calls: int
    of_kernels: dict[str, list[float]]
    of_graphs: dict[tuple[int, str], list[list[tuple[str, float]]]]

    def times(self, graph: tuple[int, str], kernels: Sequence[KernelRun]) -> list[list[float]]:
        """The seconds of the kernels and operators of a graph, which has them in this order."""
        taken: list[list[float]] = [[] for _ in kernels]
        if graph not in self.of_graphs and self.of_graphs:
            return taken
        for ranges in self.of_graphs.get(graph, ()):
            for times, seconds in zip(taken, _matched(kernels, ranges), strict=True):
                times += seconds
        if any(taken):
            return taken
        return [self.of_kernels.get(kernel.name, []) for kernel in kernels]  # a recording is one range


def _matched(kernels: Sequence[KernelRun], ranges: Sequence[tuple[str, float]]) -> list[list[float]]:
    """The seconds of each kernel in one call of a graph: by their order, since kernels that are alike are launched by one name, or by
    their names where some have no range."""
    names = [kernel.name for kernel in kernels]
    if len(ranges) == len(kernels) and all(
        name == kernel.name for kernel, (name, _) in zip(kernels, ranges, strict=True) if kernel.library
    ):
        return [[seconds] for _, seconds in ranges]
    of_name = {name: [seconds for n, seconds in ranges if n == name] for name in names}
    found = {name: iter(times) if len(times) == names.count(name) else iter(()) for name, times in of_name.items()}
    return [list(itertools.islice(found[name], 1)) for name in names]


def profiled(call: Callable[[], object]) -> Profile:
    """Repeated calls under torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        end, turn = time.perf_counter() + _CALLING, 0
        while turn < _MOST_CALLS and (turn < 3 or time.perf_counter() < end):
            call()
            turn += 1
        torch.cuda.synchronize()
    found = Profile(turn, {}, {})
    for event in profiler.events() or ():
        if str(event.device_type) == "DeviceType.CUDA":
            found.of_kernels.setdefault(event.name, []).append(event.device_time * 1e-6)
        elif graph := _GRAPH.search(event.name):
            inside = [(_LABEL.sub("", each.name), each.device_time_total * 1e-6) for each in event.cpu_children]
            key = int(graph[1]), "backward" if graph[2] else "forward"
            found.of_graphs.setdefault(key, []).append([(name, taken) for name, taken in inside if taken])
    return found
