"""A function compiled with an edited unit in the place of ours, and what is called of it meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ... import api
from ...inputs.comparison import copied
from ...pins.records import Unit
from ...pipeline import Recorder
from ...proving import kinds
from ..check import OpenFunction

if TYPE_CHECKING:
    from ...capture.frame.captured import Captured
    from ...ir.contracts.source import Generated
    from ...ir.loops import Graph

Call = Callable[[tuple[Any, ...]], Any]
_SIZES = {0: "the example inputs", 4: "other sizes", -1: "odd sizes", -2: "small sizes"}


@dataclass(slots=True)
class Watched:
    """A graph, compiled, and what it was last called with."""

    captured: Captured
    call: Call
    given: list[Any] | None = None


@dataclass(slots=True)
class UnitCall:
    """A call of the unit itself."""

    call: Call
    inputs: tuple[Any, ...]


@dataclass(slots=True)
class Tried:
    """``unit`` is built of ``edited``, or of our own text where that is None. ``on_cpu``: kernels for a GPU that is not here are
    run by Triton's interpreter."""

    unit: Unit
    edited: str | None
    ours: str = ""
    error: Exception | None = None
    graphs: dict[int, Watched] = field(default_factory=dict)
    calls: list[UnitCall] = field(default_factory=list)
    built: bool = False
    interpreted: bool = False
    keeps_calls: bool = False

    def _is(self, content: str, phase: str) -> bool:
        return (content, phase) == (self.unit.content, self.unit.phase)

    def text(self, content: str, phase: str, language: str, ours: str) -> str | None:
        if not self._is(content, phase) or language != self.unit.language:
            return None
        self.ours = ours
        return self.edited

    def failed(self, content: str, phase: str, error: Exception) -> None:
        if self._is(content, phase):
            self.error = error

    def bound(self, content: str, phase: str, call: Call) -> Call:
        if not self._is(content, phase):
            return call
        self.built = True
        if not self.keeps_calls:
            return call

        def kept(inputs: Any) -> Any:
            self.calls = [UnitCall(call, tuple(inputs))]
            return call(inputs)

        return kept

    def in_place(self, graph: Graph, generated: Generated, phase: str, call: Call) -> Call:
        from ...ir.graphs.content import content_of
        from . import interpreted

        source = generated.triton
        if source is None or self.unit.language != "triton":
            return call
        if not self._is(content_of(graph, source).name, phase):
            return call
        self.built = self.interpreted = True
        return interpreted.call_of(graph, source)

    def graph(self, number: int, captured: Captured, call: Call) -> Call:
        watched = self.graphs[number] = Watched(captured, call)

        def run(inputs: tuple[Any, ...]) -> Any:
            watched.given = copied(list(inputs), False)
            return call(inputs)

        return run


@dataclass(slots=True)
class Compiled:
    """A function compiled for a trial."""

    function: OpenFunction
    tried: Tried
    recorder: Recorder
    call: Any
    axes: dict[str, dict[int, str]]

    @classmethod
    def of(cls, function: OpenFunction, tried: Tried) -> Compiled:
        config = dataclasses.replace(
            function.config, explore=False, weightless=False, build=True, strict=False, dump=None, live=False
        )
        recorder = Recorder(function.annotated.qualname, function.file.path, None, config, texts=False, backwards=True)
        recorder.trial = tried
        axes = function.inputs().dynamic
        call = api.wrap(function.target, config, recorder=recorder, owner=object(), axes=axes)
        return cls(function, tried, recorder, call, axes)

    @property
    def name_in_runs(self) -> str:
        """What ``fuselens.compile`` would call the function in a run."""
        target = self.function.target
        return getattr(target, "__qualname__", type(target).__name__)

    def calls(self) -> Iterator[tuple[str, Any, Any]]:
        """How the function is called: as its example says, then with other sizes where its annotations leave them open."""
        for variant in _SIZES:
            kinds.seeded()
            inputs = self.function.inputs(variant)
            if variant and not inputs.dynamic:
                return
            yield _SIZES[variant], inputs.args, inputs.kwargs

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Watched]:
        """Calls the function. Returns the graphs that called the unit, or would in their backward."""
        for watched in self.tried.graphs.values():
            watched.given = None
        torch.manual_seed(0)
        self.call(*copied(args, False), **copied(kwargs, False))
        self.recorder.finish()
        return [w for number, w in self.tried.graphs.items() if number in self._numbers() and w.given is not None]

    def _numbers(self) -> set[int]:
        """The graphs of the unit."""
        graphs = self.recorder.report.graphs
        found = [
            g
            for g in graphs
            for u in g.units
            if (u.content, u.phase) == (self.tried.unit.content, self.tried.unit.phase)
        ]
        return {g.id for g in found}
