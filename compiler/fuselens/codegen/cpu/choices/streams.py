"""Stores past the caches: of results so large that no cache holds them until somebody reads them.

An ordinary store reads the line first that it changes. One past the caches does not, which is a third of a copy's
traffic; but its reader finds nothing in a cache.
"""

from __future__ import annotations

import sympy
from sympy import Expr

from ....ir.loops import ITEMSIZE, Axis, Op, element, indirect_names
from ...expressions import linear, names_in
from ...nest import Nest, Plan
from ..translation_unit import TranslationUnit
from .effort import HEAVY

FAR = 3 << 24  # bytes that a kernel moves from which on caches have lost its first results when its last are written
PART = 8  # a result that is a smaller part of them may be read from a cache yet
RUN = 256  # bytes in a row, at least: lines must be written whole
MOST = 4  # results that one kernel writes so: processors collect few lines at a time


def streams(nest: Nest, plan: Plan, unit: TranslationUnit, lanes: int) -> dict[str, bool]:
    """The stores of a kernel (their names) that go past the caches, and whether all their vectors are known to be aligned."""
    if not unit.isa.streams or plan.layout not in ("points", "rows"):
        return {}
    found, sizes = dict[Op, bool](), dict[tuple[object, ...], int]()
    for phase, inner in zip(nest.kernel.phases, plan.inner, strict=True):
        axes, vector = (*nest.kernel.axes, *phase.axes), plan.vector or inner
        slow = any(o.op in HEAVY for o in phase.body)  # memory has time enough
        for op in phase.body:
            if op.op not in ("load", "store") or op.args[:2] in sizes:
                continue
            index, size = sympy.sympify(op.args[1]), ITEMSIZE[element(unit.graph.buffers[op.args[0]].dtype)]
            sizes[op.args[:2]] = _elements(index, axes, nest) * size
            if op.op == "store" and vector and not slow and _is_overwritten(op, nest, unit):
                if any(a and _runs(index, a) and nest.hint(nest.size(a)) * size >= RUN for a in (vector, plan.tile)):
                    found[op] = _aligned(index, vector, frozenset(a.name for a in axes), lanes)
    moved = sum(sizes.values())
    large = {op.name: aligned for op, aligned in found.items() if sizes[op.args[:2]] * PART >= moved}
    return large if moved >= FAR and len(large) <= MOST else {}


def _elements(index: Expr, axes: tuple[Axis, ...], nest: Nest) -> int:
    """How many elements an access with this index reaches."""
    used, indirect = names_in(index), indirect_names(index)
    return nest.hint(sympy.Mul(*(a.size for a in axes if indirect or a.name in used)))


def _is_overwritten(store: Op, nest: Nest, unit: TranslationUnit) -> bool:
    """Whether a store replaces, in order, what the kernel does not read, in memory of the graph's own."""
    if store.update or indirect_names(sympy.sympify(store.args[1])) or not unit.allocates(store.args[0]):
        return False
    return not any(unit.same_memory(store.args[0], r) for r in nest.kernel.reads())


def _runs(index: Expr, axis: str) -> bool:
    return linear(index, frozenset((axis,))).coefficient(axis) == 1


def _aligned(index: Expr, vector: str, axes: frozenset[str], lanes: int) -> bool:
    """Whether vectors along ``vector`` start at multiples of ``lanes`` elements."""
    form = linear(index, axes)
    steps = (c for name, c in form.coefficients.items() if name != vector)
    return not form.tangled and all((c / lanes).is_integer for c in (*steps, form.rest))
