"""Convolutions of each channel by itself as loops, whose taps are written out: they fuse with what is around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import sympy
from sympy import Expr

from fuselens.ir.affine import ZERO
from fuselens.ir.loops import Axis, Buffer, Extern, Graph, Kernel, Loop, Op
from fuselens.record.report import Span
from fuselens.schedule.sites.convolution import Border, Convolution, convolution, windows_of

MOST_TAPS = 64
_DTYPES = ("f32", "f16", "bf16")


def depthwise(graph: Graph, taps: int = MOST_TAPS) -> dict[str, Loop]:
    """By the name of the call, the loop that computes the same; for calls with so many ``taps`` at most."""
    return {n.name: made for n in graph.externs() if (made := _loop(graph, n, taps)) is not None}


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


def _loop(graph: Graph, call: Extern, taps: int) -> Loop | None:
    c = convolution(graph, call)
    if c is None or not _has_few_taps(c, taps):
        return None
    axes = tuple(Axis(f"i{k}", size) for k, size in enumerate(c.out.sizes))
    points = tuple(a.symbol for a in axes)
    body = _Body(call.spans)
    total = _summed(body, c, points)
    result = total if c.out.dtype == "f32" else body.op("cast", total, dtype=c.out.dtype)
    store = Op("store0", "store", (c.out.name, sympy.expand(c.out.index(points)), result), c.out.dtype, call.spans)
    return Loop(call.name, axes, (), (*body.ops, store), call.origin, call.spans)


def _has_few_taps(c: Convolution, most: int) -> bool:
    """Whether each channel is convolved by itself, with a number of taps that is known, and all buffers have one dtype."""
    if c.groups == 1 or c.weight.sizes[1] != 1 or not all(c.groups == n for n in (c.image.sizes[1], c.weight.sizes[0])):
        return False
    held = (c.image, c.weight, c.out, *(() if c.bias is None else (c.bias,)))
    if c.out.dtype not in _DTYPES or any(b.dtype != c.out.dtype for b in held):
        return False
    taps = c.weight.sizes[2:]
    return all(t.is_Integer for t in taps) and bool(1 < sympy.Mul(*taps) <= most)


class _Body:
    """The ops of a loop, as they are written."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        self.ops: list[Op] = []
        self._spans = spans

    def op(self, kind: str, *args: object, dtype: str = "f32") -> str:
        self.ops.append(Op(f"t{len(self.ops)}", kind, args, dtype, self._spans))
        return self.ops[-1].name

    def load(self, buffer: Buffer, index: Expr) -> str:
        """An element in single precision."""
        value = self.op("load", buffer.owner, sympy.expand(index), dtype=buffer.dtype)
        return value if buffer.dtype == "f32" else self.op("cast", value)

    def inside(self, place: Expr, end: Expr, below: bool, beyond: bool) -> str:
        """Whether ``place`` is in the image: not ``below`` 0, not ``beyond`` its end, where that may be."""
        at = self.op("cast", self.op("index", place, dtype="i64"), dtype="i32")
        low = high = ""
        if below:
            low = self.op("ge", at, self.op("const", 0, dtype="i32"), dtype="bool")
        if beyond:
            limit = self.op("cast", self.op("index", end, dtype="i64"), dtype="i32")
            high = self.op("lt", at, limit, dtype="bool")
        return self.op("and", low, high, dtype="bool") if low and high else low or high


def _summed(body: _Body, c: Convolution, points: tuple[sympy.Symbol, ...]) -> str:
    """The sum over all taps at ``points`` of the result, with the bias."""
    image, channel, *windows = points
    view, borders = windows_of(c)
    total = "" if c.bias is None else body.load(c.bias, c.bias.index((channel,)))
    zero = body.op("const", 0.0)
    conditions: dict[tuple[int, int], str] = {}  # by dimension and tap
    for tap in itertools.product(*(range(int(t)) for t in c.weight.sizes[2:])):
        numbers = tuple(map(sympy.Integer, tap))
        point = (image, *windows, *numbers, channel)
        index, held = view.index(point), ""
        for border in borders:
            index, condition = _limited(body, border, c.out, point, index, conditions)
            held = body.op("and", held, condition, dtype="bool") if held and condition else held or condition
        value = body.load(view, index)
        value = body.op("where", held, value, zero) if held else value
        value = body.op("mul", value, body.load(c.weight, c.weight.index((channel, ZERO, *numbers))))
        total = body.op("add", total, value) if total else value
    return total


def _limited(
    body: _Body, border: Border, out: Buffer, point: tuple[Expr, ...], index: Expr, conditions: dict[tuple[int, int], str]
) -> tuple[Expr, str]:  # fmt: skip
    """``index`` of the element at ``point``, or of the nearest in the image; and what says that it is there, "" where it always is."""
    tap = int(point[border.tap])
    below, beyond = border.leaves(tap, out.sizes[1 + border.window])
    place = limited = border.place(point)
    limited = sympy.Max(limited, ZERO) if below else limited
    limited = sympy.Min(limited, border.size - 1) if beyond else limited
    key = border.window, tap
    if (below or beyond) and key not in conditions:
        conditions[key] = body.inside(place, border.size, below, beyond)
    return index + (limited - place) * border.reach, conditions.get(key, "")
