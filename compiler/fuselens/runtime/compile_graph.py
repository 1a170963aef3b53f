"""The build stage: from generated sources to a callable."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .. import torch_private
from ..config import Config
from ..record import report
from . import memory, program
from .build import build as build_library
from .build import build_ahead as build_library_ahead
from .build import function, is_built
from .cache.store import Cache

if TYPE_CHECKING:
    from ..ir.contracts.source import Generated, Source
    from ..ir.loops import Graph
    from ..pipeline.graph_cache import Program

Call = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@dataclass(slots=True)
class Built:
    """A callable graph and what the report says about making it.

    ``call`` takes the graph's inputs as one tuple and returns its outputs. ``cached`` says that no compiler ran.
    """

    call: Call
    stages: list[report.Stage] = field(default_factory=list)
    kernels: list[report.Kernel] = field(default_factory=list)
    timings: list[report.Timing] = field(default_factory=list)
    cached: bool = False
    diagnostics: list[report.Diagnostic] = field(default_factory=list)


SUFFIXES = {"cpp": "cpp", "triton": "py", "user_triton": "py", "host": "py"}


def texts(generated: Generated) -> list[report.Stage]:
    """What was generated, to read."""
    return [report.Stage(s.language, SUFFIXES[s.language], s.text, s.lines) for s in generated.sources()]


def unit(source: Source, flags: tuple[str, ...], config: Config) -> tuple[str, tuple[str, ...]]:
    """The text of a C++ unit and its flags: with the lines of the user's program, where debug symbols are wanted."""
    if not config.debug_symbols:
        return source.text, flags
    spans = {line.line: line.spans[0] for line in source.lines if line.spans}
    out, before = list[str](), None
    for number, text in enumerate(source.text.split("\n"), start=1):
        span = spans.get(number)
        place = None if span is None else (span.line, span.file)
        if place is not None:
            out.append(f"#line {place[0]} {json.dumps(place[1], ensure_ascii=False)}")
        elif before is not None:
            out.append(f'#line {number} "generated.cpp"')
        out.append(text)
        before = place
    return "\n".join(out), (*flags, "-g")


def build(
    graph: Program,
    generated: Generated,
    config: Config,
    target: str = "cpu",
    phase: str = "forward",
    title: str = "",
    about: Callable[[], str] = str,
) -> Built:
    """Builds the kernels of ``graph``, binds them to the host program and returns the callable (on the
    CPU without ``config.build``: nothing that could be called). ``title`` is what profilers call it, ``about``
    says what it holds where memory runs out.

    Raises :class:`.build.NoCompiler` (FL403) and :class:`.build.BuildFailed` (FL402).
    """
    if config.keep_freed_memory:
        memory.keep_freed()
        if generated.program is not None:
            program.keep_freed()
    cache = Cache(config.cache_dir)
    built = Built(call=_unbound)
    built.stages = texts(generated)
    host = generated.host
    names: dict[str, Any] = {"torch": torch}
    built.cached = True
    built.kernels = _kernels(graph, generated, phase)
    if not config.build and target == "cpu":
        if generated.cpp is not None:
            built.cached = is_built(*unit(generated.cpp, generated.isa_flags, config), config, cache)
        return built
    if generated.cpp is not None:
        start = time.perf_counter()
        made = build_library(*unit(generated.cpp, generated.isa_flags, config), config, cache)
        built.timings.append(report.Timing("build.cpp", made.seconds, start))
        built.cached = made.cached
        library = made.library
        if generated.program is None:
            for info in generated.cpp.kernels:
                names[info.name] = function(library, info.function, len(info.arguments), len(info.sizes))
            if any(i.checks for i in generated.cpp.kernels):
                names["check_errors"] = memory.error_check(library, generated.cpp.checks)
    elif generated.triton is not None and target.startswith("cuda"):
        from .gpu.launch import load_triton

        start = time.perf_counter()
        names |= load_triton(generated.triton, config, cache)
        names["current_stream"] = torch_private.current_stream
        built.timings.append(report.Timing("build.triton", time.perf_counter() - start, start))
    start = time.perf_counter()
    steps = host.program if host is not None and program.runs_steps(target) else None
    if steps is not None:
        built.call = program.bind_steps(steps, graph.constants, names, title, about)
    elif host is not None:
        names |= {"reinterpret": memory.reinterpret, "settled": memory.settled, "after_writing": memory.after_writing}
        names |= {name: graph.constants[buffer] for name, buffer in host.constants.items()}
        names |= {name: memory.maker(*made) for name, made in host.makers.items()}
        exec(compile(host.text, f"<fuselens host program {graph.name}>", "exec"), names)
    if generated.program is not None:
        built.call = program.bind(library, generated.program, graph.constants, names, title, about)
    else:
        if steps is None:
            built.call = names["call"]
        if target.startswith("cuda") and generated.triton is not None and torch.cuda.device_count() > 1:
            from .gpu.launch import on_device

            built.call = on_device(built.call, generated.triton)
    built.timings.append(report.Timing("build.host", time.perf_counter() - start, start))
    built.diagnostics = cache.drain()
    return built


def build_ahead(generated: Generated, config: Config) -> None:
    """Starts to build what :func:`build` will ask for."""
    if generated.cpp is not None and config.build:
        build_library_ahead(*unit(generated.cpp, generated.isa_flags, config), config)


def floats_as_tensors(call: Call, inputs: Sequence[int], outputs: Sequence[int], graph: Graph) -> Call:
    """``call`` for callers that have numbers at these positions of inputs and outputs, where the graph has tensors."""
    device = graph.buffers[graph.inputs[inputs[0]]].device
    tensor = functools.partial(torch.tensor, dtype=torch.float64, device=device)

    def run(given: tuple[Any, ...]) -> tuple[Any, ...]:
        values = list(given)
        for i in inputs:
            values[i] = tensor(values[i])
        results = call(tuple(values))
        if outputs:
            made = list(results)
            for i in outputs:
                made[i] = made[i].item()
            return tuple(made)
        return results

    return run


def _unbound(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    raise RuntimeError("the graph was not built")


def _kernels(graph: Program, generated: Generated, phase: str) -> list[report.Kernel]:
    sources = [source for source in (generated.cpp or generated.triton, generated.user) if source is not None]
    return [
        report.Kernel(
            name=k.name, backend=source.language, phase=phase, kind=k.kind, operations=k.operations, spans=k.spans,
            bytes_read=None if k.bytes_read is None else graph.hint(k.bytes_read),
            bytes_written=None if k.bytes_written is None else graph.hint(k.bytes_written),
        )
        for source in sources for k in source.kernels
    ]  # fmt: skip
