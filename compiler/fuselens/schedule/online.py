"""Softmax in one pass less: the sum of exp(x - max x) is folded in the pass that folds the maximum.

The IR says so by a reduction of its own, ``sumexp``; the code that is generated for it carries a running maximum along.
A CPU's second pass finds its row in cache and need not rescale; on a GPU it would read the row from memory once more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sympy import Expr

from fuselens.ir.loops import Kernel, Op, Phase, indirect_names


def online(kernel: Kernel) -> Kernel:
    """``kernel`` with each pass that only sums exponentials joined to the pass before that folds their maximum."""
    phases = list(kernel.phases)
    written = set(kernel.writes())
    k = 1
    while k < len(phases):
        first = next((a for a in range(k) if phases[a].axes and _joinable(phases, a, k, written)), None)
        if first is None:
            k += 1
        else:
            phases[first] = _joined(phases[first], phases[k], written)
            del phases[k]
    return kernel if len(phases) == len(kernel.phases) else dataclasses.replace(kernel, phases=tuple(phases))


def _joinable(phases: list[Phase], a: int, b: int, written: set[str]) -> bool:
    first, second = phases[a], phases[b]
    if first.axes != second.axes or any(o.op in ("store", "scan") for o in second.body):
        return False
    sums = _sums(first, second, written)
    earlier = {o.name for p in phases[:a] for o in p.body} | {o.name for o in second.body}
    rest = _cone(second, [o.name for o in second.body if o.op == "reduce" and o.name not in sums])
    return bool(sums) and all(
        set(o.operands()) <= earlier and not (o.op == "load" and o.args[0] in written) for o in rest
    )


def _joined(first: Phase, second: Phase, written: set[str]) -> Phase:
    sums = _sums(first, second, written)
    moved = _cone(second, [o.name for o in second.body if o.op == "reduce" and o.name not in sums])
    by_name = {o.name: o for o in second.body}
    folds = (dataclasses.replace(by_name[s], args=("sumexp", value)) for s, value in sums.items())
    return Phase(first.axes, (*first.body, *moved, *folds))


def _sums(first: Phase, second: Phase, written: set[str]) -> dict[str, str]:
    """Sums of the second pass over exp(x - m), where m is the maximum of x that the first folds, and that x."""
    before, after = {o.name: o for o in first.body}, {o.name: o for o in second.body}
    found: dict[str, str] = {}
    for op in second.body:
        if op.op != "reduce" or op.args[0] != "sum":
            continue
        exponential = after.get(op.args[1])
        difference = after.get(exponential.args[0]) if exponential is not None and exponential.op == "exp" else None
        if difference is None or difference.op != "sub":
            continue
        value, most = difference.args
        fold = before.get(most)
        if fold is None or fold.op != "reduce" or fold.args[0] != "max":
            continue
        meaning = _meaning(after, value, written)
        if meaning is not None and meaning == _meaning(before, fold.args[1], written):
            found[op.name] = fold.args[1]
    return found


def _meaning(body: Mapping[str, Op], name: str, written: set[str]) -> Any:
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
    parts = tuple(_meaning(body, a, written) if isinstance(a, str) else repr(a) for a in op.args)
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
