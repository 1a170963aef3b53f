"""Loads that only count under a condition, as places of a window that lie beyond an edge do not.

Lowering keeps such a load inside of its storage by limits of the index, and picks another value afterwards. A GPU can leave the
load out instead: then there are no limits to compute, and the loads of a window differ by numbers that an instruction holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import sympy
from sympy import Expr

from ...ir.loops import Graph, Kernel, Op, element, indirect_names

_FLOATS = ("f64", "f32", "f16", "bf16")
_DTYPES = (*_FLOATS, "i64", "i32")


@dataclass(frozen=True, slots=True)
class Guarded:
    """A load, conversions of what it gives, and what is there instead where ``condition`` fails."""

    load: Op
    casts: tuple[Op, ...]
    condition: str
    other: float


def guarded(body: Sequence[Op], kernel: Kernel, graph: Graph, fits: Callable[[Expr], bool]) -> dict[str, Guarded]:
    """By the choices that they are the values of. Nobody else reads these loads. ``fits``: whether a load with this index may have a
    mask."""
    if not any(op.op == "where" for op in body):
        return {}
    ops = {op.name: op for op in body}
    readers = Counter(name for op in kernel.ops() for name in op.operands())
    found = {}
    for op in body:
        plan = _plan(op, ops, readers, graph) if op.op == "where" else None
        if plan is not None and fits(plan.load.args[1]):
            found[op.name] = plan
    return found


def _plan(choice: Op, ops: dict[str, Op], readers: Counter[str], graph: Graph) -> Guarded | None:
    condition, chosen, instead = choice.args
    casts: list[Op] = []
    load, other = ops.get(chosen), ops.get(instead)
    while load is not None and load.op == "cast" and readers[load.name] == 1:
        casts.insert(0, load)
        load = ops.get(load.args[0])
    if load is None or load.op != "load" or readers[load.name] != 1 or other is None or other.op != "const":
        return None
    dtype, number = element(graph.buffers[load.args[0]].dtype), other.args[0]
    if dtype not in _DTYPES or not _is_kept(number, [dtype, *(c.dtype for c in casts)]):
        return None
    index = sympy.sympify(load.args[1])
    free = _without_limits(index, *_bounds(condition, ops))
    if indirect_names(index) or free == index:
        return None
    return Guarded(replace(load, args=(load.args[0], free, *load.args[2:])), tuple(casts), condition, number)


def _is_kept(number: object, dtypes: list[str]) -> bool:
    """Whether conversions from the first of ``dtypes`` to the next, and so on, end with the number that they began with."""
    if type(number) not in (int, float):
        return False
    floats = all(d in _FLOATS for d in dtypes)
    return number == 0 or (floats and math.isinf(number)) or (len(dtypes) == 1 and dtypes[0] in ("f64", "f32"))  # type: ignore[arg-type]


def _bounds(condition: str, ops: dict[str, Op]) -> tuple[set[tuple[Expr, int]], set[tuple[Expr, int]]]:
    """What holds where ``condition`` does: expressions that are at least a number, and those that are less than one."""
    least: set[tuple[Expr, int]] = set()
    below: set[tuple[Expr, int]] = set()
    waiting = [condition]
    while waiting:
        op = ops.get(waiting.pop())
        if op is None:
            continue
        if op.op == "and":
            waiting += op.operands()
        elif op.op in ("ge", "lt"):
            place, number = (_behind_casts(a, ops) for a in op.args)
            if place is not None and number is not None and place.op == "index" and number.op == "const":
                (least if op.op == "ge" else below).add((sympy.sympify(place.args[0]), number.args[0]))
    return least, below


def _behind_casts(name: str, ops: dict[str, Op]) -> Op | None:
    op = ops.get(name)
    while op is not None and op.op == "cast" and op.dtype in ("i32", "i64"):
        op = ops.get(op.args[0])
    return op


def _without_limits(e: Expr, least: set[tuple[Expr, int]], below: set[tuple[Expr, int]]) -> Expr:
    """``e`` without the limits that hold by themselves under these bounds."""
    args: list[Expr] = [_without_limits(a, least, below) for a in e.args]  # pyright: ignore[reportArgumentType]
    kind = type(e).__name__  # torch has classes of its own for them
    if kind in ("Max", "Min") and len(args) == 2 and any(a.is_Integer for a in args):
        number, place = args if args[0].is_Integer else args[::-1]
        if (place, int(number)) in least if kind == "Max" else (place, int(number) + 1) in below:
            return place
    if all(new is old for new, old in zip(args, e.args, strict=True)):
        return e
    return e.func(*args)
