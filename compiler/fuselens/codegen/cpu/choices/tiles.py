"""How a transpose goes through tiles: which accesses, how large tiles and units are, and whether blocks are copied first.

Tiles are as wide as a cache line where the cache keeps the lines of its neighbours: what is transposed is used at once,
before it leaves the processor's store buffer. They are larger where strides are multiples of a power of two, so that lines throw
each other out.

What caches do not hold is first copied, row by row, to a block in the second-level cache: rows of half a kilobyte on both sides, because
memory takes its time for each new row, and with padding between them, so that strides of powers of two do no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.loops import ITEMSIZE, Op, element, indirect_names
from ....ir.processor import L1_BYTES, L1_CROWDED_BYTES, L2_BYTES, LINE_BYTES
from ...expressions import linear
from ...nest import Nest
from ...traffic import bytes_moved
from ..translation_unit import TranslationUnit
from .kernel_plan import KernelPlan

EDGE = 64  # elements of a tile along the vectors
TILES = 8  # that one kernel has at most
STACK = L1_BYTES // 2  # bytes of all of them
FAR = 1 << 22  # bytes that a kernel moves from which on they are not in a second-level cache
RUN = 512  # bytes of a row of a block
BLOCKS = L2_BYTES // 2  # bytes of all blocks of a unit


@dataclass(frozen=True, slots=True)
class Crossing:
    """A load or store that vectors cross: its index, the elements between neighbours along the vectors, its dtype, and the
    bytes of the registers in which its elements are transposed."""

    op: Op
    index: Expr
    step: Expr
    dtype: str
    register: int

    @property
    def size(self) -> int:
        return ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Edges in elements: ``edge`` along the vectors, ``rows`` and ``side`` across them."""

    crossings: Mapping[str, Crossing]  # by the op's name
    rows: int  # of a tile
    edge: int  # of a tile
    small: bool  # whether units consist of several tiles
    side: int  # of a block; 0 where there are no blocks

    def unit_edge(self, across: bool) -> int:
        """The edge of a unit, across the vectors or along them."""
        if self.side:
            return self.side if across else self.edge
        return self.rows if across and not self.small else EDGE

    def pitch(self, crossing: Crossing) -> int:
        """Elements from one row of a block to the next: a line more than a row has, because lines in one set are few."""
        return self.side + LINE_BYTES // crossing.size


def choose(plan: KernelPlan, unit: TranslationUnit) -> TilePlan:
    """The tiles of a kernel whose plan has a tile axis."""
    nest, loops, width = plan.nest, plan.loops, plan.width
    found: dict[str, Crossing] = {}
    for op in nest.kernel.ops():
        if len(found) < TILES and (crossing := _crossing(op, plan, unit)) is not None:
            found[op.name] = crossing
    sizes = [c.size for c in found.values()]
    size = max(sizes, default=1)
    line = LINE_BYTES // size
    whole = max(  # edge of what is written, or moved, at once
        [width, *(c.register // c.size for c in found.values())]
    )
    shortest = min(nest.hint(nest.size(a)) for a in (loops.tile, loops.vector))
    rows, edge, small, side = EDGE, EDGE, False, 0
    if sizes and width > 1 and shortest * size >= RUN // 2 and _far(nest, unit):
        small, rows, edge = True, LINE_BYTES // 4, min(4 * EDGE, RUN // size)
        side = edge
        while side > rows and side * edge * sum(sizes) > BLOCKS:
            side //= 2
    elif whole <= line < EDGE and shortest >= line and not _crowded(nest, found):
        small, rows, edge = True, line, line
    while rows > 8 and rows * edge * size * len(found) > STACK:
        rows //= 2
    return TilePlan(found, rows, edge, small, side)


def _crossing(op: Op, plan: KernelPlan, unit: TranslationUnit) -> Crossing | None:
    """An access that vectors cross, and that is contiguous along the tile's other axis; None for all others."""
    loops = plan.loops
    if op.op not in ("load", "store"):
        return None
    index = sympy.sympify(op.args[1])
    form = linear(index, frozenset((loops.tile, loops.vector)))
    step = form.coefficient(loops.vector)
    if indirect_names(index) or form.coefficient(loops.tile) != 1 or step is None or step in (-1, 0, 1):
        return None
    # elements that are both read and written are read at their own point
    others = plan.kernel.writes() if op.op == "load" else plan.kernel.reads()
    if any(unit.same_memory(op.args[0], s) for s in others):
        return None
    dtype = element(unit.graph.buffers[op.args[0]].dtype)
    return Crossing(op, index, step, dtype, 32 if unit.isa.register >= 32 and ITEMSIZE[dtype] > 1 else 16)


def _far(nest: Nest, unit: TranslationUnit) -> bool:
    """Whether memory is what the kernel waits for."""
    return nest.hint(sympy.Add(*bytes_moved(nest.kernel, unit.graph))) >= FAR


def _crowded(nest: Nest, crossings: Mapping[str, Crossing]) -> bool:
    """Whether the lines of tiles and of what else is accessed are too many for the few sets that they lie in."""
    accesses = sum(o.op in ("load", "store") for o in nest.kernel.ops())
    return accesses > 2 and any(nest.hint(c.step) * c.size % L1_CROWDED_BYTES == 0 for c in crossings.values())
