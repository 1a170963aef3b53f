"""Measures one change: calls of the function as it is and changed, both compiled, in turn in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import api, sandbox
from ...config import Config
from ...inputs import comparison
from ...inputs.comparison import copied, gradients_of, peak_bytes
from ...inputs.example_inputs import ExampleInputs
from ...inputs.structures import tensors_in
from ...pipeline import Recorder
from ...proving.kinds import seeded
from ...record.diagnostics import raised
from ...record.report import Report, TriedChange
from ...runtime import memory
from ...runtime.program import without_pool
from ...source.changes import Change
from ...source.fixes import applied
from ...system.console import quiet
from ..check import OpenFunction, opened_function
from ..parsing import FileRefused, read_source
from ..steps.sizes import Sizes, UnknownSize
from . import first_calls
from .clock import Clock
from .comparing import Around, Comparison, Differs, changes_text, modules_of

_SECONDS = 2.5  # of calls in turn, where there is so much time
_SHORTEST = 2e-3  # that calls between two looks at the clock take at least
_LONG = 20e-3  # a call: what the other function left in the caches does not count
_MOST_AT_A_TIME = 50
_FEWEST, _MOST = 9, 400  # pairs of calls
_GAIN = 0.03  # of the time, or of the memory: what gains less is not told from noise
_LEAST_BYTES = 1 << 20
_MUCH_SLOWER = 1.5
_SURE = 2.6  # standard deviations of a coin's tosses: so many pairs of calls must be shorter
_ROUNDS = 3  # of first calls


@dataclass(slots=True)
class Measure:
    path: str
    function: str
    source: str | None
    change: Change
    config: Config
    say: Callable[[str], None]
    clock: Clock
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = (read_source(self.path) if self.source is None else self.source).removeprefix("\ufeff")

    def tried(self) -> TriedChange:
        """What came of it."""
        change = self.change
        found = TriedChange(change.kind, change.title, change.span, change.edits, change.of, changes=change.changes)
        self.say(f"{self.function}: what if: {change.title}")
        try:
            with quiet():
                if change.of == "first calls":
                    return self._first_calls(found)
                return self._wider(found) if change.of == "batch" else self._calls(found)
        except (Differs, UnknownSize) as error:
            return dataclasses.replace(found, why=str(error))
        except FileRefused as refusal:
            return dataclasses.replace(found, why=refusal.diagnostic.message)

    # --- calls of the function --------------------------------------------------------------------------------------------

    def _calls(self, found: TriedChange) -> TriedChange:
        edited_text = applied(self.text, self.change.edits)
        memory.keep_freed()
        exact = (
            contextlib.ExitStack()
        )  # for as long as memory is measured: gaps that are left would count as what is used
        exact.enter_context(memory.given_back())
        with exact, self._opened(self.text) as original, self._opened(edited_text) as edited:
            around = _around(original)
            comparison_ = Comparison(original, edited, self.change, around, self.clock)
            before, after = (_compiled(function)[0] for function in (original, edited))
            comparison_.first(after)
            with around(), comparison.unchanged(original.target), comparison.unchanged(edited.target):
                backward, inputs = self.change.of == "backward", _inputs(original)
                calls = _call(original, before, inputs, backward), _call(edited, after, _inputs(edited), backward)
                on_gpu = any(t.is_cuda for t in tensors_in((inputs.args, inputs.kwargs)))
                with without_pool():
                    held = [peak_bytes(call, on_gpu=on_gpu) for call in calls]
                exact.close()
                self.say(f"{self.function}: what if: {self.change.title}: time")
                found = _timed(found, *calls, seconds=min(_SECONDS, self.clock.left), on_gpu=on_gpu)
            found = _judged(dataclasses.replace(found, bytes_before=held[0], bytes=held[1]))
            if found.offered and changes_text(self.change):
                self.say(f"{self.function}: what if: {self.change.title}: compare")
                comparison_.others()
            for refused in sandbox.take():
                raise FileRefused(refused)
        said = "; ".join(filter(None, (found.changes, *comparison_.notes)))
        return dataclasses.replace(found, compared=comparison_.compared, error=comparison_.error, changes=said)

    def _opened(self, text: str) -> contextlib.AbstractContextManager[OpenFunction]:
        seeded()
        return opened_function(self.path, self.function, text, self.config)

    # --- other sizes ------------------------------------------------------------------------------------------------------

    def _wider(self, found: TriedChange) -> TriedChange:
        with self._opened(self.text) as function:
            inputs, around = function.inputs(), _around(function)
            sizes = Sizes.of(function.found, inputs)
            wider, _ = sizes.chosen({sizes.axis: 2 * sizes.known[sizes.axis]})
            with around(), comparison.unchanged(function.target):
                compiled, report = _compiled(function)
                judged = comparison.judge(function.target, compiled, wider.args, wider.kwargs, gradients=False)
                if judged.raised is not None:
                    raise Differs(f"it raised {raised(judged.raised[1]).splitlines()[0]}")
                if not judged.agrees:
                    raise Differs(judged.detail)
                backward = any(graph.training for graph in report.graphs)
                calls = [_call(function, _compiled(function)[0], given, backward) for given in (inputs, wider)]
                on_gpu = any(t.is_cuda for t in tensors_in((inputs.args, inputs.kwargs)))
                found = _timed(found, *calls, seconds=min(_SECONDS, self.clock.left), on_gpu=on_gpu, rows=2)
        return dataclasses.replace(_judged(found), compared=1)

    # --- first calls ------------------------------------------------------------------------------------------------------

    def _first_calls(self, found: TriedChange) -> TriedChange:
        """The calls that the program makes, each with a compiler that knows nothing of it."""
        pairs: list[tuple[float, float]] = []
        texts = (self.text, applied(self.text, self.change.edits))
        with self._opened(texts[0]) as original, self._opened(texts[1]) as edited:
            comparison_ = Comparison(original, edited, self.change, _around(original), self.clock)
            comparison_.first(_compiled(edited)[0])
        for number in range(_ROUNDS):
            if pairs and self.clock.left < 0:
                break
            order = (0, 1) if number % 2 == 0 else (1, 0)
            seconds = {k: first_calls.seconds(self.path, texts[k], self.function, self.config) for k in order}
            pairs.append((seconds[0], seconds[1]))
        return dataclasses.replace(_judged(_of_pairs(found, pairs)), compared=comparison_.compared)


# --- parts ------------------------------------------------------------------------------------------------------------


def _call(function: OpenFunction, compiled: Any, inputs: ExampleInputs, backward: bool) -> Callable[[], object]:
    given = copied(inputs.args, False), copied(inputs.kwargs, False)
    if not backward:
        return lambda: compiled(*given[0], **given[1])
    modules = modules_of(function.target, *inputs.args, *inputs.kwargs.values())
    return lambda: gradients_of(modules, compiled(*given[0], **given[1]), given)


def _inputs(function: OpenFunction) -> ExampleInputs:
    seeded()
    return function.inputs()


def _compiled(function: OpenFunction) -> tuple[Any, Report]:
    """The function compiled, and the report that its calls fill."""
    config = dataclasses.replace(
        function.config, explore=False, weightless=False, fallback_random=True, dump=None
    )  # fmt: skip
    recorder = Recorder(function.annotated.qualname, function.file.path, None, config, texts=False)
    return api.wrap(function.target, config, recorder=recorder, owner=object()), recorder.report


def _around(function: OpenFunction) -> Around:
    """What holds around the function's call in its program."""
    evaluated = function.file.evaluated(function.annotated)
    if evaluated is None or evaluated.around is None:
        return contextlib.nullcontext
    return evaluated.around.again


def _timed(
    found: TriedChange, first: Callable[[], object], second: Callable[[], object], *, seconds: float, on_gpu: bool, rows: int = 1
) -> TriedChange:  # fmt: skip
    """Calls of both in turn; which one begins changes from pair to pair. ``rows``: the second does so many times as much."""
    # One thread's own time is not longer for what other processes do meanwhile.
    clock = time.perf_counter if on_gpu or torch.get_num_threads() > 1 else time.thread_time
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None

    def timed(call: Callable[[], object], count: int, *, warm: bool) -> float:
        if warm:
            call()  # after the other function the caches hold nothing of this one
        synchronize()
        start = clock()
        for _ in range(count):
            call()
        synchronize()
        return (clock() - start) / count

    first()
    second()
    once = max(min(timed(first, 1, warm=False), timed(second, 1, warm=False)), 1e-7)
    count, warm = max(1, min(_MOST_AT_A_TIME, int(_SHORTEST / once))), once <= _LONG
    end, pairs = time.perf_counter() + seconds, list[tuple[float, float]]()
    while len(pairs) < _MOST and (len(pairs) < _FEWEST or time.perf_counter() < end):
        if len(pairs) % 2:
            after, before = timed(second, count, warm=warm), timed(first, count, warm=warm)
        else:
            before, after = timed(first, count, warm=warm), timed(second, count, warm=warm)
        pairs.append((before, after / rows))
    return _of_pairs(found, pairs)


def _of_pairs(found: TriedChange, pairs: list[tuple[float, float]]) -> TriedChange:
    ratios = [b / a for a, b in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    before = statistics.median(b for b, _ in pairs)  # and after it by the pairs: both were disturbed together
    found = dataclasses.replace(
        found, time=middle, time_quartiles=(low, high), seconds_before=before, seconds=before * middle
    )
    shorter = sum(ratio < 1 for ratio in ratios)
    apart = abs(shorter - len(ratios) / 2)  # from what chance gives
    steady = apart >= _SURE * math.sqrt(len(ratios)) / 2 or shorter in (0, len(ratios))
    steady = steady and (high < 1 if middle < 1 else low > 1)
    found = dataclasses.replace(found, steady=steady)
    return found if middle <= 1 - _GAIN and steady else dataclasses.replace(found, why=_NOISE)


_NOISE = "it gains nothing that is more than noise"


def _judged(found: TriedChange) -> TriedChange:
    """With the reason why it is not worth it, where there is one."""
    assert found.time is not None
    if not found.why:
        return found
    smaller = found.saved >= max(_LEAST_BYTES, _GAIN * (found.bytes_before or 0))
    if smaller and found.time <= _MUCH_SLOWER:
        return dataclasses.replace(found, why="")
    cost = f"{_percent(found.time)} time"
    return dataclasses.replace(found, why=f"it takes {cost}" if smaller else f"{found.why}: {cost}")


def _percent(time_: float) -> str:
    percent = round(100 * (time_ - 1))
    return f"{percent:+d} %".replace("-", "−") if percent else "as much"
