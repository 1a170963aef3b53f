"""How a kernel without phases over columns is computed, decided before any text is written.

:func:`choose` returns a :class:`PointPlan`, for blocks of points in a row, or a :class:`TilePlan`, for blocks of two dimensions.
Tiles are for accesses that disagree about which axis is contiguous, so that Triton transposes through shared memory instead
of reading strided; and, where measuring has chosen them, for loads that many points have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.loops import ITEMSIZE, Axis, Graph, Kernel, Op, indirect_names, most_places
from ...expressions import linear, names_in
from .blocks import Blocks, Launch, blocks_of, next_power_of_two

POINTS = 1024  # points of a one-dimensional block
TILE = 32  # edge of a two-dimensional block, unless an axis is shorter
LONGEST_EDGE = 256
SHORTEST_EDGE = 4  # points of an axis from which on a tile is worth it
LEAST_POINTS = 128
WARPS = 4
WINDOW = 4  # places of one storage that a point loads, from which on they are a window
WINDOWS = 256  # points of a block that loads windows: few, so that loads of a warp's threads lie beside each other
REGISTERS = 64  # of a thread, for what it loads before it computes
REUSED = 8  # loads that are the same along an axis, from which on tiles are worth measuring


@dataclass(frozen=True, slots=True)
class PointPlan:
    """A program has ``blocks.points`` of ``total`` points. ``body`` is in the order in which it is printed."""

    blocks: Blocks
    total: Expr
    exact: bool  # whether blocks end where points do
    body: tuple[Op, ...]

    @property
    def launch(self) -> Launch:
        return Launch(blocks_of(self.total, self.blocks.points), {"XBLOCK": self.blocks.points}, self.blocks.warps)


@dataclass(frozen=True, slots=True)
class TilePlan:
    """A program has ``blocks.across`` points of ``outer`` and ``blocks.points`` of ``inner``, at one point of the ``rest``."""

    blocks: Blocks
    outer: Axis
    inner: Axis
    rest: tuple[Axis, ...]
    once: bool  # whether what is the same along an axis is loaded once for it
    body: tuple[Op, ...]

    @property
    def across(self) -> Expr:
        """How many tiles there are along ``inner``."""
        return blocks_of(self.inner.size, self.blocks.points)

    @property
    def down(self) -> Expr:
        return blocks_of(self.outer.size, self.blocks.across)

    @property
    def launch(self) -> Launch:
        grid = self.across * self.down * sympy.Mul(*(a.size for a in self.rest))
        constants = {"YBLOCK": self.blocks.across, "XBLOCK": self.blocks.points}
        return Launch(grid, constants, self.blocks.warps, registers=self.blocks.registers)


def choose(kernel: Kernel, graph: Graph, tuned: Blocks | None = None) -> PointPlan | TilePlan:
    """The plan of a kernel without phases over columns. ``tuned`` are the blocks that measuring has chosen, if it has."""
    transposed = _transposed_axes(kernel, graph)
    axes = transposed or (reused_axes(kernel) if tuned is not None and tuned.across > 1 else None)
    if axes is None:
        return _points(kernel, graph, tuned)
    blocks = tuned or _tile(*axes)
    body = asked_first(kernel, graph, blocks.points * blocks.across // (32 * blocks.warps))
    rest = tuple(a for a in kernel.axes if a not in axes)
    return TilePlan(blocks, *axes, rest, transposed is None, body)


def _tile(outer: Axis, inner: Axis) -> Blocks:
    """A tile of as many points where one axis is shorter than the edge: it has all of that, and more of the other."""
    most = [
        next_power_of_two(int(a.size)) if a.size.is_Integer and a.size > 0 else LONGEST_EDGE for a in (outer, inner)
    ]
    across, points = (min(TILE, n) for n in most)
    if points < TILE:
        across = min(LONGEST_EDGE, TILE * TILE // points, most[0])
    elif across < TILE:
        points = min(LONGEST_EDGE, TILE * TILE // across, most[1])
    return Blocks(points, across)


def _points(kernel: Kernel, graph: Graph, tuned: Blocks | None) -> PointPlan:
    total = sympy.Mul(*(a.size for a in kernel.axes))
    windows = most_places(kernel.ops()) >= WINDOW
    block = tuned.points if tuned else WINDOWS if windows else _block(total, graph)
    if total.is_Integer:
        block = min(block, max(16, next_power_of_two(int(total))))
    warps = tuned.warps if tuned else max(1, min(WARPS, block // (WINDOWS // WARPS if windows else LEAST_POINTS)))
    exact = bool(total.is_Integer) and int(total) % block == 0
    return PointPlan(Blocks(block, warps=warps), total, exact, asked_first(kernel, graph, block // (32 * warps)))


def _block(total: Expr, graph: Graph) -> int:
    """Points of a program: fewer where the card would have few programs."""
    shared = graph.hint(total) // graph.card.processors
    return max(LEAST_POINTS, min(POINTS, next_power_of_two(shared)))


def asked_first(kernel: Kernel, graph: Graph, each: int) -> tuple[Op, ...]:
    """The body with loads before the first check or store, which a thread would not do before it has what these need; as
    many as it has registers for with ``each`` points."""
    body = [op for p in kernel.phases for op in p.body]
    start = next((k for k, op in enumerate(body) if op.op in ("bounds", "store")), len(body))
    room = REGISTERS // max(1, each)
    stored: set[str] = set()
    early: list[Op] = []
    for op in body[start:]:
        if op.op == "store":
            stored.add(op.args[0])
        elif op.op == "load" and op.args[0] not in stored and not indirect_names(op.args[1]):
            room -= max(1, ITEMSIZE[graph.buffers[op.args[0]].dtype] // 4)
            if room >= 0:
                early.append(op)
    moved = {op.name for op in early}
    return (*body[:start], *early, *(op for op in body[start:] if op.name not in moved))


def _transposed_axes(kernel: Kernel, graph: Graph) -> tuple[Axis, Axis] | None:
    """(outer, inner) axes of a tile, where some access is contiguous along each."""
    axes = kernel.axes
    if len(axes) < 2:
        return None
    names = frozenset(a.name for a in axes)
    contiguous: dict[str, int] = {}
    across: dict[str, set[str]] = {}  # along which other axes such accesses step
    for op in kernel.ops():
        if op.op not in ("load", "store"):
            continue
        form = linear(sympy.sympify(op.args[1]), names)
        for name, step in form.coefficients.items():
            if step == 1 and name not in form.tangled and len(form.coefficients) > 1:
                contiguous[name] = contiguous.get(name, 0) + (2 if op.op == "store" else 1)
                across.setdefault(name, set()).update(form.coefficients)
    candidates = [a for a in axes if a.name in contiguous and graph.hint(a.size) >= SHORTEST_EDGE]
    candidates.sort(key=lambda a: contiguous[a.name])
    if len(candidates) < 2 or candidates[-1].name not in across[candidates[-2].name]:
        return None
    return candidates[-2], candidates[-1]


def reused_axes(kernel: Kernel) -> tuple[Axis, Axis] | None:
    """(outer, inner) axes of a tile where many loads are the same along one of them at least: a thread has several of the
    points for which it needs each."""
    axes = kernel.axes
    if len(axes) < 2:
        return None
    names = {a.name for a in axes[-2:]}
    loads = dict.fromkeys(o.args[:2] for o in kernel.ops() if o.op == "load")
    same = [index for _, index in loads if not names <= names_in(sympy.sympify(index))]
    return (axes[-2], axes[-1]) if len(same) >= REUSED else None
