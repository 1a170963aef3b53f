"""Convolutions of each channel by itself as loops, whose taps are written out: they fuse with what is around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import sympy
from sympy import Expr

from fuselens.ir.affine import ZERO
from fuselens.ir.loops import Axis, Buffer, Extern, Graph, Kernel, Loop, Op
from fuselens.schedule.sites.convolution import convolution, windows_of

MOST_TAPS = 64
_DTYPES = ("f32", "f16", "bf16")


def depthwise(graph: Graph) -> dict[str, Loop]:
    """By the name of the call, the loop that computes the same."""
    return {n.name: made for n in graph.externs() if (made := _loop(graph, n)) is not None}


def written_out(graph: Graph, instead: dict[str, Loop]) -> Graph:
    """``graph`` with these loops in the place of calls."""
    return graph.replace(nodes=tuple(instead.get(n.name, n) if isinstance(n, Extern) else n for n in graph.nodes))


@dataclass(frozen=True, slots=True)
class Group:
    """``calls`` that became loops, with the nodes and the ``kernels`` that compute the same before and after."""

    calls: frozenset[str]
    nodes: tuple[Extern | Kernel, ...]
    kernels: tuple[Kernel, ...]


def matched(before: Graph, after: Graph, names: Iterable[str]) -> list[Group]:
    """What is to be compared where calls of ``names`` are loops in ``after``: whatever shares kernels with them."""
    wanted = frozenset(names)
    found: list[Group] = []
    every = (*before.kernels(), *after.kernels())
    for name in names:
        if any(name in g.calls for g in found):
            continue
        loops, reached = {name}, 0
        while len(loops) > reached:
            reached = len(loops)
            loops |= {x for k in every if not loops.isdisjoint(k.loops) for x in k.loops}
        there = [
            n for n in before.nodes
            if (isinstance(n, Kernel) and not loops.isdisjoint(n.loops)) or (isinstance(n, Extern) and n.name in loops & wanted)
        ]  # fmt: skip
        kernels = [k for k in after.kernels() if not loops.isdisjoint(k.loops)]
        found.append(Group(wanted & loops, tuple(there), tuple(kernels)))
    return [g for g in found if all(any(name in k.loops for k in g.kernels) for name in g.calls)]


def _loop(graph: Graph, call: Extern) -> Loop | None:
    c = convolution(graph, call)
    if c is None or c.groups == 1 or not all(c.groups == n for n in (c.image.sizes[1], c.weight.sizes[0])):
        return None
    held = (c.image, c.weight, c.out, *(() if c.bias is None else (c.bias,)))
    taps = c.weight.sizes[2:]
    if c.weight.sizes[1] != 1 or c.out.dtype not in _DTYPES or any(b.dtype != c.out.dtype for b in held):
        return None
    if not all(t.is_Integer for t in taps) or not 1 < sympy.Mul(*taps) <= MOST_TAPS:
        return None
    view, borders = windows_of(c)
    axes = tuple(Axis(f"i{k}", size) for k, size in enumerate(c.out.sizes))
    image, channel, *windows = (a.symbol for a in axes)
    ops: list[Op] = []

    def op(kind: str, *args: object, dtype: str = "f32") -> str:
        ops.append(Op(f"t{len(ops)}", kind, args, dtype, call.spans))
        return ops[-1].name

    def loaded(buffer: Buffer, index: Expr) -> str:
        value = op("load", buffer.owner, sympy.expand(index), dtype=buffer.dtype)
        return value if buffer.dtype == "f32" else op("cast", value)

    def inside(place: Expr, end: Expr, below: bool, beyond: bool) -> str:
        at = op("cast", op("index", place, dtype="i64"), dtype="i32")
        low = op("ge", at, op("const", 0, dtype="i32"), dtype="bool") if below else ""
        high = op("lt", at, op("cast", op("index", end, dtype="i64"), dtype="i32"), dtype="bool") if beyond else ""
        return op("and", low, high, dtype="bool") if low and high else low or high

    total = "" if c.bias is None else loaded(c.bias, c.bias.index((channel,)))
    zero = op("const", 0.0)
    conditions: dict[tuple[int, int], str] = {}
    for tap in itertools.product(*(range(int(t)) for t in taps)):
        numbers = tuple(map(sympy.Integer, tap))
        point = (image, *windows, *numbers, channel)
        index, held = view.index(point), ""
        for border in borders:
            below, beyond = border.leaves(tap[border.window - 1], c.out.sizes[1 + border.window])
            place = limited = border.place(point)
            limited = sympy.Max(limited, ZERO) if below else limited
            limited = sympy.Min(limited, border.size - 1) if beyond else limited
            index = index + (limited - place) * border.reach
            key = border.window, tap[border.window - 1]
            if (below or beyond) and key not in conditions:
                conditions[key] = inside(place, border.size, below, beyond)
            if key in conditions:
                held = op("and", held, conditions[key], dtype="bool") if held else conditions[key]
        value = loaded(view, index)
        value = op("where", held, value, zero) if held else value
        value = op("mul", value, loaded(c.weight, c.weight.index((channel, ZERO, *numbers))))
        total = op("add", total, value) if total else value
    result = total if c.out.dtype == "f32" else op("cast", total, dtype=c.out.dtype)
    place = c.out.index(tuple(a.symbol for a in axes))
    ops.append(Op("store0", "store", (c.out.name, sympy.expand(place), result), c.out.dtype, call.spans))
    return Loop(call.name, axes, (), tuple(ops), call.origin, call.spans)
