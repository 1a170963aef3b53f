"""Along which axes a kernel's memory lies, and which of its axes are points that programs share out."""

from __future__ import annotations

import dataclasses

import sympy

from ....ir.loops import Graph, Kernel, Op, Phase
from ...expressions import linear, names_in

_ANY_ORDER = ("", "sum", "max", "min")  # how stores at positions from data may come in any order


def contiguous_along_points(kernel: Kernel) -> bool:
    """True where memory is contiguous along a kernel axis rather than along the phases' axes.

    What varies along one of them only, or is the same for neighbouring points, is little beside what varies along both.
    """
    inner = outer = 0
    points = frozenset(a.name for a in kernel.axes)
    nearest = {a.name for a in kernel.axes[-1:]}
    for phase in kernel.phases:
        own = frozenset(a.name for a in phase.axes)
        for op in phase.body:
            if op.op in ("load", "store") and nearest & names_in(op.args[1]) and own & names_in(op.args[1]):
                form = linear(sympy.sympify(op.args[1]), own | points)
                inner += any(form.coefficients.get(n) == 1 for n in own)
                outer += any(form.coefficients.get(n) == 1 for n in points)
    return outer > inner


def spread(kernel: Kernel, graph: Graph) -> Kernel:
    """``kernel`` with the axes of its only pass among its own, where the pass folds nothing and rows lie across memory or
    are few: a program of a row would walk its columns one block after the other."""
    passes = [p for p in kernel.phases if p.axes]
    if len(passes) != 1 or kernel.phases[-1] is not passes[0]:
        return kernel
    rows = graph.hint(sympy.Mul(*(a.size for a in kernel.axes)))
    if rows >= graph.card.programs and not contiguous_along_points(kernel):
        return kernel
    before = [o for p in kernel.phases[:-1] for o in p.body]
    body, axes = (*before, *passes[0].body), (*kernel.axes, *passes[0].axes)
    written = set(kernel.writes())
    if any(o.op == "store" for o in before) or any(o.op == "load" and o.args[0] in written for o in body):
        return kernel
    every = frozenset(a.name for a in axes if a.size != 1)
    if not all(_in_any_order(o, every) for o in passes[0].body):
        return kernel
    return dataclasses.replace(kernel, axes=axes, phases=(Phase((), body),))


def _in_any_order(op: Op, axes: frozenset[str]) -> bool:
    if op.op == "store":
        return op.update in _ANY_ORDER and (bool(op.update) or axes <= names_in(op.args[1]))
    return op.op not in ("reduce", "scan")
