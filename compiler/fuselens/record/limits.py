"""How long a machine needs for what a kernel moves and does, at least, and how far runs are from that. Standard library only."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .report import KernelRun, Machine, RunResult, Span

ALLOWED_BY = {
    "traffic": "memory",
    "functions": "its functions",
    "products": "its products",
    "start": "starts of kernels",
}
"""What the limits are called in a sentence: "71 % of what memory allows"."""
WAITS_FOR = {
    "traffic": "memory", "functions": "functions", "products": "products", "start": "the start of a kernel",
    "latency": "far from each (latency, strides, or too few threads)",
}  # fmt: skip
BETWEEN = "between kernels"  # what is no kernel's time: allocations, launches, Python
_WORTH = 0.05  # of a call's time, below which a gain is none
_PRODUCT = "product "


def seconds(read: float, written: float, operations: Mapping[str, float], machine: Machine) -> dict[str, float]:
    """By limit, see :class:`.report.KernelRun`."""
    found = {"start": machine.start}
    if read + written:
        found["traffic"] = (read + written) / _bandwidth(read, written, machine)
    functions = products = 0.0
    for kind, count in operations.items():
        if kind.startswith(_PRODUCT):
            products += count / (machine.operations.get(kind) or machine.operations[f"{_PRODUCT}float32"])
        else:
            functions += count / (machine.operations.get(kind) or machine.operations["plain"])
    found |= {"functions": functions} if functions else {}
    return found | ({"products": products} if products else {})


def longest(found: Mapping[str, float]) -> str:
    """The name of the limit that takes longest."""
    return max(found, key=lambda name: found[name])


def _bandwidth(read: float, written: float, machine: Machine) -> float:
    """Bytes a second of a kernel that reads and writes so many: between those of a copy and of a kernel that does one of both."""
    total = read + written
    one, share = (machine.reads, read) if read > written else (machine.writes, written)
    alone = 2 * share / total - 1  # 0 of a copy
    slowness = (1 - alone) / at(machine.copies, total) + alone / at(one, total)
    return 1 / slowness


def at(curve: Sequence[tuple[int, float]], size: float) -> float:
    """A curve's value at ``size``, between its points by the logarithm of sizes."""
    if size <= curve[0][0]:
        return curve[0][1]
    for (low, before), (high, after) in itertools.pairwise(curve):
        if size <= high:
            part = math.log(size / low) / math.log(high / low)
            return before + (after - before) * part
    return curve[-1][1]


def with_limits(result: RunResult, machine: Machine) -> RunResult:
    """The outcome of a run with the limits of its kernels."""
    return replace(result, kernels=tuple(with_limit(kernel, machine) for kernel in result.kernels), machine=machine)


def with_limit(kernel: KernelRun, machine: Machine) -> KernelRun:
    if kernel.read is None:
        return kernel
    return replace(kernel, limits=seconds(kernel.read, kernel.written or 0, kernel.operations, machine))


# --- of a function ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The kernels that begin at one line, or what is ``BETWEEN`` kernels. ``least`` is what their limits need."""

    span: Span | None
    names: tuple[str, ...]
    seconds: float
    least: float
    bound: str

    @property
    def lost(self) -> float:
        return max(0.0, self.seconds - self.least)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far calls of a function are from what the machine allows. ``bound`` is the limit that they need most of; ``places`` come by
    what they lose."""

    seconds: float
    least: float
    bound: str
    places: tuple[Place, ...]

    @property
    def share(self) -> float:
        return min(1.0, self.least / self.seconds)


def distance(result: RunResult, phase: str = "forward") -> Distance | None:
    """Of a call, or of the ``backward`` after it; None where not all of its kernels were timed."""
    kernels = [k for k in result.kernels if k.phase == phase and (phase == "backward" or not k.trains)]
    if not kernels or any(k.seconds is None or k.least is None for k in kernels):
        return None
    own = sum(k.seconds or 0.0 for k in kernels)
    whole = max(own, result.compiled_seconds or own) if phase == "forward" else own
    needed: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        most = longest(kernel.limits)
        needed[most] += min(kernel.limits[most], kernel.seconds or 0.0)  # a limit that was measured amiss is none
    places = [*_places(kernels)]
    if whole > own:
        places.append(Place(None, (BETWEEN,), whole - own, 0.0, "latency"))
    least = sum(needed.values())
    return Distance(whole, least, longest(needed), tuple(sorted(places, key=lambda p: -p.lost)))


def _places(kernels: Iterable[KernelRun]) -> Iterable[Place]:
    at_line: dict[tuple[str, int] | None, list[KernelRun]] = {}
    for kernel in kernels:
        span = kernel.spans[0] if kernel.spans else None
        at_line.setdefault((span.file, span.line) if span else None, []).append(kernel)
    for of_line in at_line.values():
        of_line.sort(key=lambda k: -k.lost)
        spans = of_line[0].spans
        yield Place(
            spans[0] if spans else None, tuple(dict.fromkeys(k.name for k in of_line)), sum(k.seconds or 0.0 for k in of_line),
            sum(min(k.least or 0.0, k.seconds or 0.0) for k in of_line), of_line[0].bound,
        )  # fmt: skip


def next_gain(found: Distance) -> Place | None:
    """Where most time can be gained; None where nothing is worth it."""
    first = next(iter(found.places), None)
    return first if first is not None and first.lost >= _WORTH * found.seconds else None
