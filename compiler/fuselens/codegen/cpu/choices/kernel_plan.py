"""How one kernel is written in C++, decided before any text: its nest, loops, lanes, and stores past the caches.

What threads share (:mod:`.units`) and the tiles of a transpose (:mod:`.tiles`) are chosen from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy
from sympy import Expr

from ....ir.loops import Kernel
from ...nest import Nest, Plan, Tuning, in_one_pass, simplify
from ...nest import plan as plan_loops
from ..translation_unit import TranslationUnit
from ..vectors.isa import Isa
from .effort import dearness
from .streams import streams


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """``source`` is the kernel as it was scheduled, ``nest`` what is written, ``loops`` how it becomes loops."""

    source: Kernel
    nest: Nest
    loops: Plan
    tuning: Tuning
    width: int  # lanes of a vector
    wide: bool  # whether a mask's lanes have 64 bits
    streams: Mapping[str, bool]  # stores past the caches: see streams.py

    @property
    def kernel(self) -> Kernel:
        return self.nest.kernel

    @property
    def layout(self) -> str:
        return self.loops.layout

    @property
    def vector(self) -> str:
        return self.loops.vector

    def points(self) -> Expr:
        """How often the body runs, over all phases."""
        inner = sum(sympy.Mul(*(a.size for a in p.axes)) for p in self.kernel.phases if p.axes) or 1
        return sympy.Mul(*(a.size for a in self.kernel.axes)) * inner

    def weighted_points(self) -> Expr:
        """Points of the kernel, each counted as often as its functions are dear."""
        return self.points() * (1 + sum(map(dearness, self.kernel.ops())))


def choose(kernel: Kernel, unit: TranslationUnit) -> KernelPlan:
    """The plan of a kernel of this unit's graph, for its instruction set; measured choices of the unit overrule it."""
    nest = simplify(in_one_pass(kernel, unit.same_memory), unit.graph)
    tuning = unit.tunings.get(kernel.name, Tuning())
    loops = plan_loops(nest, tuning.layout)
    wide = loops.wide or unit.isa.register == 0
    width = _lanes(nest, loops, unit.isa, wide=wide)
    wide |= width < unit.isa.lanes(False)  # a unit has one kind of mask for each number of lanes
    return KernelPlan(kernel, nest, loops, tuning, width, wide, streams(nest, loops, unit, width))


def _lanes(nest: Nest, loops: Plan, isa: Isa, *, wide: bool) -> int:
    """Lanes of a vector: fewer than a register has, down to four, where the axis that vectors run along is that short."""
    lanes = isa.lanes(wide)
    size = nest.size(loops.vector) if loops.vector else None
    while size is not None and size.is_Integer and 1 < int(size) <= lanes // 2 and lanes > 4:
        lanes //= 2
    return lanes
