"""Softmax in one pass less: the sum of exp(x - max x) is folded in the pass that folds the maximum.

The IR says so by a reduction of its own, ``sumexp``; the code that is generated for it carries a running maximum along.
A CPU's second pass finds its row in cache and need not rescale; on a GPU it would read the row from memory once more.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr

from fuselens.ir.loops import Kernel, Op, Phase, indirect_names


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum over exp(x - m): the value x that the first pass folds the maximum m of, that maximum, and, where 0 is taken
    for an infinite m, the op that tells."""

    op: Op
    value: str
    most: Op
    infinite: str = ""


def online_softmax(kernel: Kernel) -> Kernel:
    """``kernel`` with each pass that only sums exponentials joined to the pass before that folds their maximum."""
    phases = list(kernel.phases)
    written = set(kernel.writes())
    k = 1
    while k < len(phases):
        for a in range(k):
            if phases[a].axes and phases[a].axes == phases[k].axes and (joined := _joined(phases, a, k, written)):
                phases[a], phases[k] = joined
                break
        k += 1
    kept = tuple(p for p in phases if p.body)
    return kernel if kept == kernel.phases else dataclasses.replace(kernel, phases=kept)


def _joined(phases: list[Phase], a: int, b: int, written: set[str]) -> tuple[Phase, Phase] | None:
    """Both folds in phase ``a``, and what is left for phase ``b``: nothing, or a value per point."""
    first, second = phases[a], phases[b]
    if any(o.op in ("store", "scan") for o in second.body):
        return None
    row = {o.name: o for p in phases[a:b] for o in p.body if not p.axes}
    sums = [found for o in second.body if (found := _sum(o, first, second, row, written))]
    named = {s.op.name for s in sums}
    moved = _cone(second, [o.name for o in second.body if o.op == "reduce" and o.name not in named])
    earlier = {o.name for p in phases[:a] for o in p.body} | {o.name for o in second.body}
    late = any(not earlier.issuperset(o.operands()) or (o.op == "load" and o.args[0] in written) for o in moved)
    if not sums or late:
        return None
    folds: list[Op] = []
    after: list[Op] = []
    for s in sums:
        name = f"{s.op.name}_finite" if s.infinite else s.op.name
        folds.append(dataclasses.replace(s.op, name=name, args=("sumexp", s.value)))
        if s.infinite:  # the sum is 0 or infinite, as the exponential of the maximum is
            limit = Op(f"{s.op.name}_limit", "exp", (s.most.name,), s.op.dtype, s.op.spans)
            after += [limit, dataclasses.replace(s.op, op="where", args=(s.infinite, limit.name, name))]
    return Phase(first.axes, (*first.body, *moved, *folds)), Phase((), tuple(after))


def _sum(op: Op, first: Phase, second: Phase, row: Mapping[str, Op], written: set[str]) -> _Sum | None:
    before, after = {o.name: o for o in first.body}, {o.name: o for o in second.body}
    if op.op != "reduce" or op.args[0] != "sum":
        return None
    exponential = after.get(op.args[1])
    difference = after.get(exponential.args[0]) if exponential is not None and exponential.op == "exp" else None
    if difference is None or difference.op != "sub":
        return None
    value, taken = difference.args
    infinite, most = _unguarded(taken, row)
    fold = before.get(most)
    if fold is None or fold.op != "reduce" or fold.args[0] != "max":
        return None
    found = meaning(after, value, written)
    if found is None or found != meaning(before, fold.args[1], written):
        return None
    return _Sum(op, fold.args[1], fold, infinite)


def _unguarded(name: str, row: Mapping[str, Op]) -> tuple[str, str]:
    """For ``where(abs(m) == inf, 0, m)`` the comparison and m; else nothing, and the value itself."""
    choice = row.get(name)
    if choice is not None and choice.op == "where":
        test, zero, most = choice.args
        compared, constant = row.get(test), row.get(zero)
        if constant is not None and constant.op == "const" and constant.args[0] == 0 and compared is not None:
            parts = [row.get(n) for n in compared.operands()]
            if compared.op == "eq" and _is(parts[0], "abs", most) and _is(parts[1], "const", math.inf):
                return test, most
    return "", name


def _is(op: Op | None, kind: str, argument: object) -> bool:
    return op is not None and op.op == kind and op.args[0] == argument


def meaning(body: Mapping[str, Op], name: str, written: set[str]) -> Any:
    """What a value is computed from, comparable between phases; None for what a kernel's stores may change."""
    op = body.get(name)
    if op is None:
        return name  # it crosses phases
    if op.op == "load" and (op.args[0] in written or indirect_names(op.args[1])):
        return None
    if op.op in ("reduce", "scan", "index", "random", "bounds"):
        return None
    if op.op in ("load", "const"):
        return (op.op, *(a if isinstance(a, (str, Expr)) else repr(a) for a in op.args), op.dtype)
    parts = tuple(meaning(body, a, written) if isinstance(a, str) else repr(a) for a in op.args)
    return None if None in parts else (op.op, parts, op.dtype)


def _cone(phase: Phase, roots: list[str]) -> list[Op]:
    """The ops of the phase that the roots are computed from, and the roots."""
    wanted = set(roots)
    kept = []
    for op in reversed(phase.body):
        if op.name in wanted:
            wanted.update(op.operands())
            kept.append(op)
    return kept[::-1]
