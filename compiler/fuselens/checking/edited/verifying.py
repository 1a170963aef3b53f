"""Verifies an edited unit: its graph gives what eager gives, on the function's inputs and on others, forward and backward."""

from __future__ import annotations

import functools
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...config import Config
from ...inputs import agreement
from ...ir.contracts.content import changed as content_changed
from ...pins import texts
from ...pins.records import Found, Unit, Verdict, Verified
from ...pipeline.refusals import eagerly
from ...proving import kinds
from ...record.diagnostics import raised
from ...runtime import program
from ...runtime.build import find_compiler, host_isa
from ..check import opened_function
from . import refusals
from .guards import GuardedCalls
from .trial import Compiled, Tried, Watched

Progress = Callable[[str], None]


@dataclass(slots=True)
class Outcome:
    """``ours`` is our text, as a reader sees it; ``axes`` are the sizes that vary, ``owner`` is what a run
    calls the function."""

    verdict: Verdict
    ours: str = ""
    axes: dict[str, dict[str, str]] = field(default_factory=dict)
    owner: str = ""


class Differs(Exception):
    """The edited kernels gave something else; the message says on which inputs, where, and how."""


class Damages(Exception):
    """They wrote to memory that is not theirs."""


def verify(
    path: str | Path, qualname: str, unit: Unit, text: str, config: Config, progress: Progress, seconds: float
) -> Outcome:  # fmt: skip
    """Raises FileRefused where the function cannot be opened, and what it raises itself."""
    mine = texts.hash_of(unit.language, text)
    with opened_function(path, qualname, None, config, progress) as function:
        tried = Tried(unit, text)
        compiled = Compiled.of(function, tried)
        trials = _Trials(compiled, progress, time.monotonic() + seconds)
        with program.guarded() as damage:
            trials.damage = damage
            found = trials.refused(text)
        verified = None if found else _verified(mine, trials, function.config)
        axes = {name: {str(d): axis for d, axis in dims.items()} for name, dims in compiled.axes.items()}
        return Outcome(Verdict(mine, verified, found), tried.ours, axes, compiled.name_in_runs)


@dataclass(slots=True)
class _Trials:
    compiled: Compiled
    progress: Progress
    until: float
    damage: Callable[[], str] = str
    kinds: list[str] = field(default_factory=list)
    left: int = 0
    gradients: bool = False
    _ours: Compiled | None = None

    def refused(self, text: str) -> tuple[Found, ...]:
        unit = self.compiled.tried.unit
        try:
            self._all()
        except (Differs, Damages) as error:
            code = "FL628" if isinstance(error, Differs) else "FL629"
            return (Found(1, str(error), code=code),)
        except Exception as error:
            if self.compiled.tried.error is None:
                raise
            del error
        if self.compiled.tried.error is not None:
            return refusals.of_build(self.compiled.tried.error, unit, text)
        if not self.kinds:
            return (Found(1, self._gone(), code="FL621"),)
        if not self.compiled.tried.built:
            said = [d.message for d in self.compiled.recorder.report.diagnostics if d.code.startswith(("FL3", "FL4"))]
            return (Found(1, f"it was not built, so nothing was compared: {'; '.join(said)}"),)
        return ()

    def _gone(self) -> str:
        """Why no graph has the unit any more."""
        unit, report = self.compiled.tried.unit, self.compiled.recorder.report
        same = [
            u
            for g in report.graphs
            for u in g.units
            if (g.id, u.phase, u.language) == (unit.graph, unit.phase, unit.language)
        ]
        why = content_changed(unit.outline, same[0].outline) if same else ""
        return f"`{unit.function}` is compiled to another program now{f': {why}' if why else ''}"

    def _all(self) -> None:
        for name, args, kwargs in self.compiled.calls():
            self._say(name)
            for watched in self.compiled.run(args, kwargs):
                if self.compiled.tried.error is not None:
                    return
                self._graph(name, watched, first=not self.kinds)

    def _say(self, kind: str) -> None:
        self.progress(f"{self.compiled.tried.unit.function}: {kind}")

    def _graph(self, name: str, watched: Watched, *, first: bool) -> None:
        """One graph on the inputs of a call, and on other values where it is the first one."""
        given = watched.given
        assert given is not None
        eager = functools.partial(_spread, eagerly(watched.captured))
        random = self._is_random(eager, given)
        if random:
            eager = self._our_own(watched) or eager
        others = kinds.other_values(tuple(given), {}) if first else ()
        native = self.compiled.tried.unit.language == "cpp"
        for number, (kind, values) in enumerate([(name, given), *((k.name, k.args) for k in others)]):
            if time.monotonic() > self.until:
                self.left += 1
                continue
            self._say(kind)
            for at_end in (False, True) if native and number == 0 else (bool(number % 2),):
                with _threads(number):
                    self._compare(kind, watched, eager, values, decided_in_double=not random, at_end=at_end)

    def _compare(
        self, kind: str, watched: Watched, eager: Any, given: Sequence[Any], *, decided_in_double: bool, at_end: bool
    ) -> None:  # fmt: skip
        names = [f"input {k}" for k in range(len(given))]
        guarded = GuardedCalls(watched.call, at_end)
        try:
            expected = agreement.observed(eager, given, names)
        except Exception:  # noqa: BLE001 - such values are nothing for the graph
            return
        try:
            found = agreement.observed(guarded, given, names)
        except Exception as error:
            if damaged := self.damage():
                raise Damages(f"on {kind}: {damaged}") from error
            raise _as_found(kind, error) from error
        if damaged := guarded.damage or self.damage():
            raise Damages(f"on {kind}, it writes to {damaged}")
        differs = agreement.difference(expected, found, None)
        if decided_in_double and (differs is not None or agreement.in_doubt(expected, found)):
            differs = agreement.difference(expected, found, _in_double(eager, given, names))
        if differs is not None and not self._as_ours(kind, watched, given, names, expected, found):
            where, how = differs
            raise Differs(f"on {kind}, {where}: {how.replace('compiled', 'yours')}")
        self.gradients |= any(where.startswith("gradient") for where, _ in found)
        if kind not in self.kinds:
            self.kinds.append(kind)

    def _as_ours(
        self, kind: str, watched: Watched, given: Sequence[Any], names: Sequence[str], expected: Any, found: Any
    ) -> bool:  # fmt: skip
        """Whether our kernels differ from eager on these values, too, and the edited ones not from ours: rounding decides then."""
        self._say(f"{kind}, with our kernels")
        if (call := self._our_own(watched)) is None:
            return False
        ours = agreement.observed(call, given, names)
        return (
            agreement.difference(expected, ours, None) is not None and agreement.difference(ours, found, None) is None
        )

    def _is_random(self, eager: Any, given: Sequence[Any]) -> bool:
        names = [f"input {k}" for k in range(len(given))]
        try:
            one, other = (agreement.observed(eager, given, names, seed) for seed in (0, 1))
        except Exception:  # noqa: BLE001
            return False
        return agreement.difference(one, other, None) is not None

    def _our_own(self, watched: Watched) -> Any:
        """The graph with our kernels; None where they were not compiled for it. They draw the same random numbers, eager others."""
        if self._ours is None:
            self._ours = Compiled.of(self.compiled.function, Tried(self.compiled.tried.unit, None))
            _, args, kwargs = next(self._ours.calls())
            self._ours.run(args, kwargs)
        number = next(n for n, w in self.compiled.tried.graphs.items() if w is watched)
        same = self._ours.tried.graphs.get(number)
        return functools.partial(_spread, same.call) if same is not None else None


def _in_double(eager: Any, given: Sequence[Any], names: Sequence[str]) -> agreement.Values | None:
    try:
        return agreement.in_double(eager, given, names)
    except Exception:  # noqa: BLE001 - an operator that has no kernel for float64, a check of a dtype
        return None


def _spread(call: Any, *given: Any) -> Any:
    return call(given)


def _as_found(kind: str, error: Exception) -> Exception:
    from .interpreted import OutOfBounds

    if isinstance(error, OutOfBounds):
        return Damages(f"on {kind}, {error}")
    if "wait status" in str(error):
        return Damages(f"on {kind}, it crashes Triton's interpreter ({error})")
    if "CUDA error" in str(error):  # after which nothing works any more
        return Damages(f"on {kind}, it crashes: {str(error).splitlines()[0]}")
    return Differs(f"on {kind}, it raises {refusals.last_line(raised(error, 4000))}")


def _verified(text: str, trials: _Trials, config: Config) -> Verified:
    tried = trials.compiled.tried
    return Verified(
        text, _target(config, tried), tuple(trials.kinds), trials.left, trials.gradients, torch.get_num_threads(),
        _processor(), _versions(config, tried.unit),
    )  # fmt: skip


class _threads:  # noqa: N801 - a context, like ``seeded``
    """Every other kind of inputs runs with another number of threads: kernels share their work out."""

    def __init__(self, number: int) -> None:
        self._wanted = 1 if number % 2 else max(2, torch.get_num_threads())

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        torch.set_num_threads(self._wanted)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)


def _target(config: Config, tried: Tried) -> str:
    if tried.unit.language == "cpp":
        return host_isa(config)
    if tried.interpreted:
        return "interpreter"
    major, minor = torch.cuda.get_device_capability()
    return f"cuda:sm_{10 * major + minor}"


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return next(_models(), platform.processor() or platform.machine())


def _models() -> Iterator[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            yield from (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
    except OSError:
        return


def _versions(config: Config, unit: Unit) -> dict[str, str]:
    found = {"fuselens": __version__, "torch": str(torch.__version__)}
    if unit.language == "triton":
        import triton

        return found | {"triton": str(triton.__version__)}
    return found | {"compiler": find_compiler(config).version}
