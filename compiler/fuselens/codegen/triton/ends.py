"""Rows that begin anywhere in memory, as those of 50257 elements do.

Loads and stores of several elements at once need addresses that are multiples of their size, and no element less. So what
lies between the first and the last such address of a row is walked in whole blocks, and the two ends together are a rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import sympy
from sympy import Expr

from ...ir.card import LINE_BYTES, LOAD_BYTES
from ...ir.loops import ITEMSIZE, Graph, Kernel, Phase, element, indirect_names
from ..expressions import linear, names_in, set_zero
from ..nest import in_order


@dataclass(frozen=True, slots=True)
class Ends:
    """How a row is divided. ``index`` is the elements' index, and is to be a multiple of ``multiple`` where blocks begin."""

    index: Expr
    first: Expr  # the row's first index
    multiple: int
    whole: int  # columns in whole blocks
    rest: int  # columns at both ends


def ends(kernel: Kernel, phase: Phase, graph: Graph, width: int) -> Ends | None:
    """How rows of the phase are walked in blocks of ``width`` columns; None where blocks from their beginning do as well."""
    if len(phase.axes) != 1 or in_order(phase.body) or not phase.axes[0].size.is_Integer:
        return None
    (axis,), points = phase.axes, frozenset(a.name for a in kernel.axes)
    length = int(axis.size)
    traffic: Counter[Expr] = Counter()
    sizes: dict[Expr, int] = {}
    for op in phase.body:
        index = sympy.sympify(op.args[1]) if op.op in ("load", "store") else sympy.S.Zero
        if axis.name in names_in(index) and not indirect_names(index):
            itemsize = ITEMSIZE[element(graph.buffers[op.args[0]].dtype)]
            traffic[index] += itemsize
            sizes[index] = min(sizes.get(index, LOAD_BYTES), itemsize)
    if not traffic:
        return None
    index, _ = traffic.most_common(1)[0]
    form = linear(index, points | {axis.name})
    if form.tangled or form.coefficients.get(axis.name) != 1:
        return None
    step = LOAD_BYTES // sizes[index]
    steps = (*(form.coefficients[p] for p in points & form.coefficients.keys()), form.rest)
    aligned = all(s.is_Integer and int(s) % step == 0 for s in steps)
    if aligned and length % step == 0:
        return None
    multiple = 1 if aligned else LINE_BYTES // sizes[index]
    whole = (length - multiple + 1) // width * width
    if whole <= 0:
        return None
    return Ends(index, set_zero(index, frozenset({axis.name})), multiple, whole, length - whole)
