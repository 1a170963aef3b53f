"""Candidates for parts of a GPU's graph, timed on the card with its second-level cache full of something else.

A part is a graph of its own (``ir.parts``), so that equal parts of a network are measured once, and remembered on disk for
this kind of card. All that is not known yet is compiled in parallel first. What may be a candidate others say.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...config import Config
from ...ir import text
from ...ir.dtypes import DTYPES
from ...ir.loops import Attention, Graph, Kernel, symbol
from ...ir.parts import part
from ...record.report import Decision, Span
from .. import compile_graph, measure
from ..build import BuildFailed

if TYPE_CHECKING:
    from ...ir.contracts.source import Generated

FLUSHED = 6  # times the size of the cache is read before a call: while that lasts, the next launches are prepared. Had it been
# written, a kernel that waits for memory would wait for that to leave the cache as well, and one that computes would not
FIRST, MORE = 3, 9  # calls of each candidate, and of those that may be the fastest
CLOSE = 1.25  # part of the best time so far below which a candidate may be the fastest
GAIN = 0.95  # part of the first candidate's time that another must stay below


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph, and how its kernels are tuned. ``label`` is for people, and tells it from the other candidates."""

    label: str
    graph: Graph
    tunings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timed:
    """Candidates that compute the same with their seconds, infinite for those that cannot be built, NaN where nothing can
    be measured. The first is what is taken without a reason for another."""

    candidates: tuple[Candidate, ...]
    seconds: tuple[float, ...]

    @property
    def best(self) -> int:
        least = min(range(len(self.seconds)), key=self.seconds.__getitem__)
        return least if self.seconds[least] < GAIN * self.seconds[0] else 0

    @property
    def reason(self) -> str:
        first, best = self.candidates[0].label, self.candidates[self.best].label
        if math.isnan(self.seconds[0]):
            return f"there is no GPU to measure these on, so {first} is taken"
        if not self.best:
            return f"nothing is faster than {first}"
        return f"{best} takes {self.seconds[self.best] / self.seconds[0]:.2f} of the time of {first}"

    def decision(self, subject: str, span: Span | None, otherwise: str) -> Decision:
        """The record of it. ``otherwise`` is what it says where the first is kept."""
        return Decision("FL416", "taken" if self.best else otherwise, subject, self.reason, span, self.table)

    @property
    def table(self) -> dict[str, float | None]:
        times = zip(self.candidates, self.seconds, strict=True)
        return {c.label: None if math.isnan(s) else s for c, s in times if s != math.inf}


Generate = Callable[[Graph, Mapping[str, Any]], "Generated | None"]  # None for what cannot be generated
Meanwhile = Callable[[], object]  # what is done while candidates are compiled
Measure = Callable[[Sequence[Sequence[Candidate]], Generate, Config, Meanwhile], list[list[float]]]


def tune(
    graph: Graph, variants: Mapping[str, Sequence[Any]], generate: Generate, config: Config, measured: Measure
) -> tuple[dict[str, Any], list[Decision]]:
    """The best of the ``variants`` of each kernel where it beats the first, and a record of what was tried."""
    kernels: dict[str, tuple[Graph, list[Kernel | Attention]]] = {}
    for kernel in (*graph.kernels(), *graph.attentions()):
        if len(variants.get(kernel.name, ())) > 1:
            alone = part(graph, [kernel])
            kernels.setdefault(text.show(alone)[0], (alone, []))[1].append(kernel)
    questions = [
        tuple(Candidate(str(v), alone, {alone.nodes[0].name: v}) for v in variants[same[0].name])
        for alone, same in kernels.values()
    ]
    chosen: dict[str, Any] = {}
    decisions = []
    for result, (_, same) in zip(timed(questions, generate, config, measured), kernels.values(), strict=True):
        if result.best:
            chosen |= {k.name: variants[k.name][result.best] for k in same}
        if not math.isinf(result.seconds[0]):
            names, span = ", ".join(k.name for k in same), next(iter(same[0].spans), None)
            decisions.append(result.decision(names, span, "default"))
    return chosen, decisions


def nothing() -> None:
    """For those who have nothing to do meanwhile."""


def timed(
    questions: Sequence[Sequence[Candidate]],
    generate: Generate,
    config: Config,
    measured: Measure,
    meanwhile: Meanwhile = nothing,
) -> list[Timed]:
    """The candidates of each question with their times, from the cache or as ``measured``."""
    asked = [_question(candidates) for candidates in questions]
    known = [measure.recalled(config, q) for q in asked]
    unknown = {text: k for k, text in enumerate(map(str, asked)) if known[k] is None}
    found = measured([questions[k] for k in unknown.values()], generate, config, meanwhile) if unknown else []
    for (key, k), seconds in zip(unknown.items(), found, strict=True):
        kept = [None if math.isinf(s) else s for s in seconds]
        for other, same in enumerate(asked):
            if str(same) == key:
                known[other] = kept
        if kept and math.isfinite(seconds[0]):
            measure.remembered(config, asked[k], lambda kept=kept: kept)
    return [
        Timed(tuple(c), tuple(math.inf if s is None else s for s in seconds))
        for c, seconds in zip(questions, known, strict=True)
    ]


def _question(candidates: Sequence[Candidate]) -> dict[str, Any]:
    """What the times of candidates depend on, besides the machine."""
    graphs = {id(c.graph): c.graph for c in candidates}
    numbers = {each: k for k, each in enumerate(graphs)}
    shown = [(c.label, numbers[id(c.graph)], {k: repr(v) for k, v in c.tunings.items()}) for c in candidates]
    texts = [text.show(g)[0] for g in graphs.values()]
    return {
        "graphs": texts,
        "candidates": shown,
        "card": card(),
        "triton": _triton(),
        "hints": dict(candidates[0].graph.hints),
    }


def card() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


# --- on the card --------------------------------------------------------------------------------------------------------


def on_card(
    questions: Sequence[Sequence[Candidate]], generate: Generate, config: Config, meanwhile: Meanwhile
) -> list[list[float]]:
    """Seconds of each candidate of each question."""
    from .launch import compile_ahead, wait_for

    made = [[generate(c.graph, c.tunings) for c in candidates] for candidates in questions]
    built = [(g, c) for row, candidates in zip(made, questions, strict=True)
             for g, c in zip(row, candidates, strict=True) if g is not None and g.triton is not None]  # fmt: skip
    jobs = compile_ahead([g.triton for g, _ in built if g.triton], config, [c.graph.hints for _, c in built])
    meanwhile()
    wait_for(jobs, config)
    return [
        _seconds([_call(c, g, config) for c, g in zip(candidates, row, strict=True)], [c.graph for c in candidates])
        for candidates, row in zip(questions, made, strict=True)
    ]


def _call(candidate: Candidate, generated: Generated | None, config: Config) -> Callable[[Any], Any] | None:
    if generated is None:
        return None
    try:
        program: Any = candidate.graph
        return compile_graph.build(program, generated, config, "cuda").call
    except BuildFailed:
        return None


def _seconds(calls: Sequence[Callable[[Any], Any] | None], graphs: Sequence[Graph]) -> list[float]:
    """The median of some calls of each, with the cache cold. Taking turns, so that the card is as warm for all."""
    times: list[list[float]] = [[] for _ in calls]
    try:
        kinds = [tuple(_kind(g, name) for name in g.inputs) for g in graphs]  # their inputs may come in another order
        memory = {kind: _memory(kind) for kind in dict.fromkeys(kinds)}
        properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
        other = torch.zeros(FLUSHED * properties.L2_cache_size // 4, device="cuda")
        total = torch.empty((), device="cuda")
    except torch.OutOfMemoryError:
        return [math.inf] * len(calls)
    ready = {
        k: functools.partial(call, memory[kind])
        for k, (call, kind) in enumerate(zip(calls, kinds, strict=True)) if call is not None
    }  # fmt: skip
    ready = {k: call for k, call in ready.items() if _runs(call)}
    for rounds in (FIRST, MORE):
        events = []
        for _ in range(rounds):
            for k, call in ready.items():
                start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.sum(other, 0, out=total)
                start.record()
                call()
                end.record()
                events.append((k, start, end))
        torch.cuda.synchronize()
        for k, start, end in events:
            times[k].append(1e-3 * start.elapsed_time(end))
        least = min((statistics.median(times[k]) for k in ready), default=0.0)
        ready = {k: call for k, call in ready.items() if k == 0 or statistics.median(times[k]) < CLOSE * least}
    return [statistics.median(t) if t else math.inf for t in times]


def _runs(call: Callable[[], Any]) -> bool:
    """Calls it a first time: libraries and kernels are loaded then. False where the card refuses its launch, or memory ends."""
    try:
        call()
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Input:
    """A tensor that begins with ``elements`` in memory, or a number."""

    dtype: str
    elements: int
    sizes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    device: str = ""


def _kind(graph: Graph, name: str) -> _Input:
    if name in graph.symbols:
        return _Input("", graph.hint(symbol(name)))
    buffer = graph.buffers[name]
    elements = 0
    for each in graph.buffers.values():
        if each.owner == name:
            last = [graph.hint(each.offset)]
            last += [(graph.hint(n) - 1) * graph.hint(s) for n, s in zip(each.sizes, each.strides, strict=True)]
            elements = max(elements, sum(last) + 1)
    sizes, strides = (tuple(graph.hint(e) for e in of) for of in (buffer.sizes, buffer.strides))
    return _Input(buffer.dtype, elements, sizes, strides, buffer.device)


def _memory(inputs: Sequence[_Input]) -> tuple[Any, ...]:
    """Inputs of a part: random floats, and zeros, which are valid positions, elsewhere."""
    generator = torch.Generator("cuda").manual_seed(0)
    made: list[Any] = []
    for each in inputs:
        if not each.dtype:
            made.append(each.elements)
            continue
        flat = torch.zeros(each.elements, dtype=DTYPES[each.dtype], device=each.device)
        if flat.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            flat.normal_(generator=generator)
        made.append(flat.as_strided(each.sizes, each.strides))
    return tuple(made)
