"""Programs over blocks of rows: prints what :mod:`.choices.row_plan` has chosen, phase after phase."""

from __future__ import annotations

import sympy
from sympy import Expr

from ...ir.loops import Phase
from ..expressions import TRITON, print_factor
from .choices.blocks import blocks_of
from .choices.row_plan import RowPlan, choose
from .folds import Folds


class Rows(Folds):
    """Writes a program that computes some rows, phase after phase."""

    def _rows(self) -> tuple[Expr, int]:
        """Programs over blocks of kernel points, with phases that run over axes of their own."""
        plan = choose(self.kernel, self.unit.graph, self.wide, self.tuning)
        self.rank = 2
        self.chosen, self.parts, self.stores_first = plan.blocks, plan.blocks.parts, plan.stores_first
        total = sympy.Mul(*(a.size for a in self.kernel.axes))
        self._open_rows(total, plan)
        self._at_points()
        self._straight(plan.early)
        stored: set[str] = set()
        for number, phase in enumerate(plan.phases):
            if stored & {o.args[0] for o in phase.body if o.op == "load"}:
                self.out.put("tl.debug_barrier()  # other threads of this program wrote what is read next")
                stored.clear()
            self._row_phase(number, phase, plan)
            stored |= {o.args[0] for o in phase.body if o.op == "store"}
        if self.parts > 1:
            self.need("leave_cluster")
            self.out.put("leave_cluster()")
        return blocks_of(total, plan.blocks.points) * self.parts, plan.blocks.warps

    def _open_rows(self, total: Expr, plan: RowPlan) -> None:
        """Declares which points a program has."""
        out, points = self.out, plan.blocks.points
        self.blocks["XBLOCK"] = points
        block = self._program()
        if self.parts > 1:
            out.put(f"part = tl.program_id(0) % {self.parts}  # of a row, which the programs of a cluster share")
            block = f"{block} // {self.parts}"
        out.put(f"x = {block} * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
        self.point_mask = "" if total.is_Integer and int(total) % points == 0 else "xmask"
        if self.point_mask:
            out.put(f"xmask = x < {print_factor(total, self.names, TRITON)}")
        self._decode(self.kernel.axes, "x")

    def _row_phase(self, number: int, phase: Phase, plan: RowPlan) -> None:
        walk = plan.walks[number]
        self.backward, self.policies = walk.backward, walk.policies
        if phase.axes:
            self._phase(number, phase, self.nest.positions[number], plan.persistent, plan.blocks.columns)
        else:
            self._at_points()
            early = {o.name for o in plan.early}
            self._straight([o for o in phase.body if o.name not in early])
