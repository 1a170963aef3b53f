"""What the pipeline does for graphs on a GPU besides the stages, and for CPU graphs that are compiled for one.

For a GPU that is absent (``Config.target``) a graph goes through the same stages, and its kernels are compiled and reported;
what runs is the same graph's kernels for the CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ..capture.frame.captured import Captured
from ..config import assembly_of
from ..ir.card import H100, Card, usual
from ..record import report
from ..record.diagnostics import make
from ..rewrite.alignment import Compare
from ..rewrite.layout import Measured, convolution_of
from ..runtime.build import host_isa
from ..runtime.compile_graph import texts
from . import pinned
from .cache_keys import facts_of
from .recorder import Run

if TYPE_CHECKING:
    from ..codegen.triton.tools.assembly import Compiled
    from ..ir.contracts.source import Generated, Source
    from ..ir.loops import Graph

Call = Callable[[tuple[Any, ...]], Any]
_MOST_COMPILED = (
    16  # kernels of a graph for a GPU that is absent, of which a check tells the resources: those that move most
)


def cards(captured: Captured) -> tuple[Any, ...]:
    """What the stages may see of the graph's GPUs and the software for them."""
    from ..runtime.gpu.triton_jobs import versions

    found: list[tuple[Any, ...]] = []
    for device in devices(captured):
        told: Any = torch.cuda.get_device_properties(device)
        about = (told.name, told.total_memory, told.L2_cache_size, *dataclasses.astuple(as_told(told)))
        found.append((str(device), *about))
    return (torch.version.cuda, torch.backends.cudnn.version(), found, versions())


def card(run: Run) -> Card:
    """The GPU that the run's graph is compiled for, or would be."""
    if found := devices(run.captured):
        return as_told(torch.cuda.get_device_properties(found[0]))
    return usual(_architecture(run)) if run.for_absent_gpu else H100


def as_told(properties: Any) -> Card:
    """The card of which torch tells this; older versions tell less. Copies reach nine tenths of the memory's speed, and a
    program gets 1 KB less than a multiprocessor has of its own."""
    like = usual(10 * properties.major + properties.minor)
    names = ("memory_clock_rate", "memory_bus_width", "shared_memory_per_multiprocessor")
    clock, width, shared = (getattr(properties, name, 0) for name in names)
    return Card(
        10 * properties.major + properties.minor,
        properties.multi_processor_count,
        float(f"{0.9 * 2e3 * clock * width / 8:.1e}") or like.bandwidth,
        shared - 1024 if shared else like.shared,
    )


def built_for(run: Run) -> tuple[str, ...]:
    """What kernels that run are built for: an instruction set, or an architecture of GPUs."""
    return (f"cuda:sm_{card(run).architecture}" if run.target == "cuda" else host_isa(run.config),)


def devices(captured: Captured) -> list[torch.device]:
    found = map(torch.device, facts_of(captured).devices)
    return [device for device in found if device.type == "cuda"]


def _architecture(run: Run) -> int:
    """Of the GPU that is not here: the number in ``sm_90``."""
    return int(run.config.target.partition("sm_")[2].rstrip("af") or 90)


def convolutions(run: Run) -> Measured | None:
    """What convolutions take on the run's card; None where it runs on the CPU."""
    found = devices(run.captured)
    if not found:
        return None
    from ..runtime.gpu import convolutions

    def seconds(node: fx.Node) -> tuple[float, float] | None:
        question = convolution_of(node)
        return convolutions.seconds(convolutions.Convolution(**question), run.config, found[0]) if question else None

    return Measured(seconds, card(run).bandwidth)


def products(run: Run) -> Compare:
    """What products of matrices take on a card, as they are and on padded operands."""
    from ..runtime.gpu import products

    return lambda product, device: products.seconds(product, run.config, device)


def biases(run: Run) -> Compare:
    """What products of matrices take on a card with their biases, and without."""
    from ..runtime.gpu import products

    return lambda product, device: products.seconds_of_bias(product, run.config, device)


def is_tuned(run: Run) -> bool:
    """Whether parts of the graph may be measured."""
    return not (run.target == "cuda" and torch.cuda.is_current_stream_capturing())


def tuned(fused: Graph, loops: Graph, run: Run) -> tuple[Graph, dict[str, Any], list[report.Decision]]:
    """The graph with what measuring chose, the choices by kernel, and what was tried."""
    from . import tuning

    measured = tuning.unmeasured if run.for_absent_gpu else None
    if run.config.mode.startswith("max-autotune"):
        return tuning.for_gpu(fused, run.config, measured, loops)
    ahead = None if run.for_absent_gpu else functools.partial(_compile_ahead, run)
    return tuning.with_readers(fused, run.config, measured, ahead, loops)


def _compile_ahead(run: Run, fused: Graph, tunings: Mapping[str, Any], open_: Collection[str]) -> None:
    """Has those kernels of a graph compiled in the background that are not ``open_``."""
    from ..codegen.triton.kernels import to_triton
    from ..ir.contracts.source import Unsupported
    from ..runtime.gpu.launch import compile_ahead
    from ..schedule.order import order

    with suppress(Unsupported):
        source = to_triton(order(fused), tunings=tunings)
        certain = tuple(k for k in source.kernels if k.name not in open_)
        compile_ahead([dataclasses.replace(source, kernels=certain)], run.config)


def recorded(call: Call, written: Sequence[int], run: Run) -> Call:
    """``call``, recorded as CUDA graphs where the mode asks for it. ``written`` are the inputs that it writes to."""

    def unrecorded(code: str, why: str) -> None:
        run.say(make(code, run.captured.span, what=f"graph {run.graph.id} ({run.phase})", why=why))

    config = run.config
    if run.target == "cuda" and config.mode in ("reduce-overhead", "max-autotune"):
        from ..runtime.gpu.cuda_graphs import Recorded

        static = run.captured.owned if run.phase == "forward" else ()
        symbolic = run.captured.varies
        return Recorded(call, written, static, symbolic, config.cuda_graph_memory, unrecorded, run.title)
    if config.mode == "reduce-overhead" or (run.for_absent_gpu and config.mode == "max-autotune"):
        absent = f"{config.target} is compiled for, not run on"
        unrecorded("FL501", absent if run.for_absent_gpu else "it runs on the CPU")
    return call


def with_resources(kernels: list[report.Kernel], source: Source | None, run: Run) -> list[report.Kernel]:
    """``kernels`` with the registers, spills and shared memory of those that run on the GPU, where texts are wanted."""
    if not run.recorder.texts or run.target != "cuda" or source is None or not kernels:
        return kernels
    from ..codegen.triton.tools.assembly import Compiled, resource_usage
    from ..runtime.gpu.launch import compiled

    made = {
        name: Compiled(asm, {**resource_usage(asm["cubin"]), "shared": shared})
        for name, (asm, shared) in compiled(source, run.config, texts=bool(assembly_of(run.config))).items()
    }
    _keep_assembly(source, made, run)
    functions = {k.name: k.function for k in source.kernels}
    found = {name: made[f].resources for name, f in functions.items() if f in made}
    return [dataclasses.replace(k, resources=dict(found.get(k.name, {}))) for k in kernels]


def as_on_gpu(module: fx.GraphModule, fused: Graph) -> Source | None:
    """The Triton kernels that a CPU graph would have on a GPU, to look at: of the graph as it was lowered if Triton can
    express it. None where there are none."""
    from ..codegen.triton.kernels import to_triton
    from ..ir.contracts.source import Unsupported
    from ..lowering.lower import lower
    from ..schedule.fuse import fuse
    from ..schedule.gpu.split import for_gpu
    from ..schedule.order import order

    with suppress(Unsupported):
        return to_triton(order(for_gpu(fused)))
    with suppress(Unsupported):
        return to_triton(order(for_gpu(fuse(lower(module, name=fused.name, device="cuda").replace(card=fused.card)))))
    return None


def compile_for_absent(graph: Graph, generated: Generated, run: Run) -> Generated:
    """What was generated of a graph for the configured GPU, compiled: texts and resources, nothing that runs. Returns it with the
    kernels that the project has."""
    from ..ir.graphs.content import content_of

    ours = generated
    by_function: dict[str, Compiled] = {}
    if ours.triton is not None:
        content, targets = content_of(graph, ours.triton), (f"cuda:sm_{_architecture(run)}", "interpreter")
        generated = pinned.placed(ours, ours.triton, content, run, targets)
        assert generated.triton is not None
        try:
            by_function = _compiled_offline(graph, generated.triton, run)
        except Exception as error:
            if run.recorder.trial is not None:
                run.recorder.trial.failed(content.name, run.phase, error)
            if generated is ours or run.recorder.trial is not None:
                raise
            pinned.failed(run, f"{type(error).__name__}: {error}")
            generated = ours
            by_function = _compiled_offline(graph, ours.triton, run)
    run.keep_sources(texts(generated))
    own = generated.user.kernels if generated.user is not None else ()
    run.graph.kernels += [report.Kernel(k.name, "user_triton", run.phase, k.kind, k.operations, k.spans) for k in own]
    source = generated.triton
    if source is None:
        return generated
    for info in source.kernels:
        compiled = by_function.get(info.function)
        resources = dict(compiled.resources) if compiled is not None else {}
        read, written = (None if b is None else graph.hint(b) for b in (info.bytes_read, info.bytes_written))
        run.graph.kernels.append(report.Kernel(
            info.name, "triton", run.phase, info.kind, info.operations, info.spans, read, written, resources=resources
        ))  # fmt: skip
    if by_function:
        _keep_assembly(source, by_function, run)
    return generated


def _compiled_offline(graph: Graph, source: Source, run: Run) -> dict[str, Compiled]:
    """The functions of Triton kernels by name, compiled for the configured GPU; nothing where there is no Triton."""
    from concurrent.futures import ThreadPoolExecutor

    from ..codegen.triton.tools.assembly import Compiled
    from ..codegen.triton.tools.offline import compile_kernel, load_module

    try:
        module = load_module(source)
    except ImportError as error:
        refused = make("FL402", run.captured.span, what=run.config.target, why=f"Triton is not installed ({error})")
        message = f"kernels for {run.config.target} are not compiled: Triton is not installed"
        run.say(dataclasses.replace(refused, message=message))
        return {}
    distinct = [info for info in source.kernels if info.same_as is None]
    if run.config.weightless and not assembly_of(run.config):
        largest = sorted(
            distinct, key=lambda info: -sum(map(graph.hint, filter(None, (info.bytes_read, info.bytes_written))))
        )
        distinct = largest[:_MOST_COMPILED]
    compile_ = functools.partial(compile_kernel, module, arch=_architecture(run))
    by_function: dict[str, Compiled] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # most of it waits for ptxas
        for info, asm in zip(distinct, pool.map(compile_, distinct), strict=True):
            by_function[info.function] = Compiled(asm, {k: int(asm[k]) for k in ("registers", "spills", "shared")})
    return by_function


def _keep_assembly(source: Source, compiled: Mapping[str, Compiled], run: Run) -> None:
    """The documents of compiled Triton kernels; where nobody asked for them, only that there are such."""
    import triton

    from ..codegen.triton.tools import assembly

    if not run.recorder.texts:
        return
    run.recorder.report.versions |= {"triton": triton.__version__}
    wanted = assembly_of(run.config)
    for form in assembly.forms():
        text, lines = assembly.document(form, source, compiled) if form in wanted else ("", ())
        suffix = assembly.SUFFIXES[form]
        if suffix == "mlir":
            text = run.in_names_of_axes(text, "_size")
        run.keep(report.Stage(run.named(form), suffix, text, lines, later=form not in wanted))
