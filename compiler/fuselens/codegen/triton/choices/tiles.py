"""Tiles of products of matrices that are worth measuring, by a model of the card."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from ....ir.card import H100, L2_BANDWIDTH, LINE_BYTES, OPERATIONS, OPERATIONS_TF32, REGISTERS, THREADS, Card

MOST = 7  # candidates of one product
IN_TURN = ((128, 256, 64, 8, 3, 1), (128, 128, 64, 4, 3, 2), (256, 128, 64, 8, 3, 1))
"""Tiles of halves that programs take in turn: rows, columns, depth, warps, stages, and programs of a multiprocessor."""
COPIED = 0.82  # part of the time that a step takes when the card copies operands
STEP = 0.55e-6  # seconds from asking for the terms of a step to having them, where nothing else is asked for
ENDS = 2.3e-6  # seconds until a program has its first numbers, and to move what its results take, where memory is busy
WIDE_BYTES = 2 * LINE_BYTES  # of a row of the result that a tile has, below which memory is used badly
LONG = 10  # steps of a sum from which on more of them than two are best on their way
MANY = 4  # rounds of programs, from which on they end at different times


@dataclass(frozen=True, slots=True)
class Tiles:
    """A program computes ``rows`` x ``columns`` elements, ``depth`` terms of their sums at a time, of which ``stages`` are
    on their way. Programs next to each other share columns of ``group`` tiles. ``tf32`` says that floats may be rounded."""

    rows: int
    columns: int
    depth: int
    warps: int = 4
    stages: int = 3
    group: int = 8
    tf32: bool = False
    programs: int = (
        0  # as many as the card runs at a time, each taking tiles in turn, which it has copied; 0: one for each tile
    )

    @property
    def size(self) -> tuple[int, int]:
        return self.rows, self.columns

    def __str__(self) -> str:
        turns = f", {self.programs} programs" if self.programs else ""
        return f"{self.rows} x {self.columns} x {self.depth}, {self.warps} warps, {self.stages} stages{turns}"


@dataclass(frozen=True, slots=True)
class Shape:
    batch: int
    rows: int
    columns: int
    summed: int
    width: int  # bytes of a number
    tf32: bool = False
    run: int = 0  # terms of a sum that lie along one dimension, of several
    fixed: bool = True  # whether columns and what is summed are of known size
    moved: float = 2.0  # bytes for each element of the product that are read and written where its sum is complete
    card: Card = H100


@functools.cache
def tiles(shape: Shape) -> tuple[Tiles, ...]:
    """The tiles from which the model expects most, best first."""
    sizes = (16, 32, 64, 128, 256)
    depths = [d for d in (32, 64, 128) if d * shape.width in (64, 128, 256) and d <= max(32, 2 * shape.summed)]
    depths = [d for d in depths if shape.run and shape.run % d == 0] or depths
    found = []
    for rows in sizes:
        for columns in sizes:
            for depth in depths:
                found += [
                    Tiles(rows, columns, depth, warps, stages, tf32=shape.tf32)
                    for warps in _warps(rows, columns, shape.width)
                    for stages in (2, 3, 4, 5)
                    if stages * _bytes(rows, columns, depth, shape.width) <= shape.card.shared
                ]
    line = 128 // shape.width  # terms that shared memory holds best
    found.sort(
        key=lambda t: (
            float(f"{predicted(shape, t):.1e}"),
            abs(math.log2(min(t.depth, shape.summed) / line)),
            abs(t.stages - (4 if shape.summed > LONG * t.depth else 2)),
            t.rows * t.columns,
            t.rows,
        )
    )
    kept: list[Tiles] = []
    for tile in found:  # of those that differ in little, the best
        alike = [t for t in kept if (t.rows, t.columns) == (tile.rows, tile.columns)]
        if predicted(shape, tile) < math.inf and len(alike) < (2 if not kept or (alike and alike[0] is kept[0]) else 1):
            kept.append(tile)
    return (*in_turn(shape), *kept[:MOST])


def in_turn(shape: Shape) -> tuple[Tiles, ...]:
    """Tiles that programs take in turn, where each gets one at least."""
    if shape.batch > 1 or shape.width != 2 or shape.run or not shape.fixed:
        return ()
    return tuple(
        Tiles(rows, columns, depth, warps, stages, programs=shape.card.processors * resident)
        for rows, columns, depth, warps, stages, resident in IN_TURN
        if _programs(shape, rows, columns) >= shape.card.processors and shape.summed % depth == 0
    )


def _programs(shape: Shape, rows: int, columns: int) -> int:
    return shape.batch * -(-shape.rows // rows) * -(-shape.columns // columns)


def _warps(rows: int, columns: int, width: int) -> tuple[int, ...]:
    elements = rows * columns
    return (8,) if elements >= 1 << 15 else (4,) if elements >= 1 << 11 else (4, 2)


def _bytes(rows: int, columns: int, depth: int, width: int) -> int:
    return (rows + columns) * depth * width


def predicted(shape: Shape, t: Tiles) -> float:
    """Seconds by the model."""
    if t.rows > max(16, 2 * shape.rows - 1) or t.columns > max(16, 2 * shape.columns - 1):
        return math.inf
    registers = t.rows * t.columns // (32 * t.warps)  # of a thread, for the sums
    if registers > 160:
        return math.inf
    resident = min(shape.card.shared // (t.stages * _bytes(t.rows, t.columns, t.depth, shape.width)),
                   REGISTERS // (32 * t.warps * (registers + 64)), THREADS // (32 * t.warps))  # fmt: skip
    programs = _programs(shape, t.rows, t.columns)
    steps = -(-shape.summed // t.depth)
    rate = OPERATIONS_TF32 if shape.tf32 and shape.width == 4 else OPERATIONS[shape.width]
    tensor_cores = shape.width == 2 or shape.tf32
    used = min(1.0, t.rows / 64) if tensor_cores else 1.0  # the fast instruction takes 64 rows
    edges = t.rows * t.columns / (t.rows * t.columns + 24 * (t.rows + t.columns))
    compute = 2 * t.rows * t.columns * t.depth / (rate * used * edges)
    load = _bytes(t.rows, t.columns, t.depth, shape.width) / L2_BANDWIDTH
    step = max(compute, load) * (COPIED if t.programs else 1.0)
    share = shape.card.bandwidth / shape.card.processors
    across = -(-shape.columns // t.columns)
    read = t.rows * t.depth * shape.width / across / share  # from memory, once for all columns
    moved = t.rows * t.columns * shape.moved / share
    if t.columns < shape.columns:
        moved *= max(1.0, WIDE_BYTES / (t.columns * shape.width))
    ends = ENDS * (2 if t.programs else 1)  # those write one half after the other
    alone = steps * max(step, read, STEP / (t.stages - 1)) + ends + moved
    most = t.programs // shape.card.processors or max(1, resident)
    together = min(most, -(-programs // shape.card.processors))
    rounds = programs / (shape.card.processors * together)
    rounds = math.ceil(rounds) if rounds < MANY else rounds + 0.5
    return rounds * max(alone, together * (steps * max(step, read) + moved))
