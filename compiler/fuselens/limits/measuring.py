"""Measures what the machine, or the card, can do: how fast our simplest kernels read, copy and write, how many operations of each kind
kernels do, and how many the vendor's libraries do in products. The fastest of some calls counts.

Times are those of kernels alone (:mod:`fuselens.inputs.kernel_pass`), so neither calls nor allocations are in them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..api import wrap
from ..config import Config
from ..footprint import costs
from ..footprint.work import PLAIN
from ..inputs import kernel_pass
from ..inputs.structures import tensors_in
from ..ir.card import usual
from ..pipeline import programs
from ..pipeline.recorder import Recorder
from ..record import plain
from ..record.limits import with_limits
from ..record.report import KernelRun, Machine, RunResult
from ..runtime import measure
from ..schedule.items import COSTS

_VERSION = 3  # raise it where the same machine would be told other figures
_BYTES = tuple(1 << n for n in range(14, 29, 2))  # that kernels move, of which the largest are in no cache
_BYTES_OF_CARD = tuple(1 << n for n in range(16, 31, 2))
_ROW_OF_CARD = 1024  # numbers
_SECONDS = 0.02  # of calls for each size
_TERMS = 8  # of a kernel whose operations are counted
_PLAIN_TERMS_OF_CARD = 32  # that many additions and products take longer there than what the kernel moves
_NUMBERS = 32768  # for each thread: its second-level cache has them
_NUMBERS_OF_CARD = 1 << 22
_LONG = 0.004  # seconds of a product that is not tried with more numbers
_PIECE = 1 << 20  # bytes that a call moves at most: it is rarely interrupted
_LEAST_CALLS, _PATIENCE = 16, 10  # that are made, for so many times the seconds at most
_DISTURBED = 2.0  # times the shortest call: what takes longer was interrupted
_SLOWER, _TRIES = 0.2, 4  # of the speed of a larger size, at which a smaller one is measured again, so often
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "exp": torch.exp, "expm1": torch.expm1, "log": torch.log, "log1p": torch.log1p,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "erf": torch.erf, "sin": torch.sin, "div": torch.div, "pow": torch.pow,
}  # fmt: skip
"""What is measured of ``COSTS``; the others take, beside ``exp``, as much as it says."""
_OF_TWO = frozenset(("div", "pow"))


def with_machine(result: RunResult, inputs: Any, config: Config, say: Callable[[str], None]) -> RunResult:
    """The outcome of a run with the limits of its kernels; as it is, where none was timed."""
    if not any(kernel.seconds for kernel in result.kernels):
        return result
    device = "cuda" if any(t.is_cuda for t in tensors_in(inputs)) else "cpu"
    return with_limits(result, machine(device, config, say))


def machine(
    device: str, config: Config, say: Callable[[str], None] = lambda _: None, *, again: bool = False
) -> Machine:
    """What ``device`` ("cpu" or "cuda") of this machine can do: measured when it is first asked for, or ``again``."""
    own = Config(cache_dir=config.cache_dir, cxx=config.cxx, explore=False)

    def measured() -> Any:
        say("measure what this machine can do, once")
        return plain.to_plain(_measured(device, own))

    return plain.from_plain(Machine, measure.remembered(own, _question(device), measured, again=again))


def has_card() -> bool:
    return torch.cuda.is_available()


def of_target(target: str, config: Config) -> Machine | None:
    """What is compiled for, if that was measured before; of a GPU that is not here, by the figures of its kind."""
    device = "cuda" if target.startswith("cuda") else "cpu"
    if device == "cuda" and not has_card():
        architecture = "".join(c for c in target.partition("sm_")[2] if c.isdigit())
        return costs.of_card(usual(int(architecture or 90)))
    found = measure.recalled(config, _question(device))
    return None if found is None else plain.from_plain(Machine, found)


def _question(device: str) -> dict[str, Any]:
    card = {"card": torch.cuda.get_device_name()} if device == "cuda" else {}
    return {"limits": _VERSION, "device": device, **card}


def _measured(device: str, config: Config) -> Machine:
    sizes = _BYTES if device == "cpu" else _BYTES_OF_CARD
    reads = _curve((_total, _largest), 1, sizes, device, config)
    copies = _curve((_copy,), 2, sizes, device, config)
    writes = _curve((_fill,), 1, sizes, device, config)
    operations = _operations(device, config) | {f"product {name}": speed for name, speed in _products(device)}
    one = itertools.repeat((torch.ones(1, device=device),))
    start = min(_usual(times) for _, times in _Timed(_fill, device, config).times(one, _SECONDS))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Machine(_name(device), reads, copies, writes, operations, start, today)


def _name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"{measure.machine()['processor']}, {threads} thread{'s' * (threads != 1)}"


# --- kernels ----------------------------------------------------------------------------------------------------------


class _Timed:
    """A compiled function whose kernels are timed."""

    def __init__(self, function: Callable[..., Any], device: str, config: Config) -> None:
        self._recorder = Recorder("limits", "", None, config, texts=False)
        self._recorder.probed = []
        self._compiled, self._device = wrap(function, config, recorder=self._recorder, owner=object()), device

    def times(self, calls: Iterator[tuple[torch.Tensor, ...]], seconds: float) -> list[tuple[KernelRun, list[float]]]:
        """The kernels of a call, each with the seconds of calls that were made for so many ``seconds``."""
        self._compiled(*next(calls))
        if self._device == "cuda":
            found = kernel_pass.profiled(lambda: self._compiled(*next(calls)))
            works = [k for graph in self._recorder.report.graphs for k in programs.runs(graph.id, graph.work)]
            times = [found.of_kernels.get(k.name, []) for k in works]
            return [(k, t) for k, t in zip(works, times, strict=True) if t]
        armed = [(kernels, probe) for kernels, probe in self._recorder.probed or () if probe.arm()]
        found = [(kernel, list[float]()) for kernels, _ in armed for kernel in kernels]
        try:
            self._compiled(*next(calls))
            end, most = time.perf_counter() + seconds, time.perf_counter() + _PATIENCE * seconds
            while (now := time.perf_counter()) < most and (now < end or min(len(t) for _, t in found) < _LEAST_CALLS):
                given = next(calls)
                before = [known for _, probe in armed for known in probe.read()]
                self._compiled(*given)
                after = [known for _, probe in armed for known in probe.read()]
                for (_, times), (had, spent), (has, taken) in zip(found, before, after, strict=True):
                    if has > had:
                        times.append((taken - spent) / (has - had))
        finally:
            for _, probe in armed:
                probe.disarm()
        return [(kernel, times) for kernel, times in found if times]


def _usual(times: Sequence[float]) -> float:
    """What calls take where nothing disturbs them: other programs only ever add to it, and a whole time slice to a kernel of several
    threads."""
    undisturbed = sorted(t for t in times if t <= _DISTURBED * min(times))
    return undisturbed[len(undisturbed) // 4]


def _pieces(size: int, tensors: int, device: str) -> Iterator[tuple[torch.Tensor, ...]]:
    """For ever, what calls are given that together move ``size`` bytes: by turns parts of as many tensors, so that a call is short and
    finds in caches what a kernel finds there that moves as much. On a card, whose calls nobody interrupts, it is one part: rows, so that
    one kernel for all numbers of them is as good as that for one, and is not split in two where it reduces."""
    whole = [torch.full((size // 4 // tensors,), 1.5, device=device) for _ in range(tensors)]
    if device == "cuda":
        while True:
            yield tuple(t.view(-1, _ROW_OF_CARD) for t in whole)
    piece = min(size, _PIECE)
    parts = list(zip(*(t.split(piece // 4 // tensors) for t in whole), strict=True))
    while True:
        yield from parts


def _total(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.amax(-1)


def _copy(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(-x)


def _fill(x: torch.Tensor) -> None:
    x.fill_(2.0)


def _curve(
    functions: Sequence[Callable[..., Any]], tensors: int, sizes: Sequence[int], device: str, config: Config
) -> tuple[tuple[int, float], ...]:
    """Bytes a second of the best of the functions, which move so many ``tensors`` once each, by the bytes that they move."""
    timed = [_Timed(function, device, dataclasses.replace(config, dynamic=True)) for function in functions]

    def speed(size: int) -> float:
        moved = size if device == "cuda" else min(size, _PIECE)
        pieces = lambda: _pieces(size, tensors, device)  # noqa: E731
        return moved / min(_usual(times) for function in timed for _, times in function.times(pieces(), _SECONDS))

    # kernels are made for the first
    found = {size: speed(size) for size in (reversed(sizes) if device == "cuda" else sizes)}
    # a size of which each call was interrupted is much slower than a larger one
    for size, larger in reversed([*itertools.pairwise(sorted(sizes))]):
        for _ in range(_TRIES):
            if found[size] < _SLOWER * found[larger]:
                found[size] = max(found[size], speed(size))
    return tuple(sorted(found.items()))


# --- operations -------------------------------------------------------------------------------------------------------


def _operations(device: str, config: Config) -> dict[str, float]:
    """Operations a second, by their kind."""
    numbers = _NUMBERS_OF_CARD if device == "cuda" else _NUMBERS * torch.get_num_threads()
    names = [PLAIN, *_FUNCTIONS]
    # of other lengths each, so that they are kernels of their own
    given = [torch.full((numbers + 64 * k,), 0.75, device=device) for k in range(len(names))]

    every = functools.partial(_all_of_them, _PLAIN_TERMS_OF_CARD if device == "cuda" else _TERMS)
    timed = _Timed(every, device, config).times(itertools.repeat(tuple(given)), len(names) * _SECONDS)
    speeds: dict[str, float] = {}
    for kernel, times in timed:
        kinds, seconds = kernel.operations, _usual(times)
        own = next((name for name in _FUNCTIONS if name in kinds), None)
        if own is None:
            if set(kinds) == {PLAIN}:
                speeds[PLAIN] = max(speeds.get(PLAIN, 0.0), kinds[PLAIN] / seconds)
        elif PLAIN in speeds:
            left = seconds - kinds.get(PLAIN, 0.0) / speeds[PLAIN]
            speeds[own] = kinds[own] / max(left, seconds / 4)
    for name, cost in COSTS.items():
        if cost > 1 and name not in speeds and "exp" in speeds:
            speeds[name] = speeds["exp"] * COSTS["exp"] / cost
    return speeds


def _all_of_them(plain_terms: int, *given: torch.Tensor) -> list[torch.Tensor]:
    """Sums of what does not wait for each other: of products first, then of each of the functions."""
    x = given[0]
    y = (x + 0.125) * (x - 0.125)
    for k in range(2, 1 + plain_terms):
        y = y + (x + k / 8) * (x - k / 8)
    found = [y]
    for x, (name, function) in zip(given[1:], _FUNCTIONS.items(), strict=True):
        y = x
        for k in range(1, 1 + _TERMS):
            y = y + (function(x + k / 8, x) if name in _OF_TWO else function(x + k / 8))
        found.append(y)
    return found


def _products(device: str) -> Iterator[tuple[str, float]]:
    """Operations a second of products of square matrices, by dtype."""
    for dtype in _DTYPES:
        with _float32_as("ieee") if device == "cuda" else contextlib.nullcontext():
            yield str(dtype).removeprefix("torch."), _best_product(dtype, device)
    if device == "cuda":
        with _float32_as("tf32"):
            yield "tf32", _best_product(torch.float32, device)


def _best_product(dtype: torch.dtype, device: str) -> float:
    best = 0.0
    for n in (128, 256, 512, 1024) if device == "cpu" else (2048, 4096, 8192):
        seconds = _product_seconds(torch.full((n, n), 0.5, dtype=dtype, device=device))
        best = max(best, 2.0 * n**3 / seconds)
        if seconds > _LONG and n > 256:  # a small one that takes so long was interrupted
            break
    return best


@contextlib.contextmanager
def _float32_as(precision: str) -> Iterator[None]:
    """Inside, products of float32 on the card have this precision. Not by ``allow_tf32``, which raises where a program has set this."""
    products = torch.backends.cuda.matmul
    before = products.fp32_precision
    products.fp32_precision = precision
    try:
        yield
    finally:
        products.fp32_precision = before


def _product_seconds(a: torch.Tensor) -> float:
    if a.is_cuda:
        found = kernel_pass.profiled(lambda: torch.mm(a, a))
        return sum(min(times) * round(len(times) / found.calls) for times in found.of_kernels.values())
    taken, end, most = list[float](), time.perf_counter() + _SECONDS, time.perf_counter() + _PATIENCE * _SECONDS
    while (now := time.perf_counter()) < end or len(taken) < 3 or (now < most and len(taken) < _LEAST_CALLS):
        start = time.perf_counter()
        torch.mm(a, a)
        taken.append(time.perf_counter() - start)
    return min(taken)
