"""The phases of a joint graph, forward and backward: each goes through the stages, becomes a callable, and is kept in the cache.
Imported when there is a graph that the cache does not know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from .. import torch_private
from ..autograd.joint import Joint
from ..autograd.partition import forward_only, partition
from ..footprint.work import of_graph
from ..ir.contracts.signature import SavedValue, Signature
from ..ir.graphs import graph_text
from ..ir.graphs.content import content_of
from ..ir.graphs.straight_line import straight_line
from ..ir.user_kernels import launches
from ..lowering.lower import fuses
from ..record import live_memory
from ..record.report import MemoryStep, Operation
from ..rewrite import biases
from ..rewrite.fold import fold
from ..rewrite.freeze import freeze
from ..rewrite.layout import channels_last
from ..runtime.compile_graph import Call, build_ahead, floats_as_tensors
from ..schedule.order import live_bytes
from ..schedule.structure import operations
from . import gpu, pinned, programs
from .effects import with_effects
from .graph_cache import Entry, GraphCache, Program
from .overlap import predicted
from .recorder import Run
from .refusals import Ready, or_else
from .stages import LOOPS, SIMPLIFY, Work, python_numbers, through

if TYPE_CHECKING:
    from ..footprint.ledger import Ledger

Bind = Callable[[], Call]  # waits for compilers, and loads what they made
Keep = Callable[[Program], None]
NOTHING: Mapping[int, Any] = MappingProxyType({})


def compile_joint(
    joint: Joint, run: Run, cache: GraphCache, *, again: bool = False, constants: Mapping[int, Any] = NOTHING
) -> Ready:
    """What gives the callable of a joint graph, whose kernels are being compiled by now. ``cache`` receives what is made;
    ``again``: it lacks only the backward, which therefore is made at once. ``constants`` are what frozen inputs hold."""
    run.record("joint", "py", lambda: graph_text.show(joint.graph, f"joint{run.graph.id}"))
    if run.loops and run.rewrites("fold"):
        fold(joint.graph, joint.root)
    run.graph.training = joint.training
    return _training(joint, run, cache, again) if joint.training else _inference(joint, run, cache, constants)


def _inference(joint: Joint, run: Run, cache: GraphCache, constants: Mapping[int, Any]) -> Ready:
    keep = _keeping(cache, run, joint.signature)
    module = forward_only(joint)
    if constants:
        with run.stage("freeze"), torch_private.autocast_off():
            run.decided(freeze(module, constants))
    if run.loops and run.rewrites("layout"):
        _lay_out([module.graph], lambda: (), run)
    bind, written = _programmed(module, run, keep, writes=joint.signature.new_values(), constants=constants)
    return lambda: with_effects(joint.signature, bind(), written, run)


def _lay_out(graphs: list[fx.Graph], passed: Callable[[], Iterable[tuple[fx.Node, fx.Node]]], run: Run) -> None:
    """Chooses the memory of images. Which convolutions add their biases depends on it; then it is a sum that is ``passed``."""
    compare = gpu.biases(run)
    biases.apart(graphs, compare)
    if channels_last(graphs, passed(), gpu.convolutions(run)):
        biases.apart(graphs, compare)


def _training(joint: Joint, run: Run, cache: GraphCache, again: bool) -> Ready:
    with run.stage("partition"):
        parts = partition(joint, memory_budget=run.config.memory_budget, fuses=fuses)
    if run.loops and run.rewrites("layout"):
        _lay_out([parts.forward.graph, parts.backward.graph], parts.passed, run)
    run.decided(parts.decisions)
    run.record("forward", "py", lambda: graph_text.show(parts.forward.graph, f"forward{run.graph.id}"))
    run.record("backward", "py", lambda: graph_text.show(parts.backward.graph, f"backward{run.graph.id}"))
    saved_results = {s.index for s in parts.saved if s.source != "input"}
    new_values = {i: r for i, r in parts.signature.new_values().items() if r not in saved_results}
    bind_forward, written = _programmed(
        parts.forward, run, _keeping(cache, run, parts.signature, parts.saved), writes=new_values
    )
    donated = [k for k, s in enumerate(parts.saved) if s.source == "extra" and s.tensor]
    eager: Bind = functools.partial(straight_line, parts.backward)

    @functools.cache
    def lower_backward() -> Bind:
        keep = functools.partial(_store, cache, run, "backward")
        backward = replace(run, phase="backward")
        return or_else(lambda: _programmed(parts.backward, backward, keep, donated=donated)[0], lambda _: eager, run)

    run.backwards.append(lower_backward)

    def compile_backward() -> Callable[..., Any]:
        for lower in run.backwards:  # of the parts of one graph all are needed, and compiled side by side
            lower()
        return or_else(lower_backward(), lambda _: eager(), run)

    if run.loops and run.target == "cuda" and not run.recorder.texts:
        lower_backward()  # while the forward's kernels are compiled
    return lambda: with_effects(
        parts.signature, bind_forward(), written, run, saved=parts.saved, compile_backward=compile_backward, again=again
    )


def _keeping(cache: GraphCache, run: Run, signature: Signature, saved: Sequence[SavedValue] = ()) -> Keep:
    """What keeps a forward's program in the cache, with what the report has of its graph by now."""
    training, decisions = run.graph.training, run.graph.decisions[:]
    stages = [s for s in run.graph.stages if s.name != "capture"]
    return lambda program: _store(
        cache, run, "forward", Entry(signature, training, program, list(saved), decisions, stages)
    )


def _store(cache: GraphCache, run: Run, phase: str, content: Entry | Program) -> None:
    cache.store(phase, content)
    for diagnostic in cache.cache.drain():
        run.say(diagnostic)


def _programmed(
    module: fx.GraphModule, run: Run, keep: Keep, *, writes: Mapping[int, int] = NOTHING,
    constants: Mapping[int, Any] = NOTHING, donated: Sequence[int] = (),
) -> tuple[Bind, list[int]]:  # fmt: skip
    """What makes a callable, and those of the inputs in ``writes`` that it writes by itself, returning None for results.

    ``keep`` is given what a later process builds it from. Kernels are being compiled when this returns.
    """
    if not run.loops:
        return lambda: straight_line(module), []
    if run.until[0] in ("simplify", "lower", "fuse"):
        return _stopped(Work(run, module, run.target, constants=constants)), []
    if run.recorder.ledger is not None:
        return _imagined(module, run, writes, constants, donated)
    first = len(run.graph.stages)
    absent = run.for_absent_gpu
    work = Work(run, module, "cuda" if absent else run.target, absent, writes, constants, donated)
    simplified = through([SIMPLIFY], work)
    shown = through(LOOPS, simplified)
    ran = through(LOOPS, simplified.also_on_cpu, quiet=True) if absent else shown
    program = _program(shown, ran)
    stages = run.graph.stages[first:]
    programs.say(program, run)
    ahead = pinned.chosen(program, run, gpu.built_for(run))
    if run.target == "cuda" and ahead.generated.triton is not None:
        from ..runtime.gpu.launch import compile_ahead

        compile_ahead([ahead.generated.triton], run.config)
    elif run.graph.part_of is not None:
        build_ahead(ahead.generated, run.config)

    def bind() -> Call:
        call = programs.bound(program, run)
        keep(replace(program, stages=stages))
        if absent:
            with run.stage("build.ptx"):
                made = gpu.compile_for_absent(shown.ordered, shown.generated, run)
            if run.recorder.trial is not None:
                call = run.recorder.trial.in_place(shown.ordered, made, run.phase, call)
        if program.generated.program is not None:
            return call  # a host program in C++ takes numbers as they are
        floats, numbers = python_numbers(ran.module)
        return floats_as_tensors(call, floats, numbers, ran.ordered) if floats else call

    return bind, program.written


def _imagined(
    module: fx.GraphModule, run: Run, writes: Mapping[int, int], constants: Mapping[int, Any], donated: Sequence[int]
) -> tuple[Bind, list[int]]:  # fmt: skip
    """What makes a callable that allocates as the program would, on the machine that it is for."""
    from ..footprint.imagined import Imagined

    def ledger() -> Ledger:
        assert run.recorder.ledger is not None
        return run.recorder.ledger

    absent = run.for_absent_gpu
    work = Work(run, module, "cuda" if absent else run.target, absent, writes, constants, donated)
    work = through(LOOPS, through([SIMPLIFY], work))
    run.decided([*work.decisions, *work.ordered.decisions])
    graph, given = work.ordered, run.captured.inputs
    written = [i for i, name in enumerate(work.loops.inputs) if name in work.loops.writes]
    updates = run.phase == "forward" and any(isinstance(given[i], torch.nn.Parameter) for i in writes if i < len(given))
    floats = frozenset(python_numbers(module)[1])
    title = f"{run.recorder.report.function} graph {run.graph.id} {run.phase}"
    call = Imagined(graph, ledger, run.phase, floats=floats, updates=updates, title=title)
    return lambda: call, written


def _stopped(work: Work) -> Bind:
    """What the graph is after the last stage that is wanted: run operator by operator, or interpreted."""
    last, _ = work.run.until
    work = through([SIMPLIFY], work)
    if last == "simplify":
        work.run.decided(work.decisions)
        return lambda: straight_line(work.module)
    from ..ir.evaluate import evaluate

    names = [stage.name for stage in LOOPS]
    work = through(LOOPS[: names.index(last) + 1], work)
    graph = work.loops if last == "lower" else work.fused
    work.run.decided([*work.decisions, *graph.decisions])
    floats, numbers = python_numbers(work.module)

    def interpreted(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(evaluate(graph, list(inputs)))

    return lambda: floats_as_tensors(interpreted, floats, numbers, graph) if floats else interpreted


def _program(shown: Work, ran: Work) -> Program:
    """What is kept: of the graph that runs, with what the stages decided for the one that is shown."""
    run, here = shown.run, ran.ordered
    held = live_memory.saved_bytes(run.graph) if run.phase == "backward" else 0
    memory = [
        MemoryStep(node.name, run.phase, held + count, node.spans)
        for node, count in zip(shown.ordered.nodes, live_bytes(shown.ordered), strict=True)
    ]
    written = [i for i, name in enumerate(ran.loops.inputs) if name in ran.loops.writes]
    decisions = [*shown.decisions, *predicted(shown.ordered, run, shown.target == "cuda")]
    operators = [e.target for e in shown.ordered.externs() if not launches(e)]
    return Program(
        here.name,
        ran.generated.counted(here.hint),
        dict(here.constants),
        written,
        decisions,
        memory,
        operators,
        structure=_structure(shown) if run.recorder.texts else (),
        work=of_graph(shown.ordered, run.phase),
        content=content_of(here, pinned.built_source(ran.generated, ran.target)),
    )


def _structure(shown: Work) -> list[Operation]:
    """What pictures of the graph show, in the user's names of sizes."""
    found = operations(shown.loops, shown.ordered, shown.run.phase)
    return [replace(o, type=shown.run.in_names_of_axes(o.type)) for o in found]
