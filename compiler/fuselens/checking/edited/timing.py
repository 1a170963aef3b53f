"""Measures an edited unit beside ours: calls of both in turn, on what the function's own call gives them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...config import Config
from ...inputs import agreement
from ...inputs.comparison import interleaved
from ...pins.records import Times, Unit
from ..check import opened_function
from .trial import Compiled, Tried, UnitCall


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
        times = interleaved(lambda: yours.call(yours.inputs), lambda: ours.call(yours.inputs))
        return Measured(_times(times[0]), _times(times[1]))


def _times(seconds: list[float]) -> Times:
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Times(statistics.median(seconds), low, high)
