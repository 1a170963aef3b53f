"""What one unit of a kernel is: threads share a kernel by whole units, so that results do not depend on their number."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr

from ....ir.loops import Axis, Op
from ....ir.processor import L1_BYTES
from ...nest import FEW_COLUMNS
from .effort import CHAINS, HEAVY
from .kernel_plan import KernelPlan

PIECE = 4096  # elements of a row that one thread takes at a time where rows are shared between threads
STRIP = 3 * L1_BYTES // 8  # bytes of all running results of a strip
UNROLL = 4  # independent accumulators of a reduction whose body is too short to hide an addition's latency
LIGHT = 12  # operations of such a body
ROWS = 4  # rows that a strip adds up at a time


@dataclass(frozen=True, slots=True)
class Units:
    """``way`` is one of

    * ``shared``: none; threads share each phase
    * ``tiles``: tiles, or what consists of them
    * ``points``: points of the outer axes
    * ``strips``, ``columns``: ``vectors`` of columns side by side; a thread's strips join neighbouring units
    * ``sweep``: vectors of a row of columns; for each update, a thread takes all of its own
    * ``row``: ``vectors`` of the only row
    * ``pieces``: pieces of rows
    """

    way: str
    outer: tuple[Axis, ...] = ()  # each of their points has units of its own
    vectors: int = 1


def choose(plan: KernelPlan) -> Units:
    """The units of a kernel, from its layout and its sizes."""
    kernel, loops, vector = plan.kernel, plan.loops, plan.vector
    if loops.layout == "whole" or loops.shared:
        return Units("shared")
    if loops.tile:
        return Units("tiles", tuple(a for a in kernel.axes if a.name not in (loops.tile, vector)))
    outer = tuple(a for a in kernel.axes if a.name != vector)
    if loops.layout == "rows" or not vector:
        return Units("points", outer)
    size = plan.nest.size(vector)
    if loops.layout == "columns" and _in_strips(plan, size):
        return Units("strips", outer, UNROLL)
    if loops.layout == "columns":
        return Units("columns", outer, _columns(plan, size))
    if loops.layout == "sweep":
        return Units("sweep", outer)
    if not outer:
        return Units("row", (), side_by_side(plan, tuple(kernel.ops()), size, plan.width))
    return Units("points" if size.is_Integer and int(size) <= 2 * PIECE else "pieces", outer)


def _in_strips(plan: KernelPlan, size: Expr) -> bool:
    """Whether columns are many enough to walk memory row by row, with running results in the first-level cache."""
    loops = [p for p in plan.kernel.phases if p.axes]
    hint, width = plan.nest.hint, plan.width
    return (
        len(loops) == 1 and width > 1 and not plan.tuning.unroll
        and hint(size) > 2 * UNROLL * width and hint(loops[0].axes[-1].size) >= 2 * ROWS
        and any(o.op == "reduce" for o in loops[0].body)
        and not any(o.op == "scan" or o.update or o.op in HEAVY for o in plan.kernel.ops())
    )  # fmt: skip


def _columns(plan: KernelPlan, size: Expr) -> int:
    """How many vectors a unit of columns takes: short bodies read whole cache lines, and more."""
    count = plan.tuning.unroll or (2 if any(o.op in HEAVY for o in plan.kernel.ops()) else UNROLL)
    return count if plan.nest.hint(size) >= count * plan.width and plan.width > 1 else 1


def strip_width(plan: KernelPlan) -> int:
    """How many vectors a strip has, at most."""
    folds = [o for o in plan.kernel.ops() if o.op == "reduce"]
    arrays = max(1, sum(3 if o.args[0] == "sum" else 2 for o in folds))
    return max(UNROLL, STRIP // (arrays * plan.width * (8 if plan.wide else 4)) // UNROLL * UNROLL)


def few_columns_width(plan: KernelPlan, size: Expr) -> int:
    """How many vectors a strip has, at most, where columns are few and threads share their rows."""
    most = max(UNROLL, min(FEW_COLUMNS // plan.width, strip_width(plan)))
    return min(most, -(-int(size) // plan.width)) if size.is_Integer else most


def side_by_side(plan: KernelPlan, body: tuple[Op, ...], size: Expr, lanes: int) -> int:
    """How many steps (of ``lanes`` elements) of an innermost loop are computed side by side: a short reduction waits for
    its own accumulator, and a function for its own results."""
    chains = sum(o.op in CHAINS for o in body)
    if any(o.op == "scan" or o.update for o in body) or plan.width == 1:
        return 1
    if any(o.op in HEAVY for o in body):
        count = max(1, UNROLL // chains) if chains and not plan.wide else 1
    elif len(body) <= LIGHT and any(o.op == "reduce" for o in body):
        count = UNROLL
    else:
        return 1
    count = plan.tuning.unroll or count
    return count if plan.nest.hint(size) >= 2 * count * lanes else 1
