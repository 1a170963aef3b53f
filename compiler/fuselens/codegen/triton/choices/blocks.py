"""Which blocks of a kernel are worth measuring: all that could be, ordered by what a model of the card predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.card import (
    CLUSTERS,
    IN_FLIGHT_BYTES,
    LATENCY_SECONDS,
    PERSISTENT,
    PROGRAM_SECONDS,
    PROGRAMS,
    REGISTERS,
    THREADS,
    Card,
)
from ....ir.loops import ITEMSIZE, Graph, Kernel, Phase
from ...nest import numbered
from ...traffic import bytes_moved
from .clusters import SIZES, may_share

MOST = 8  # candidates of a kernel, the generator's own choice included
SHARED = 3  # of them, those of clusters
HELD = 32768, 16384  # columns of a row that a program holds in registers alone, and one of several that share it
LONG = 64 << 10, 128 << 10
"""Bytes of a row up to which it is better read again from cache than held by one program, or by several."""
MOST_REGISTERS = 224  # of a thread, so that nothing is spilled
REUSING = ((32, 8, 1), (64, 8, 2), (64, 16, 2), (128, 8, 4), (32, 16, 1))
"""Points, points across and warps of tiles for kernels that load much of what is the same along an axis."""


def next_power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def blocks_of(total: Expr, block: int) -> Expr:
    """The number of blocks that cover ``total`` points."""
    if block == 1:
        return sympy.sympify(total)
    if total.is_Integer:
        return sympy.Integer(-(-int(total) // block))
    return sympy.floor((total + block - 1) / block)


@dataclass(frozen=True, slots=True)
class Blocks:
    """What one program computes: ``points`` along the kernel's innermost axis and ``across`` along another, or whole rows
    of which it has ``columns`` at a time, or these of a row that ``parts`` programs share. A thread has at most ``registers``,
    or as many as the compiler likes (0)."""

    points: int
    across: int = 1
    columns: int = 0
    warps: int = 4
    parts: int = 1
    registers: int = 0

    def distance(self, other: Blocks) -> float:
        """How many times one has to be doubled or halved to be the other."""
        pairs = ((self.points, other.points), (self.across, other.across), (self.columns, other.columns))
        return sum(abs(math.log2(max(a, 1) / max(b, 1))) for a, b in (*pairs, (self.warps, other.warps)))

    def __str__(self) -> str:
        size = f"{self.across} x {self.points}" if self.across > 1 else str(self.points)
        columns = f" x {self.columns}" if self.columns else ""
        shared = f" of {self.parts} programs" if self.parts > 1 else ""
        registers = f", {self.registers} registers" if self.registers else ""
        return f"{size}{columns}{shared}, {self.warps} warp{'s' * (self.warps > 1)}{registers}"


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel's programs are started: ``grid`` of them. Its text names ``constants``, the block sizes; Triton is told of
    ``stages`` and ``registers`` where they are not 0. ``cluster`` programs start together. The address of ``descriptors``, if
    there are any, follows all arguments."""

    grid: Expr
    constants: Mapping[str, int]
    warps: int
    stages: int = 0
    registers: int = 0
    cluster: int = 1
    descriptors: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """What the model knows of a kernel. ``along`` says that memory is contiguous along points, not along columns."""

    points: int
    columns: int
    bytes: int
    loads: int  # registers that an element takes
    width: int  # bytes of an element of what it loads, on average
    along: bool
    card: Card
    held: int = 1  # registers that an element takes from when its row is read to when it is read again
    most: int = 1  # registers that an element takes in any phase
    shared: bool = False  # whether programs can compute a row together

    @classmethod
    def of(cls, kernel: Kernel, graph: Graph, along: bool) -> Work:
        def product(axes: object) -> int:
            return math.prod(graph.hint(a.size) for a in axes)  # type: ignore[attr-defined]

        dtypes = [graph.buffers[o.args[0]].dtype for o in kernel.ops() if o.op == "load"]
        wide = sum(max(4, ITEMSIZE[d]) // 4 for d in dtypes) + sum(o.op == "reduce" for o in kernel.ops())
        moved = sum(graph.hint(b) for b in bytes_moved(kernel, graph))
        columns = max((product(p.axes) for p in kernel.phases if p.axes), default=0)
        loaded = [_loaded(p, graph) for p in kernel.phases if p.axes]
        again = {
            load for k, phase in enumerate(loaded) for load in phase if any(load in later for later in loaded[k + 1 :])
        }
        sizes = [n for phase in loaded for n in phase.values()] or [ITEMSIZE[d] for d in dtypes] or [1]
        each = {load: max(1, n // 4) for phase in loaded for load, n in phase.items()}
        shared = graph.card.architecture >= CLUSTERS and may_share(kernel, graph) and not along
        return cls(
            product(kernel.axes), columns, moved, max(1, wide), -(-sum(sizes) // len(sizes)), along, graph.card,
            held=max(1, sum(each[load] for load in again)),
            most=max((sum(each[load] for load in again | phase.keys()) for phase in loaded), default=1),
            shared=shared,
        )  # fmt: skip


def _loaded(phase: Phase, graph: Graph) -> dict[tuple[str, Expr], int]:
    """Bytes of the elements that a column needs, by their places."""
    return {
        (o.args[0], numbered(sympy.sympify(o.args[1]), phase)): ITEMSIZE[graph.buffers[o.args[0]].dtype]
        for o in phase.body if o.op == "load"
    }  # fmt: skip


def in_registers(work: Work) -> Blocks | None:
    """Blocks that hold a long row, which is read again, in the registers of one program or of several; None where it is better
    read from cache."""
    alone, each = HELD
    length = 1 << (work.columns - 1).bit_length()
    bytes_ = work.columns * work.width
    if work.width > 4:  # what is computed of 64 bits takes many more
        return None
    if work.columns == length <= alone and work.held <= 2 and bytes_ > LONG[0]:
        return Blocks(1, 1, length, 32)
    parts = next((n for n in SIZES if length <= n * each), 0)
    aligned = bytes_ % 16 == 0
    if not (work.shared and parts and aligned and work.held <= 2 and bytes_ * work.held > LONG[1]):
        return None
    return sharing(work, length // parts, max(8, length // parts * min(work.most, 2) // 2048), parts)


def sharing(work: Work, columns: int, warps: int, parts: int) -> Blocks:
    """Blocks of a program of a cluster, with so few registers that another one computes while it waits."""
    threads = 32 * warps
    needed = columns // threads * work.held + 16
    most = REGISTERS // (threads * max(2, REGISTERS // (threads * needed)))
    return Blocks(1, 1, columns, warps, parts, min(MOST_REGISTERS, most // 8 * 8))


def candidates(work: Work, default: Blocks, reuses: bool = False) -> tuple[Blocks, ...]:
    """``default``, then others, those first that the model expects most of. With ``reuses``, tiles load less."""
    if not work.points:
        return (default,)
    tiles = tuple(Blocks(x, y, 0, w) for x, y, w in REUSING if reuses)
    others = sorted(
        {b for b in _space(work, default) if b != default},
        key=lambda b: (float(f"{predicted(work, b):.1e}"), b.distance(default), str(b)),  # to two digits
    )
    kept = [b for b in others if predicted(work, b) < math.inf]
    # what clusters gain depends on what is in cache, which the model does not know
    together = [b for b in kept if b.parts > 1][:SHARED]
    alone = [b for b in kept if b.parts == 1][: max(1, MOST - 1 - len(together) - len(tiles))]
    return default, *tiles, *together, *alone


def _space(work: Work, default: Blocks) -> Iterator[Blocks]:
    def powers(low: int, high: int) -> list[int]:
        return [1 << k for k in range(low.bit_length() - 1, high.bit_length())]

    most = 1 << max(0, work.points - 1).bit_length()
    if default.columns:
        longest = 1 << max(0, work.columns - 1).bit_length()
        for warps in powers(1, 32):
            if work.along:
                yield from (Blocks(x, 1, r, warps) for x in powers(16, 256) for r in powers(4, 128) if x <= most)
                continue
            yield from (Blocks(x, 1, longest, warps) for x in powers(1, 64) if x <= most)
            if work.shared and longest > PERSISTENT:
                yield from (sharing(work, longest // parts, warps, parts) for parts in SIZES)
            yield from (Blocks(x, 1, r, warps) for x in powers(1, 4) for r in powers(256, 16384) if r < longest)
    elif default.across > 1:
        for across in powers(16, 128):
            yield from (Blocks(x, across, 0, w) for x in powers(16, 128) for w in powers(2, 8))
    else:
        yield from (Blocks(x, 1, 0, w) for x in powers(64, 8192) for w in powers(1, 8) if x <= max(64, most))


def predicted(work: Work, b: Blocks) -> float:
    """Seconds that the kernel takes by the model; infinite where its values do not fit registers."""
    block = b.points * b.across * max(1, b.columns)
    threads = 32 * b.warps
    each = block / threads
    registers = b.registers or 24 + math.ceil(each) * work.loads
    if max(registers, each) > MOST_REGISTERS or each < 1 or (b.registers and each * work.held > registers):
        return math.inf
    resident = min(PROGRAMS, THREADS // threads, REGISTERS // (threads * registers))
    if not resident:
        return math.inf
    programs = -(-work.points // (b.points * b.across)) * b.parts
    waves = programs / (work.card.processors * resident)
    asked = min(programs / work.card.processors, resident) * block * work.width * max(1, work.loads // 2)
    vector = min(1.0, 0.5 + each * work.width / 32)  # a thread loads 16 bytes at once where it has them
    busy = min(1.0, asked / IN_FLIGHT_BYTES) * vector
    wasted = math.ceil(waves) / waves if waves > 1 else 1.0
    turns = -(-work.columns // (b.columns * b.parts)) if b.columns else 1
    return max(
        work.bytes / (work.card.bandwidth * busy) * wasted,
        math.ceil(waves) * (turns * LATENCY_SECONDS + PROGRAM_SECONDS),
    )
