"""The stages between a graph of ATen operators and its programs, in their order: what each makes, how that reads, and what must hold of it.

A graph goes through :data:`LOOPS` for what it runs on. With a GPU that is not here as its target it goes through the same list
twice: for that GPU, to be read, and for the CPU, to be run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from .. import torch_private
from ..autograd.untraceable import Untraceable
from ..codegen.generate import generate
from ..ir import collectives, text
from ..ir.contracts.source import Generated
from ..ir.graphs import graph_text
from ..ir.loops import Graph
from ..ir.verify import verify
from ..lowering.lower import lower
from ..lowering.operators.products import form
from ..record.report import Decision, Line
from ..rewrite.alignment import pad_products
from ..rewrite.buckets import bucket_collectives
from ..rewrite.constants import Constants
from ..rewrite.convolutions import pack
from ..rewrite.flash_attention import call_flash_attention
from ..rewrite.halves import multiply_in_single
from ..rewrite.libraries import choose
from ..rewrite.own_attention import call_own_attention
from ..rewrite.simplify import simplify
from ..runtime import operators as _operators  # noqa: F401 - torch finds the kernels of ours there
from ..runtime.autotune import tune
from ..runtime.build import host_isa
from ..runtime.measure import LEAST_GAIN, Libraries
from ..schedule.fuse import fuse
from ..schedule.gpu.split import for_gpu
from ..schedule.order import order
from . import gpu, programs
from .recorder import Run

_UNMADE: Any = None


@dataclass(frozen=True)
class Work:
    """A graph on its way, for one target. What a stage makes is unmade before it.

    ``writes`` are the results to be written into inputs, by the inputs' numbers; ``constants`` what inputs hold, where that is
    known; ``donated`` the inputs whose memory may be taken over.
    """

    run: Run
    module: fx.GraphModule
    target: str  # "cpu", or "cuda"
    absent: bool = False  # the GPU is not here: what is made for it is read, and not run
    writes: Mapping[int, int] = field(default_factory=dict)
    constants: Mapping[int, Any] = field(default_factory=dict)
    donated: Sequence[int] = ()
    decisions: tuple[Decision, ...] = ()
    loops: Graph = _UNMADE
    fused: Graph = _UNMADE  # also what tune chose
    tunings: Mapping[str, Any] = field(default_factory=dict)  # choices for kernels, by their names
    ordered: Graph = _UNMADE
    generated: Generated = _UNMADE

    @property
    def name(self) -> str:
        number = f"graph{self.run.graph.id}"
        return number if self.run.phase == "forward" else f"{number}_{self.run.phase}"

    @property
    def also_on_cpu(self) -> Work:
        """The same graph after its first stage, for the CPU that runs it in place of the GPU that is not here."""
        return replace(self, target="cpu", absent=False, decisions=())

    def and_decided(self, decisions: Sequence[Decision], **made: Any) -> Work:
        return replace(self, decisions=(*self.decisions, *decisions), **made)


Shown = tuple[str, tuple[Line, ...]]


@dataclass(frozen=True)
class Stage:
    """``make`` fills what the stage makes; ``show`` is how that reads, in a document that ends in ``suffix``; ``verify`` raises
    where a rule of it is broken. ``concerns`` says for which graphs there is such a stage."""

    name: str
    make: Callable[[Work], Work]
    suffix: str = ""
    show: Callable[[Work], Shown] | None = None
    verify: Callable[[Work], None] | None = None
    concerns: Callable[[Work], bool] = lambda work: True


def through(stages: Sequence[Stage], work: Work, *, quiet: bool = False) -> Work:
    """``work`` after the stages, each timed and recorded (not if ``quiet``), and verified where the configuration is strict."""
    run = work.run
    for stage in stages:
        if not stage.concerns(work):
            continue
        with nullcontext() if quiet else run.stage(stage.name):
            work = stage.make(work)
        if stage.verify is not None and run.config.strict:
            stage.verify(work)
        if stage.show is not None and not quiet:
            run.record(stage.name, stage.suffix, partial(stage.show, work))
    return work


# --- what each stage does ---------------------------------------------------------------------------------------------


def _simplified(work: Work) -> Work:
    does = work.run.rewrites
    collectives.settle(work.module.graph)
    module = simplify(work.module) if does("simplify") else work.module
    most = int(work.run.config.bucket_cap_mb * 2**20)
    joins = most > 0 and work.run.phase == "forward" and does("buckets")
    buckets = bucket_collectives(module, most) if joins else []
    if work.absent:
        # the CPU's libraries do not matter
        return work.and_decided([*buckets, *call_own_attention(module, "cuda")], module=module)
    decisions = [*buckets, *(call_flash_attention(module) if does("flash attention") else ())]
    decisions += call_own_attention(module) if does("own attention") else []
    libraries, constants = Libraries(work.run.config), Constants(module, work.constants)
    with torch_private.autocast_off():
        if does("half products"):
            decisions += multiply_in_single(module, libraries.half_seconds, LEAST_GAIN, constants, form)
        if does("libraries"):
            decisions += choose(module, libraries.seconds, LEAST_GAIN, constants)
        if does("packed convolutions"):
            decisions += pack(module, libraries.convolution_seconds, constants)
        if work.target == "cuda" and does("padded products"):
            decisions += pad_products(module, gpu.products(work.run))
    return work.and_decided(decisions, module=module)


def _lowered(work: Work) -> Work:
    device = "cuda" if work.absent else None
    loops = _planned_for(lower(work.module, name=work.name, writes=dict(work.writes), device=device), work.run)
    return replace(work, loops=loops if _runs_beside_absent_gpu(work) else loops.replace(card=gpu.card(work.run)))


def _planned_for(loops: Graph, run: Run) -> Graph:
    """With the upper ends of buckets in the place of example sizes: from here on these only say what is worth it."""
    ends = {} if run.captured.sizes is None else run.captured.sizes.ends
    planned = loops.replace(hints={s: ends.get(s, hint) for s, hint in loops.hints.items()})
    sizes = {n for buffer in loops.buffers.values() for n in buffer.sizes}
    return planned if all(planned.hint(n) > 0 or loops.hint(n) <= 0 for n in sizes) else loops


def _runs_beside_absent_gpu(work: Work) -> bool:
    return work.run.for_absent_gpu and not work.absent


def _fused(work: Work) -> Work:
    fused = fuse(work.loops, work.run.fusions)
    return replace(work, fused=for_gpu(fused) if work.target == "cuda" else fused)


def _is_tuned(work: Work) -> bool:
    return work.target == "cuda" and gpu.is_tuned(work.run) and work.run.fusions is None


def _tuned(work: Work) -> Work:
    fused, tunings, tried = gpu.tuned(work.fused, work.loops, work.run)
    return work.and_decided(tried, fused=fused, tunings=tunings)


def _ordered(work: Work) -> Work:
    if work.target == "cuda" and not work.absent and torch.are_deterministic_algorithms_enabled():
        _refuse_orders_that_vary(work.fused)
    may_take = work.target == "cpu" and work.donated and programs.donates()
    return replace(work, ordered=order(work.fused, [work.loops.inputs[k] for k in work.donated] if may_take else ()))


def _refuse_orders_that_vary(fused: Graph) -> None:
    if fused.order_matters():
        raise Untraceable(
            "torch.use_deterministic_algorithms(True) holds, and it changes elements in an order that varies"
        )


def _generated(work: Work) -> Work:
    config, isa = work.run.config, host_isa(work.run.config)
    if work.absent:
        return replace(work, generated=generate(work.ordered, config.target, isa, cpp_host=False, tunings=work.tunings))
    floats, numbers = python_numbers(work.module)

    def sources(document: Any = None, **how: Any) -> Generated:
        return generate(
            work.ordered,
            work.target,
            isa,
            document,
            floats=floats,
            float_outputs=numbers,
            fast_math=config.fast_math,
            **how,
        )

    if _has_variants(work):
        from ..codegen.cpu.cpp import variants

        others = variants(work.ordered, isa, torch.get_num_threads())
        tunings, tried = tune(work.ordered, lambda chosen: sources(cpp_host=False, tunings=chosen), others, config)
        work = work.and_decided(tried, tunings=tunings)
    document = gpu.as_on_gpu(work.module, work.fused) if _has_document(work) else None
    return replace(work, generated=sources(document, cpp_host=programs.has_cpp_hosts(), tunings=work.tunings))


def _has_variants(work: Work) -> bool:
    """Whether kernels for the CPU are measured in several forms."""
    return work.run.config.mode.startswith("max-autotune") and work.target == "cpu" and not work.run.for_absent_gpu


def _has_document(work: Work) -> bool:
    """Whether the kernels that a GPU would have are wanted as a text."""
    run = work.run
    return work.target == "cpu" and not run.for_absent_gpu and (run.config.triton_text or run.recorder.texts)


def python_numbers(module: fx.GraphModule) -> tuple[list[int], list[int]]:
    """Which inputs and which results are floats of Python's."""
    given = [n for n in module.graph.nodes if n.op == "placeholder"]
    results = next(n for n in module.graph.nodes if n.op == "output").args[0]

    def found(nodes: Sequence[Any]) -> list[int]:
        return [
            i for i, n in enumerate(nodes) if isinstance(n, fx.Node) and isinstance(n.meta.get("val"), torch.SymFloat)
        ]

    return found(given), found(results)


# --- the list ---------------------------------------------------------------------------------------------------------


def _show_module(work: Work) -> Shown:
    return graph_text.show(work.module.graph, f"{work.run.phase}{work.run.graph.id}")


SIMPLIFY = Stage("simplify", _simplified, "py", _show_module, lambda work: work.module.graph.lint())
LOOPS = (
    Stage("lower", _lowered, "loop", lambda work: text.show(work.loops), lambda work: verify(work.loops)),
    Stage("fuse", _fused, "loop", lambda work: text.show(work.fused), lambda work: verify(work.fused)),
    Stage("tune", _tuned, "loop", lambda work: text.show(work.fused), lambda work: verify(work.fused), _is_tuned),
    Stage("order", _ordered, "loop", lambda work: text.show(work.ordered), lambda work: verify(work.ordered)),
    Stage("generate", _generated),
)
