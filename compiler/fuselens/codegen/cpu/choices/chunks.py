"""How threads share one phase: a loop of it is cut into chunks, whose number depends on sizes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.loops import Axis, Op
from ...nest import LONG_FOLD
from .effort import dearness
from .kernel_plan import KernelPlan
from .units import ROWS

CHUNKS = 256  # at most so many partial results of a reduction that threads share


@dataclass(frozen=True, slots=True)
class Chunks:
    """The loop over ``axis`` has ``most`` chunks at most, of ``least`` steps at least, and of a multiple of ``quantum``."""

    axis: Axis
    most: int
    least: int
    quantum: int
    in_order: bool  # whether a chunk asks what lies before it, as scans do
    points: Expr  # of the phase
    dearness: int  # what each of them counts


def choose(plan: KernelPlan, ops: Sequence[Op], axes: Sequence[Axis], inner: str, across: int) -> Chunks:
    """``axes`` are those of the phase's loops, from the outermost, and vectors run along ``inner``, one of them, or along
    columns, of which ``across`` vectors lie side by side."""
    in_order = any(op.op == "scan" for op in ops)
    axis = axes[0] if in_order else max(axes, key=lambda a: plan.nest.hint(a.size))
    alone, points = len(axes) == 1, sympy.Mul(*(a.size for a in axes))
    if plan.layout == "columns":
        most = max(CHUNKS // 16, CHUNKS // 4 // -(-across * plan.width // 128))
        least = LONG_FOLD // 4 if alone else 1
        points *= plan.nest.size(plan.vector)
    else:
        most, least = CHUNKS, 2048 if alone else 1
    quantum = plan.width if axis.name == inner else ROWS if plan.layout == "columns" else 1
    return Chunks(axis, most, least, quantum, in_order, points, 1 + sum(map(dearness, ops)))
