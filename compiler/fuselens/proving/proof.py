"""One function, compiled, against eager and against float64, on all kinds of calls.

The compiled function keeps its entries from one call to the next, as it does in a program: a guard that is missing shows when
a call gets what was compiled for another one. Each call is made several times, because threads that meet in the same memory, and
memory that is used again, show only sometimes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import api
from ..capture.breaks import GraphBreakError
from ..config import Config
from ..inputs import agreement, rounding
from ..inputs.agreement import distance
from ..inputs.compared import argument_names, place_of
from ..inputs.comparison import observe
from ..inputs.doubled import Doubled, Exact
from ..inputs.structures import Values, leaves
from ..pipeline import Recorder
from ..record.diagnostics import raised
from ..record.report import Drift, Proof, Step, Tried
from . import drawn, drift
from .kinds import DENORMALS, SEED, Kind, Subject, kinds

CALLS = 3  # of each kind
_ENTRIES = 64  # versions of a function that a proof may compile
_NOISE = 0.05  # of the values' size: a gradient of which eager is as far from float64 is rounding alone
_DRAWING = 3.0  # seconds of calls with other seeds
_ROUNDING = 15.0  # seconds of runs with other last bits, after which no more are made: slow functions need some, too
MEMORY = ", its memory"  # behind a result: where that is, which no rounding decides
WRITTEN = ": written to"  # behind an input
_ASKS = "the function asks whether it is compiled"
Progress = Callable[[str], None]


@dataclass(slots=True)
class Prover:
    """``chosen`` are the names of the kinds to try, all but those ``left_out`` where it is empty. ``known`` hears what is known before
    each step, which may take longer than there is time, or end the process."""

    subject: Subject
    name: str
    path: str
    gradients: bool = True
    chosen: Sequence[str] = ()
    say: Progress = lambda _: None
    known: Callable[[Proof], None] = lambda _: None
    left_out: Sequence[str] = ()
    recorder: Recorder = field(init=False)
    compiled: Any = field(init=False)
    config: Config = field(init=False)
    _tried: list[Tried] = field(default_factory=list)
    _half: bool = False  # whether eager makes a value of half precision
    _first: float = 0.0  # seconds that the first kind took, with its compilation

    def __post_init__(self) -> None:
        changes: dict[str, Any] = {
            "explore": False,
            "weightless": False,
            "fallback_random": True,
            "dump": None,
            "recompile_limit": _ENTRIES,
        }
        self.config = dataclasses.replace(self.subject.config, **changes)
        self.recorder = Recorder(self.name, self.path, None, self.config, texts=False)
        self.compiled = api.wrap(self.subject.target, self.config, recorder=self.recorder, owner=object())

    def proof(self, seconds: float = float("inf")) -> Proof:
        """What came of each kind. After so many ``seconds`` no more are tried."""
        started, tried, left = time.monotonic(), self._tried, 0
        end = started + seconds
        for kind in self._kinds():
            if time.monotonic() > end:
                left += 1
                continue
            with contextlib.redirect_stdout(io.StringIO()):  # what the function prints, it has printed in the check
                tried.append(self.tried(kind))
                if kind.name == SEED and time.monotonic() < end:
                    tried += self._of_own_numbers(kind)
            self._first = self._first or time.monotonic() - started
        report = self.recorder.report
        lines = self._drift() if time.monotonic() + self._first < end else ()
        return Proof(self.name, tuple(tried), left, report.uncompiled, report.compiled, drift=lines)

    def _drift(self) -> tuple[Drift, ...]:
        """That of each line, on the example inputs, where values have half precision."""
        if not self._half or self.chosen:
            return ()
        self.say(f"{self.name}: drift by line")
        with contextlib.redirect_stdout(io.StringIO()):
            return drift.drift(self.subject.target, next(kinds(self.subject)), self.config, self.name, self.path)

    def _kinds(self) -> Iterator[Kind]:
        chosen = set(map(drawn.kind_of, self.chosen))
        for kind in kinds(self.subject):
            if kind.name in chosen or not (chosen or kind.name in self.left_out):
                yield kind

    def _begins(self, kind: Kind, what: str, *, eager: bool = True) -> None:
        self.say(f"{self.name}: {kind.name}, {what}")
        report, at = self.recorder.report, Step(kind.name, what, eager)
        self.known(Proof(self.name, tuple(self._tried), 0, report.uncompiled, report.compiled, at=at))

    def tried(self, kind: Kind) -> Tried:
        gradients = self.gradients and kind.gradients
        self._begins(kind, "run eagerly")
        eager = self._observed(self.subject.target, kind, gradients)
        if "raised" in eager and gradients:  # say, because an input that is written to requires a gradient then
            gradients = False
            eager = self._observed(self.subject.target, kind, gradients)
        if "raised" in eager:
            return self._both_raise(kind, eager["raised"])
        arguments = argument_names(self.subject.target, kind.args, kind.kwargs)
        expected = flat(eager, arguments)
        self._begins(kind, "run in float64")
        with Doubled() as doubled:
            exact = [(where, doubled.exactly(value)) for where, value in self._eager(kind, gradients)]
        self._half |= doubled.half and not kind.autocast
        found: list[Values] = []
        for number in range(1, 1 + CALLS):
            self._begins(kind, f"call {number} of {CALLS}, compiled", eager=False)
            call = self._observed(self.compiled, kind, gradients)
            if "raised" in call:
                said = raised(call["raised"]).splitlines()[0]
                with _as_if_compiled():
                    other = self._observed(self.subject.target, kind, gradients)
                if type(other.get("raised")) is type(call["raised"]):
                    return Tried(kind.name, True, f"{_ASKS}, and raises {said} then, too", raises=True)
                return Tried(kind.name, False, f"the compiled call raised {said}", how="raised")
            found.append(flat(call, arguments))
        if kind.name == DENORMALS:
            expected = _where_eager_answers(expected, found[0])
        return self._judged(kind, gradients, expected, exact, found)

    def _of_own_numbers(self, kind: Kind) -> Iterator[Tried]:
        """How a function that draws does so in a run, where its random numbers are not eager's."""
        if drawn.NAME in self.left_out:
            return
        started = time.monotonic()
        one, other = (self._results(self.subject.target, kind, seed) for seed in (0, 1))
        count = min(drawn.SEEDS, int(_DRAWING / (time.monotonic() - started)))
        if next(agreement.differences(one, other, None), None) is None or count < drawn.FEWEST:
            return
        self._begins(dataclasses.replace(kind, name=drawn.NAME), f"{count} calls", eager=False)
        config = dataclasses.replace(self.config, fallback_random=False)
        compiled = api.wrap(self.subject.target, config, owner=object())
        eager = functools.partial(self._results, self.subject.target, kind)
        found = drawn.difference(eager, functools.partial(self._results, compiled, kind), count)
        yield Tried(drawn.NAME, not found, found, how="drawn" if found else "", where=drawn.WHERE)

    def _results(self, function: Any, kind: Kind, seed: int) -> Values:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = observe(function, kind.args, kind.kwargs, gradients=False)
        return [] if "raised" in found else list(leaves("result", found["result"]))

    def _observed(self, function: Any, kind: Kind, gradients: bool) -> dict[str, Any]:
        with kind.around():
            return observe(function, kind.args, kind.kwargs, gradients=gradients)

    def _eager(self, kind: Kind, gradients: bool) -> Values:
        arguments = argument_names(self.subject.target, kind.args, kind.kwargs)
        return flat(self._observed(self.subject.target, kind, gradients), arguments)

    def _rounded(self, kind: Kind, gradients: bool, by: rounding.Rounding) -> Values:
        with by:
            return self._eager(kind, gradients)

    def _both_raise(self, kind: Kind, error: BaseException) -> Tried:
        call = self._observed(self.compiled, kind, False)
        found, said = call.get("raised"), raised(error).splitlines()[0]
        if type(found) is type(error):
            return Tried(kind.name, True, f"both raise {said}", raises=True)
        if isinstance(found, GraphBreakError) and found.diagnostic.code == "FL116" and self.config.fullgraph:
            return Tried(
                kind.name, True, f"both raise; eager {said}, and fullgraph=True that it is raised", raises=True
            )
        if found is None and isinstance(error, NotImplementedError) and " not implemented for " in str(error):
            return Tried(kind.name, True, f"eager has no kernel: {said}", raises=True)
        other = f"raises {raised(call['raised']).splitlines()[0]}" if "raised" in call else "returns"
        return Tried(kind.name, False, f"eager raises {said}, compiled {other}", how="raised")

    def _judged(self, kind: Kind, gradients: bool, expected: Values, exact: Values, found: list[Values]) -> Tried:
        errors = _errors(expected, exact, found[0])
        differing = [dict(agreement.differences(expected, call, exact)) for call in found]
        if not any(differing):
            return Tried(kind.name, True, "", *errors)
        self._begins(kind, "run eagerly with other last bits")
        with _as_if_compiled():
            other = self._eager(kind, gradients)
        asks = next(agreement.differences(expected, other, exact), None) is not None
        if asks and not any(next(agreement.differences(other, call, None), None) for call in found):
            return Tried(kind.name, True, f"{_ASKS}, and computes something else then", *errors)
        # a clock, an iterator, a file: what differs from call to call of eager proves nothing
        again = self._eager(kind, gradients)
        excused = {where for where, _ in agreement.differences(expected, again, None)}
        moved, limits, counted, started = list[Values](), list[Values](), differing, time.monotonic()
        for runs in (rounding.RUNS, *rounding.MORE_RUNS):
            for seed in range(len(moved), runs):
                if len(moved) < rounding.RUNS or time.monotonic() - started < _ROUNDING:
                    moved.append(self._rounded(kind, gradients, rounding.Rounding(seed)))
            counted = [
                {
                    where: how
                    for where, how in of.items()
                    if where not in excused
                    and (where.endswith(MEMORY) or not rounding.decides(where, expected, call, moved, limits))
                }
                for of, call in zip(differing, found, strict=True)
            ]
            if not any(counted) or (limits and time.monotonic() - started > _ROUNDING):
                break
            limits = limits or [self._rounded(kind, gradients, by) for by in rounding.limits()]
        first = next(iter(how for call in counted for how in call.items()), None)
        if first is not None:
            how = "differs" if all(counted) else "unsteady"
            return Tried(kind.name, False, ": ".join(first), *errors, how=how, where=first[0])
        return Tried(kind.name, True, "rounding decides: other last bits change it in eager, too", *errors)


@contextlib.contextmanager
def _as_if_compiled() -> Iterator[None]:
    """Inside, a program that asks is told that it is compiled."""
    names = ("is_compiling", "is_dynamo_compiling")
    had = {name: getattr(torch.compiler, name) for name in names}
    for name in names:
        setattr(torch.compiler, name, lambda: True)
    try:
        yield
    finally:
        for name, function in had.items():
            setattr(torch.compiler, name, function)


def _where_eager_answers(expected: Values, found: Values) -> Values:
    """What eager gives, but for elements that are no numbers, in whose place are what is found: the reciprocal of a denormal overflows,
    and whether eager takes one (in quotients of complex numbers) depends on where in a vector the element is."""

    def answer(e: Any, f: Any) -> Any:
        tensors = isinstance(e, torch.Tensor) and isinstance(f, torch.Tensor) and e.layout is f.layout is torch.strided
        if not tensors or e.shape != f.shape or e.dtype != f.dtype or e.is_meta or not e.is_floating_point():
            return e
        lost = ~torch.isfinite(e) & torch.isfinite(f)
        return torch.where(lost, f, e) if bool(lost.any()) else e

    if [where for where, _ in expected] != [where for where, _ in found]:
        return expected
    return [(where, answer(e, f)) for (where, e), (_, f) in zip(expected, found, strict=True)]


def flat(observed: dict[str, Any], arguments: Sequence[str] = (), *, values_only: bool = False) -> Values:
    """What :func:`.comparison.observe` found, value by value, each with where it is. ``arguments`` names the tensors among the inputs."""
    if "raised" in observed:
        return [("result", observed["raised"])]
    found = list(leaves("result", observed["result"]))
    beside: Values = [(where + MEMORY, said) for where, said in observed["memory"].items()]
    for what in ("gradient", "state"):
        for key, value in observed[what].items():
            found += leaves(place_of(what, key, arguments), value)
    for number, value in enumerate(observed["input"]):
        found += leaves(place_of("input", str(number), arguments), value)
    beside += [(f"{name} afterwards", value) for name, value in observed["settings"].items()]
    for number, written in enumerate(observed["written"]):
        beside.append((f"{place_of('input', str(number), arguments)}{WRITTEN}", written))
    found += [] if values_only else beside
    times = Counter(where for where, _ in found)
    seen = Counter[str]()
    for k, (where, value) in enumerate(found):  # an argument may have the name of a parameter
        seen[where] += 1
        found[k] = (where if times[where] == 1 else f"{where} ({seen[where]})", value)
    return found


def _errors(expected: Values, exact: Values, found: Values) -> tuple[float | None, float | None, float | None]:
    """The largest relative errors: of what was compiled beside eager, then of both beside float64. Each tensor's error is its root
    mean square, beside that of its values."""
    pairs = zip(expected, exact, found, strict=False)
    found_rows = ((where, _error(where, e, x, f)) for (where, e), (_, x), (_, f) in pairs)
    rows = [
        row for where, row in found_rows if row is not None and not (where.endswith(" afterwards") and not any(row))
    ]
    return tuple(max((row[k] for row in rows if row[k] is not None), default=None) for k in range(3))  # type: ignore[return-value]


def _error(where: str, expected: Any, exact: Any, found: Any) -> tuple[float, float | None, float | None] | None:
    tensors = isinstance(expected, torch.Tensor) and isinstance(found, torch.Tensor)
    if (
        not tensors
        or not expected.is_floating_point()
        or expected.shape != found.shape
        or expected.layout is not torch.strided
        or expected.is_meta
    ):
        return None
    beside, _ = distance(expected, found)
    if not isinstance(exact, Exact):
        return beside, None, None
    eager, _ = distance(exact.value, expected)
    counts = eager < _NOISE or where.startswith("result")
    return (beside, distance(exact.value, found)[0], eager) if counts else None
