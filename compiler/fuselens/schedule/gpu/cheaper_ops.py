"""Ops of kernels in cheaper forms. A row of a softmax under a mask is a few dozen instructions an element, as long as its memory takes.

- A mask that was written as numbers and is compared again, as ``torch.tril(torch.ones(n, n)) == 0`` is, is the mask.
- Positions that fit into 32 bits are compared there: a card adds 64 bits in two steps.
- A softmax's exponentials are divided by what all of their row share: one division a row, and a product each. That rounds once more;
  a sum of 1 stays exact.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy

from fuselens.ir.affine import extremes, symbol_names
from fuselens.ir.loops import Kernel, Op, Phase
from fuselens.schedule.emit import without_dead

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_NARROW = ("index", "const", "add", "sub", "mul", "neg", "min", "max", "where")
_LIMIT = 1 << 31
Interval = tuple[int, int]


def with_cheaper_ops(kernel: Kernel) -> Kernel:
    """``kernel`` with such ops in their cheaper forms."""
    phases = _divided_once(_with_short_positions(kernel, _compared_once(kernel.phases)))
    if phases == list(kernel.phases):
        return kernel
    bodies = without_dead([list(p.body) for p in phases])
    kept = (Phase(p.axes, tuple(b)) for p, b in zip(phases, bodies, strict=True))
    return dataclasses.replace(kernel, phases=tuple(p for p in kept if p.body))


# --- masks ------------------------------------------------------------------------------------------------------------


def _compared_once(phases: Sequence[Phase]) -> list[Phase]:
    """Without comparisons of numbers that a mask chose."""
    known: dict[str, Op] = {}
    found: list[Phase] = []
    for phase in phases:
        body: list[Op] = []
        for op in phase.body:
            changed = _as_mask(op, known) if op.op in _COMPARED else None
            op = op if changed is None else changed
            known[op.name] = op
            body.append(op)
        found.append(Phase(phase.axes, tuple(body)))
    return found


def _as_mask(op: Op, known: Mapping[str, Op]) -> Op | None:
    """A comparison of ``where(mask, number, number)``, or of a mask as a number, with a number: the mask, its opposite, or a constant."""
    chosen, number = (known.get(a) for a in op.args)
    if chosen is None or number is None or number.op != "const":
        return None
    if chosen.op == "where":
        mask = chosen.args[0]
        numbers = [known.get(a) for a in chosen.args[1:]]
        if any(n is None or n.op != "const" for n in numbers):
            return None
        either = [n.args[0] for n in numbers if n is not None]
    elif chosen.op == "cast" and (source := known.get(chosen.args[0])) is not None and source.dtype == "bool":
        mask, either = chosen.args[0], [1, 0]
    else:
        return None
    where, elsewhere = (_COMPARED[op.op](n, number.args[0]) for n in either)
    if where == elsewhere:
        return dataclasses.replace(op, op="const", args=(where,))
    if where:  # the mask itself, by a name of its own
        return dataclasses.replace(op, op="and", args=(mask, mask))
    return dataclasses.replace(op, op="not", args=(mask,))


# --- positions --------------------------------------------------------------------------------------------------------


def _with_short_positions(kernel: Kernel, phases: Sequence[Phase]) -> list[Phase]:
    """With i32 in place of i64 where every value fits and nothing but comparisons and conversions sees them."""
    sizes = {a.name: int(a.size) for a in (*kernel.axes, *(a for p in phases for a in p.axes)) if a.size.is_Integer}
    known: dict[str, Op] = {}
    reach: dict[str, Interval] = {}
    for op in (o for p in phases for o in p.body):
        known[op.name] = op
        if op.dtype == "i64" and op.op in _NARROW and (found := _reach(op, sizes, reach)) is not None:
            reach[op.name] = found
    short = {n for n, (low, high) in reach.items() if low >= -_LIMIT and high < _LIMIT}
    while dropped := _seen_wide(known, short):
        short -= dropped
    if not any(known[n].op != "const" for n in short):
        return list(phases)
    return [
        Phase(p.axes, tuple(dataclasses.replace(o, dtype="i32") if o.name in short else o for o in p.body))
        for p in phases
    ]


def _reach(op: Op, sizes: Mapping[str, int], reach: Mapping[str, Interval]) -> Interval | None:
    """The least and the greatest value of an integer op; None where that is not known."""
    if op.op == "const":
        return int(op.args[0]), int(op.args[0])
    if op.op == "index":
        place = sympy.sympify(op.args[0])
        if not symbol_names(place) <= sizes.keys():
            return None
        try:
            return extremes(place, sizes, {})
        except KeyError:
            return None
    parts = [reach.get(a) for a in (op.args[1:] if op.op == "where" else op.args)]
    if not all(parts):
        return None
    ends: list[Interval] = [p for p in parts if p is not None]
    if op.op == "neg":
        return -ends[0][1], -ends[0][0]
    (a, b), (c, d) = ends
    if op.op == "add":
        return a + c, b + d
    if op.op == "sub":
        return a - d, b - c
    if op.op == "mul":
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    if op.op == "where":
        return min(a, c), max(b, d)
    choose = min if op.op == "min" else max
    return choose(a, c), choose(b, d)


def _seen_wide(known: Mapping[str, Op], short: set[str]) -> set[str]:
    """Those of ``short`` that must stay i64, since an operand or a reader is."""
    wide: set[str] = set()
    for op in known.values():
        numbers = [n for n in op.operands() if n in known and known[n].dtype == "i64"]
        if op.name in short:
            wide |= {op.name} if not short.issuperset(numbers) else set()
        elif op.op in _COMPARED:
            wide |= set() if short.issuperset(numbers) else short.intersection(numbers)
        elif op.op != "cast":
            wide |= short.intersection(numbers)
    return wide


# --- divisions --------------------------------------------------------------------------------------------------------


def _divided_once(phases: Sequence[Phase]) -> list[Phase]:
    """With one division a row where a pass over columns divides its exponentials by what the row has one of."""
    found: list[Phase] = []
    rows: set[str] = set()
    inverses: dict[str, Op] = {}
    for phase in phases:
        if not phase.axes:
            rows |= {o.name for o in phase.body}
            found.append(phase)
            continue
        # of a difference to what the row has one of, so that their sum is no number whose inverse is infinite or 0
        centred = {o.name for o in phase.body if o.op == "sub" and o.args[1] in rows}
        exponentials = {o.name for o in phase.body if o.op == "exp" and o.args[0] in centred}
        new: list[Op] = []
        body: list[Op] = []
        for op in phase.body:
            if op.op == "div" and op.dtype == "f32" and op.args[0] in exponentials and op.args[1] in rows:
                divisor = op.args[1]
                if divisor not in inverses:
                    inverses[divisor] = Op(f"{divisor}_inverse", "reciprocal", (divisor,), "f32", op.spans)
                    new.append(inverses[divisor])
                op = dataclasses.replace(op, op="mul", args=(op.args[0], inverses[divisor].name))
            body.append(op)
        if new:
            found.append(Phase((), tuple(new)))
        found.append(Phase(phase.axes, tuple(body)))
        rows |= {o.name for o in phase.body if o.op == "reduce"}
    return found
