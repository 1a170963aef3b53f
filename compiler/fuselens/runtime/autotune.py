"""Variants of generated kernels, measured side by side on memory of the sizes that the graph was traced with."""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..config import Config
from ..ir.dtypes import DTYPES
from ..ir.loops import Graph, symbol
from ..record.report import Decision
from . import build, measure
from .cache.store import Cache

if TYPE_CHECKING:
    from ..ir.contracts.source import Generated, KernelInfo

V = TypeVar("V")
ROUNDS = 5  # interleaved
SHORT = 2e-4  # seconds that one measurement lasts at least
GAIN = 0.9  # part of the default's time that a variant must stay below


def tune(
    graph: Graph, generate: Callable[[Mapping[str, V]], Generated], variants: Mapping[str, Sequence[V]], config: Config
) -> tuple[dict[str, V], list[Decision]]:
    """The fastest variant of each kernel where it beats the default, and a record of what was tried.

    The i-th variants of all kernels are one unit, so that there are as many units to build as variants of one kernel.
    """
    first = generate({})
    if first.cpp is None:
        return {}, []
    kernels = {k.name: k for k in first.cpp.kernels if k.name in variants and not k.checks and k.same_as is None}
    names = {name: [str(v) for v in variants[name]] for name in kernels}
    if not names:
        return {}, []
    sizes = {s: graph.hint(symbol(s)) for s in graph.symbols}
    question = {
        "text": first.cpp.text,
        "variants": names,
        "sizes": sizes,
        "compiler": build.find_compiler(config).version,
    }

    def measured() -> dict[str, list[float]]:
        count = max(len(variants[name]) for name in kernels)
        units = [{n: variants[n][k] for n in kernels if k < len(variants[n])} for k in range(count)]
        sources = [first, *(generate(unit) for unit in units)]
        return _seconds(graph, kernels, sources, [set(kernels), *map(set, units)], config)

    seconds = measure.remembered(config, question, measured)
    chosen: dict[str, V] = {}
    decisions = []
    for name, (default, *others) in seconds.items():
        best = min(range(len(others)), key=others.__getitem__)
        taken = others[best] < GAIN * default
        if taken:
            chosen |= {k.name: variants[k.name][best] for k in first.cpp.kernels if k.function == name}
        what = f"{names[name][best]} takes {others[best] / default:.2f} of the time of the default"
        span = next(iter(kernels[name].spans), None)
        tried = dict(zip(names[name], others, strict=True))
        decisions.append(
            Decision("FL416", "taken" if taken else "default", name, what, span, {"default": default, **tried})
        )
    return chosen, decisions


def _seconds(
    graph: Graph,
    kernels: Mapping[str, KernelInfo],
    sources: Sequence[Generated],
    present: Sequence[set[str]],
    config: Config,
) -> dict[str, list[float]]:
    """For each kernel the least seconds of a call in each unit that has a variant of it."""
    cache = Cache(config.cache_dir)
    libraries = [build.build(s.cpp.text, s.isa_flags, config, cache).library for s in sources if s.cpp is not None]
    found: dict[str, list[float]] = {}
    for name, info in kernels.items():
        memory = _memory(graph, info)
        sizes = [graph.hint(symbol(s)) for s in info.sizes]
        arguments = (*(t.data_ptr() for t in memory), *sizes)
        calls = [
            build.function(library, name, len(memory), len(sizes))
            for library, names in zip(libraries, present, strict=True) if name in names
        ]  # fmt: skip
        found[name] = _least(calls, arguments)
    return found


def _least(calls: Sequence[ctypes._NamedFuncPointer], arguments: tuple[Any, ...]) -> list[float]:  # pyright: ignore[reportPrivateUsage]
    """The least seconds of each call, taking turns; short ones are repeated within a measurement."""
    least = [math.inf] * len(calls)
    start = time.perf_counter()
    for call in calls:
        call(*arguments)
    repeat = max(1, int(SHORT * len(calls) / max(1e-7, time.perf_counter() - start)))
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeat):
                call(*arguments)
            least[k] = min(least[k], (time.perf_counter() - start) / repeat)
    return least


def _memory(graph: Graph, info: KernelInfo) -> list[torch.Tensor]:
    """Memory for each argument: ones in floats, so that nothing is denormal, and zeros, which are valid positions, elsewhere."""
    extents: dict[str, int] = {}
    for buffer in graph.buffers.values():
        last = [graph.hint(buffer.offset)]
        last += [(graph.hint(n) - 1) * graph.hint(s) for n, s in zip(buffer.sizes, buffer.strides, strict=True)]
        for name in graph.owners(buffer.name):
            extents[name] = max(extents.get(name, 0), (sum(last) + 1) * DTYPES[buffer.dtype].itemsize)
    made = []
    for name in info.arguments:
        dtype = DTYPES[graph.buffers[name].dtype]
        elements = max(0, extents[name]) // dtype.itemsize + 1
        made.append(torch.full((elements,), 1 if dtype.is_floating_point else 0, dtype=dtype, device="cpu"))
    return made
