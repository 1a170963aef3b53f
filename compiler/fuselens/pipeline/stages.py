"""The stages in their order: from a joint graph to programs. Imported when there is a graph that the cache does not know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from .. import torch_private
from ..autograd.joint import Joint
from ..autograd.partition import forward_only, partition
from ..autograd.unsupported import Unsupported
from ..codegen.generate import generate
from ..ir import graph_text, text
from ..ir.contracts.signature import SavedValue, Signature
from ..ir.straight_line import straight_line
from ..lowering.lower import fuses, lower
from ..lowering.operators.products import form
from ..record import live_memory
from ..record.report import Decision, MemoryStep
from ..rewrite.attention import attention
from ..rewrite.constants import Constants
from ..rewrite.convolutions import pack
from ..rewrite.freeze import freeze
from ..rewrite.halves import single
from ..rewrite.layout import channels_last
from ..rewrite.libraries import choose
from ..rewrite.rows import own_attention
from ..rewrite.simplify import simplify
from ..runtime.autotune import tune
from ..runtime.build import host_isa
from ..runtime.compile_graph import Call, floats_as_tensors
from ..runtime.measure import LEAST_GAIN, Libraries
from ..schedule.fuse import fuse
from ..schedule.gpu.split import for_gpu
from ..schedule.order import live_bytes, order
from . import gpu, programs
from .effects import with_effects
from .graph_cache import Entry, GraphCache, Program
from .recorder import Run
from .refusals import or_else

Bind = Callable[[], Call]  # waits for compilers, and loads what they made
Keep = Callable[[Program], None]
_NOTHING: Mapping[int, Any] = MappingProxyType({})


def compile_joint(
    joint: Joint, run: Run, cache: GraphCache, *, again: bool = False, constants: Mapping[int, Any] = _NOTHING
) -> Callable[..., Any]:
    """The callable of a joint graph. ``cache`` receives what is made; ``again``: it lacks only the backward, which
    therefore is made at once. ``constants`` are what frozen inputs hold."""
    run.record("joint", "py", lambda: graph_text.show(joint.graph, f"joint{run.graph.id}"))
    run.graph.training = joint.training
    return _training(joint, run, cache, again) if joint.training else _inference(joint, run, cache, constants)


def _inference(joint: Joint, run: Run, cache: GraphCache, constants: Mapping[int, Any]) -> Callable[..., Any]:
    keep = _keeping(cache, run, joint.signature)
    module = forward_only(joint)
    if constants:
        with run.stage("freeze"), torch_private.autocast_off():
            run.graph.decisions += freeze(module, constants)
    if run.loops:
        channels_last([module.graph])
    bind, written = _lowered(module, run, keep, writes=joint.signature.new_values(), constants=constants)
    return with_effects(joint.signature, bind(), written, run)


def _training(joint: Joint, run: Run, cache: GraphCache, again: bool) -> Callable[..., Any]:
    with run.stage("partition"):
        parts = partition(joint, memory_budget=run.config.memory_budget, fuses=fuses)
    if run.loops:
        channels_last([parts.forward.graph, parts.backward.graph], parts.passed())
    run.graph.decisions += parts.decisions
    run.record("forward", "py", lambda: graph_text.show(parts.forward.graph, f"forward{run.graph.id}"))
    run.record("backward", "py", lambda: graph_text.show(parts.backward.graph, f"backward{run.graph.id}"))
    saved_results = {s.index for s in parts.saved if s.source != "input"}
    new_values = {i: r for i, r in parts.signature.new_values().items() if r not in saved_results}
    bind_forward, written = _lowered(
        parts.forward, run, _keeping(cache, run, parts.signature, parts.saved), writes=new_values
    )
    donated = [k for k, s in enumerate(parts.saved) if s.source == "extra" and s.tensor]
    eager: Bind = functools.partial(straight_line, parts.backward)

    @functools.cache
    def lower_backward() -> Bind:
        keep = functools.partial(_store, cache, run, "backward")
        backward = replace(run, phase="backward")
        return or_else(lambda: _lowered(parts.backward, backward, keep, donated=donated)[0], lambda _: eager, run)

    def compile_backward() -> Callable[..., Any]:
        return or_else(lower_backward(), lambda _: eager(), run)

    if run.loops and run.target == "cuda" and not run.recorder.texts:
        lower_backward()  # while the forward's kernels are compiled
    return with_effects(
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


def _lowered(
    module: fx.GraphModule, run: Run, keep: Keep, *, writes: Mapping[int, int] = _NOTHING,
    constants: Mapping[int, Any] = _NOTHING, donated: Sequence[int] = (),
) -> tuple[Bind, list[int]]:  # fmt: skip
    """What makes a callable, and those of the inputs in ``writes`` that it writes by itself, returning None for results.

    ``keep`` is given what a later process builds it from. Kernels for a GPU are being compiled when this returns.
    """
    if not run.loops:
        return lambda: straight_line(module), []
    config, record, target, absent = run.config, run.graph, run.target, run.for_absent_gpu
    first = len(record.stages)
    with run.stage("simplify"):
        module, decisions = _simplified(module, run, constants)
    run.record("simplify", "py", lambda: graph_text.show(module.graph, f"{run.phase}{record.id}"))
    with run.stage("lower"):
        name = f"graph{record.id}" if run.phase == "forward" else f"graph{record.id}_{run.phase}"
        lowered = functools.partial(lower, module, name=name, writes=dict(writes))
        loops = lowered(device="cuda" if absent else None).replace(card=gpu.card(run))
    run.record("lower", "loop", lambda: text.show(loops))
    with run.stage("fuse"):
        fused = fuse(loops)
        if target == "cuda" or absent:
            fused = for_gpu(fused)
    run.record("fuse", "loop", lambda: text.show(fused))
    tunings: dict[str, Any] = {}
    if target == "cuda" or absent:
        fused, tunings, tried = gpu.tuned(fused, loops, run)
        decisions += tried
    if target == "cuda" and torch.are_deterministic_algorithms_enabled() and fused.order_matters():
        raise Unsupported(
            "torch.use_deterministic_algorithms(True) holds, and it changes elements in an order that varies"
        )
    with run.stage("order"):
        taken = [loops.inputs[k] for k in donated] if donated and target == "cpu" and programs.donates() else ()
        ordered = order(fused, () if absent else taken)
        own = lowered() if absent else loops  # of what runs
        here = order(fuse(own), taken) if absent else ordered
    run.record("order", "loop", lambda: text.show(ordered))
    floats, numbers = _floats(module)
    with run.stage("generate"):
        isa = host_isa(config)
        make_sources = functools.partial(
            generate, here, target, isa, floats=floats, float_outputs=numbers, fast_math=config.fast_math
        )
        if config.mode.startswith("max-autotune") and target == "cpu" and not absent:
            from ..codegen.cpu.cpp import variants

            others = variants(ordered, isa, torch.get_num_threads())
            tunings, tried = tune(ordered, lambda chosen: make_sources(cpp_host=False, tunings=chosen), others, config)
            decisions += tried
        shown = target == "cpu" and not absent and (config.triton_text or run.recorder.texts)
        document = gpu.as_on_gpu(module, fused) if shown else None
        generated = make_sources(document, cpp_host=programs.has_cpp_hosts(), tunings=tunings)
        there = generate(ordered, config.target, isa, cpp_host=False) if absent else generated
    held = live_memory.saved_bytes(record) if run.phase == "backward" else 0
    memory = [
        MemoryStep(node.name, run.phase, held + count, node.spans)
        for node, count in zip(ordered.nodes, live_bytes(ordered), strict=True)
    ]
    written = [i for i, name in enumerate(own.inputs) if name in own.writes]
    program = Program(
        here.name, generated.counted(here.hint), dict(here.constants), written,
        [*decisions, *ordered.decisions], memory,
        [e.target for e in ordered.externs()],
    )  # fmt: skip
    stages = record.stages[first:]
    programs.say(program, record)
    if target == "cuda" and generated.triton is not None:
        from ..runtime.gpu.launch import compile_ahead

        compile_ahead([generated.triton], config)

    def bind() -> Call:
        call = programs.bound(program, run)
        keep(replace(program, stages=stages))
        if absent:
            with run.stage("build.ptx"):
                gpu.compile_for_absent(ordered, there, run)
        in_python = generated.program is None
        return floats_as_tensors(call, floats, numbers, here) if floats and in_python else call

    return bind, written


def _simplified(module: fx.GraphModule, run: Run, known: Mapping[int, Any]) -> tuple[fx.GraphModule, list[Decision]]:
    module = simplify(module)
    if run.for_absent_gpu:
        return module, own_attention(module, "cuda")  # the CPU's libraries do not matter
    decisions = [*attention(module), *own_attention(module)]
    libraries, constants = Libraries(run.config), Constants(module, known)
    with torch_private.autocast_off():
        decisions += single(module, libraries.half_seconds, LEAST_GAIN, constants, form)
        decisions += choose(module, libraries.seconds, LEAST_GAIN, constants)
        decisions += pack(module, libraries.convolution_seconds, constants)
    return module, decisions


def _floats(module: fx.GraphModule) -> tuple[list[int], list[int]]:
    """Which inputs and which results are numbers of Python's."""
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    results = next(n for n in module.graph.nodes if n.op == "output").args[0]

    def found(nodes: Sequence[Any]) -> list[int]:
        return [
            i for i, n in enumerate(nodes) if isinstance(n, fx.Node) and isinstance(n.meta.get("val"), torch.SymFloat)
        ]

    return found(given), found(results)
