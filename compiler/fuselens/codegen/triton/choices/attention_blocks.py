"""Blocks of attention's kernel that are worth measuring."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.loops import ITEMSIZE, Attention, Graph
from .blocks import MOST_REGISTERS, next_power_of_two


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """A program has ``rows`` rows and walks ``keys`` keys at a time, of which ``stages`` blocks are on their way."""

    rows: int
    keys: int
    warps: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows} rows x {self.keys} keys, {self.warps} warps, {self.stages} stages"


_SPACE = tuple(
    AttentionBlocks(rows, keys, warps, stages)
    for rows, warps in ((64, 4), (128, 8), (64, 8), (128, 4), (32, 4))
    for keys, stages in ((64, 3), (64, 2), (128, 2), (32, 3), (128, 3), (32, 2))
)
MOST = 14


def candidates(graph: Graph, node: Attention, default: AttentionBlocks) -> tuple[AttentionBlocks, ...]:
    """``default``, then others of which registers and shared memory hold what a program has."""
    query, key, value = (graph.buffers[n] for n in node.operands())
    width, across = (max(16, next_power_of_two(int(b.sizes[3]))) for b in (query, value))
    itemsize = ITEMSIZE[query.dtype]
    count = graph.hint(query.sizes[1] * query.sizes[2] / key.sizes[1])
    most = MOST_REGISTERS - 64 if itemsize == 2 else 32  # where tensor cores do not multiply, operands are in registers
    masks = sum(ITEMSIZE[o.dtype] for o in node.body if o.op == "load")
    rows = max(16, next_power_of_two(count))  # of a group of heads
    keys = max(32, next_power_of_two(graph.hint(node.span)))

    def fits(b: AttentionBlocks) -> bool:
        registers = b.rows * (across + b.keys) // (32 * b.warps)  # of a thread, for sums and scores
        memory = itemsize * (b.rows * width + b.stages * b.keys * (width + across)) + b.stages * b.rows * b.keys * masks
        return registers <= most and memory <= graph.card.shared and b.keys <= keys

    smaller = [AttentionBlocks(rows, b.keys, b.warps, b.stages) if rows < b.rows else b for b in _SPACE]
    others = [b for b in dict.fromkeys(smaller) if b != default and fits(b)]
    return (default, *others[: MOST - 1])
