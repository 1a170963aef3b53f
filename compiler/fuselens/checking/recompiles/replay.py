"""Calls that were heard are made again, with the compiler: so compilations are counted, and guards judged, as in a run.

Graphs run as they were captured, and nothing is built. Before each call the state is put back that it had in the program. What earlier
runs left in the cache does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import time
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import api, sandbox, torch_private
from ...capture.frame import advice
from ...capture.frame.mismatch import mismatch
from ...capture.hook import _hook
from ...config import Config
from ...pipeline import Recorder
from ...record.report import FailingGuard, Guard, GuardCost
from ...slices import Heard, function_of
from ...system.console import quiet
from ..user_code import describe

_REPEATS = 400  # of the guards, five times: the least counts, because others use the processor, too


@dataclass(frozen=True, slots=True)
class Failed:
    """The guard of the last compilation that a call does not meet. ``kind`` is :class:`advice.Cause`'s."""

    guard: FailingGuard
    kind: str
    subject: str


@dataclass(slots=True)
class Made:
    """A call that was made: whether it was compiled for it, and why the compilations before it did not serve."""

    call: Heard
    compiled: bool
    failed: Failed | None = None


@dataclass(slots=True)
class Replay:
    """``raised`` says what ended it before all calls were made."""

    made: list[Made] = field(default_factory=list)
    limited: bool = False
    raised: str = ""
    guards: list[Guard] = field(default_factory=list)  # of the first compilation
    unmet: set[int] = field(default_factory=set)  # those that some call does not meet, by number
    ns: float | None = None
    costs: tuple[GuardCost, ...] = ()

    @property
    def compilations(self) -> int:
        return sum(made.compiled for made in self.made)


def replayed(name: str, file: str, calls: Sequence[Heard], config: Config, until: float = float("inf")) -> Replay:
    """Makes the calls in order; after ``until`` (``time.monotonic()``) no more."""
    config = dataclasses.replace(
        config, explore=False, keep_sizes=False, build=False, weightless=True, guard_costs=False
    )
    out, known = Replay(), list[_hook.Entry]()
    recorder = Recorder(name, file, None, config, texts=False)
    owner, regions = object(), dict[int, Any]()
    api.reset()
    for call in calls:
        if time.monotonic() > until:
            out.raised = "there was no time for all calls"
            break
        region = regions.get(id(call.target))
        if region is None:
            region = regions[id(call.target)] = api.wrap(call.target, config, recorder=recorder, owner=owner)
        call.state.restore()
        try:
            with quiet(), call.around.again():
                _make(out, call, region, _Frame.of(call), _Entries(owner, known), config)
        except (Exception, SystemExit, sandbox.Refused) as error:  # noqa: BLE001 - the program's code may raise anything
            out.raised = f"the call at {_place(call)} {describe(error)}"
            break
    out.limited = any(d.code == "FL202" for d in recorder.report.diagnostics)
    with quiet():
        _measure(out, _Entries(owner, known))
    return out


def _place(call: Heard) -> str:
    return f"line {call.site.line}" if call.site is not None else "a recorded run"


def _make(out: Replay, call: Heard, region: Any, frame: _Frame | None, of: _Entries, config: Config) -> None:
    entries = of.frame(frame)
    failed = None
    if frame is not None and entries:
        _judge(out, entries[-1], frame)
        with torch_private.without_torch_function():
            misses = [e.guards.check(frame.function, frame.arguments) for e in entries]
            if not any(met for met, _, _ in misses):
                failed = _failed(entries[0], misses[0][1], frame, call, len(out.made) + 1, config)
    region(*call.args, **call.kwargs)
    now = of.frame(frame)
    compiled = any(all(e is not before for before in entries) for e in now)
    out.made.append(Made(call, compiled, failed if compiled else None))
    if not out.guards and now:
        out.guards = list(now[-1].info.guards)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The function whose frame a call enters, and the arguments as guards see them."""

    function: Any
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, call: Heard) -> _Frame | None:
        function, given = function_of(call.target), _bound_to(call.target)
        if function is None:
            return None
        args, kwargs = (*given[0], *call.args), {**given[1], **call.kwargs}
        try:
            bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return None
        bound.apply_defaults()
        code = function.__code__
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        return cls(function, tuple(bound.arguments[name] for name in code.co_varnames[:count]))


def _bound_to(target: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a target gives its function before the arguments of a call."""
    if hasattr(target, "func") and hasattr(target, "keywords"):  # functools.partial
        args, kwargs = _bound_to(target.func)
        return (*args, *target.args), {**kwargs, **target.keywords}
    if isinstance(target, types.MethodType):
        return (target.__self__,), {}
    return ((), {}) if isinstance(target, types.FunctionType) else ((target,), {})


@dataclass(frozen=True, slots=True)
class _Entries:
    """The compilations that are ours, ``known`` in the order in which they were made."""

    owner: Any
    known: list[_hook.Entry]

    def frame(self, frame: _Frame | None) -> list[_hook.Entry]:
        """Those of a function, the last one first: the hook has those first that were used last."""
        if frame is None:
            return []
        found = [e for e in _hook.entries(frame.function.__code__) if e.owner is self.owner and e.alive]
        self.known.extend(e for e in found if all(e is not k for k in self.known))
        return [e for e in reversed(self.known) if any(e is f for f in found)]


def _judge(out: Replay, entry: _hook.Entry, frame: _Frame) -> None:
    """Which guards of an entry a call does not meet. What follows from one that fails, as sizes from a tensor, is not looked at."""
    checks, numbers = list(entry.guards.checks), list(range(len(entry.guards.checks)))
    dropped: set[int] = set()  # nodes of tensors
    with torch_private.without_torch_function():
        while checks:
            met, failing, _ = _hook.Guards(entry.guards.nodes, checks).check(frame.function, frame.arguments)
            if met or failing < 0 or failing >= len(checks):
                return
            out.unmet.add(numbers[failing])
            if checks[failing][1] in (_hook.TENSOR, _hook.TYPE_IS):
                dropped.add(checks[failing][0])
            left = [
                (number, check) for k, (number, check) in enumerate(zip(numbers, checks, strict=True))
                if k != failing and not _reads(check, dropped)
            ]  # fmt: skip
            out.unmet |= {n for n in numbers if all(n != number for number, _ in left)}
            numbers, checks = [number for number, _ in left], [check for _, check in left]


def _reads(check: _hook.Check, nodes: set[int]) -> bool:
    """Whether a condition on sizes reads a tensor that failed its own guard."""
    return check[1] == _hook.SHAPE and any(node in nodes for node, _ in check[2])


def _failed(entry: _hook.Entry, check: int, frame: _Frame, call: Heard, number: int, config: Config) -> Failed:
    info, guards = entry.info, entry.guards
    why = mismatch(guards, check, info.texts, frame.function, frame.arguments)
    cause = advice.cause(guards, check, info.texts, frame.function, frame.arguments, config)
    guard = info.guards[check] if check < len(info.guards) else Guard("MISSING", "", why)
    told = FailingGuard(
        guard.kind, guard.expression, why, guard.span, call.site, number, cause.advice if cause is not None else ""
    )
    return Failed(told, cause.kind if cause is not None else "", cause.subject if cause is not None else guard.source)


# --- what guards take -------------------------------------------------------------------------------------------------


def _measure(out: Replay, of: _Entries) -> None:
    """Times the guards of the compilation that serves the most frequent call."""
    made = [m.call for m in out.made]
    for call in sorted(made, key=lambda c: -c.times):
        frame = _Frame.of(call)
        if frame is None:
            return
        call.state.restore()
        with contextlib.suppress(Exception), call.around.again():
            for entry in of.frame(frame):
                if not entry.guards.check(frame.function, frame.arguments)[0]:
                    continue
                times = [entry.guards.time(frame.function, frame.arguments, _REPEATS) for _ in range(5)]
                costs = [c for _ in range(5) if (c := entry.guards.costs(frame.function, frame.arguments, _REPEATS))]
                out.ns = min((t for t in times if t is not None), default=None)
                out.costs = _by_kind(entry.info.guards, [min(each) for each in zip(*costs, strict=True)])
                return


def _by_kind(guards: Sequence[Guard], costs: Sequence[float]) -> tuple[GuardCost, ...]:
    kinds: dict[str, list[float]] = {}
    for guard, cost in zip(guards, costs, strict=False):
        kinds.setdefault(guard.kind, []).append(cost)
    found = (GuardCost(kind, len(each), sum(each)) for kind, each in kinds.items())
    return tuple(sorted(found, key=lambda cost: -cost.ns))


def recorded_call(function: str, target: Any, call: Any, around: Any) -> Heard:
    """A call of a recorded run, which has no place in the program."""
    return Heard(function, None, target, call.args, call.kwargs, around)
