"""Measures an edited unit beside ours: calls of both in turn, on what the function's own call gives them."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...config import Config
from ...inputs import agreement, kernel_pass
from ...inputs.comparison import interleaved
from ...inputs.kernel_pass import Probed
from ...pins.records import Times, Unit
from ..check import opened_function
from .trial import Compiled, Tried, UnitCall

_SECONDS = 50e-6  # that calls between two looks at the clock take at least
_MOST_AT_A_TIME = 100
_PASSES = 2


@dataclass(frozen=True, slots=True)
class Measured:
    """``why`` says why there are no times, where there are none. ``kernels`` are the seconds of each, yours and ours."""

    yours: Times | None = None
    ours: Times | None = None
    why: str = ""
    kernels: dict[str, tuple[float, float]] = field(default_factory=dict)


def measure(
    path: str | Path, qualname: str, unit: Unit, text: str, config: Config, progress: Callable[[str], None]
) -> Measured:  # fmt: skip
    with opened_function(path, qualname, None, config, progress) as function:
        found, probes = list[UnitCall](), list[Probed]()
        for name, edited in (("yours", text), ("ours", None)):
            progress(f"{qualname}: measure {name}")
            tried = Tried(unit, edited, keeps_calls=True)
            compiled = Compiled.of(function, tried)
            compiled.recorder.probed = []
            _, args, kwargs = next(compiled.calls())
            for watched in compiled.run(args, kwargs):
                if not tried.calls and watched.given is not None:  # a backward's
                    agreement.observed(
                        lambda *given, call=watched.call: call(given), watched.given, [""] * len(watched.given)
                    )
            if tried.interpreted:
                return Measured(why="kernels for a GPU are measured on one")
            if not tried.calls:
                return Measured(why="the function does not call it on its example inputs")
            found += tried.calls
            probes += _of_unit(compiled.recorder.probed, unit)[:1]
        progress(f"{qualname}: measure")
        yours, ours = found
        return Measured(*_in_turn(yours, ours), kernels=_of_kernels(yours, ours, probes))


def _of_unit(probed: Sequence[Probed], unit: Unit) -> list[Probed]:
    """What times the kernels of a unit, where something does."""
    return [
        p
        for p in probed
        if {(k.name, k.phase) for k in p[0] if not k.library} == {(name, unit.phase) for name in unit.kernels}
    ]


def _of_kernels(yours: UnitCall, ours: UnitCall, probes: Sequence[Probed]) -> dict[str, tuple[float, float]]:
    """Each kernel's seconds, of those that could be timed: the better of two passes, taken in turn."""
    if len(probes) != 2:
        return {}
    best: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for _ in range(_PASSES):
        for unit, probe, times in zip((yours, ours), probes, best, strict=True):
            for kernel in kernel_pass.timed([probe], functools.partial(unit.call, yours.inputs)):
                if kernel.seconds is not None and not kernel.library:
                    times[kernel.name] = min(kernel.seconds, times.get(kernel.name, kernel.seconds))
    return {name: (seconds, best[1][name]) for name, seconds in best[0].items() if name in best[1]}


def _in_turn(yours: UnitCall, ours: UnitCall) -> tuple[Times, Times]:
    """Both on the same inputs. Calls that take less than what the clock can tell apart are made many at a time."""
    calls = [functools.partial(unit.call, yours.inputs) for unit in (yours, ours)]
    calls[0]()
    start = time.perf_counter()
    calls[0]()
    count = max(1, min(_MOST_AT_A_TIME, int(_SECONDS / (time.perf_counter() - start))))
    times = interleaved(*(functools.partial(_repeat, call, count) for call in calls))
    mine, other = (_times([seconds / count for seconds in found]) for found in times)
    return mine, other


def _repeat(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()


def _times(seconds: list[float]) -> Times:
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Times(statistics.median(seconds), low, high)
