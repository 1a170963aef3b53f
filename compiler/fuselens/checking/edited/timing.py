"""Measures an edited unit beside ours: calls of both in turn, on what the function's own call gives them."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...config import Config
from ...inputs import agreement
from ...inputs.comparison import interleaved
from ...pins.records import Times, Unit
from ..check import opened_function
from .trial import Compiled, Tried, UnitCall

_SECONDS = 50e-6  # that calls between two looks at the clock take at least
_MOST_AT_A_TIME = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """``why`` says why there are no times, where there are none."""

    yours: Times | None = None
    ours: Times | None = None
    why: str = ""


def measure(
    path: str | Path, qualname: str, unit: Unit, text: str, config: Config, progress: Callable[[str], None]
) -> Measured:  # fmt: skip
    with opened_function(path, qualname, None, config, progress) as function:
        found: list[UnitCall] = []
        for name, edited in (("yours", text), ("ours", None)):
            progress(f"{qualname}: measure {name}")
            tried = Tried(unit, edited, keeps_calls=True)
            compiled = Compiled.of(function, tried)
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
        progress(f"{qualname}: measure")
        yours, ours = found
        return Measured(*_in_turn(yours, ours))


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
