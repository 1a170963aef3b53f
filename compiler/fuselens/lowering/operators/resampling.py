"""Borders and grids: reflected and replicated padding, repetition to a multiple of the size, and their gradients."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.loops import Buffer
from fuselens.lowering.builder import Builder, Declined, Sizes, expression
from fuselens.lowering.dtypes import FLOATS, LOOP_DTYPES, compute_dtype

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
MOST_TERMS = 16  # of a gradient that is written out as a sum


# --- padding ---------------------------------------------------------------------------------------------------


def _padded(place: Callable[[Expr, Expr, bool, bool], Expr]) -> Rule:
    """``op(x, padding)``, the last dimension's pads first. ``place`` gives the position that is read."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x, pads = args[0], [expression(p) for p in args[1]]
        if x.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute with {x.dtype}")
        if not all(p.is_Integer for p in pads):
            raise Declined("padding of symbolic width")
        rank = len(x.sizes)

        def at(point: Sizes) -> Sizes:
            inside = list(point)
            for k in range(len(pads) // 2):
                d, before, after = rank - 1 - k, pads[2 * k], pads[2 * k + 1]
                inside[d] = place(point[d] - before, x.sizes[d], before > 0, after > 0)
            return tuple(inside)

        return low.indexed(low.like(meta), lambda body, p: low.element(body, x, at(p)))

    return rule


def _reflected(at: Expr, size: Expr, before: bool, after: bool) -> Expr:
    """Written so that each limit lets go inside of the input, where the sum is ``at``."""
    if before and after:
        return 2 * sympy.Max(at, 0) + 2 * sympy.Min(at, size - 1) - 3 * at
    if before:
        return 2 * sympy.Max(at, 0) - at
    return 2 * sympy.Min(at, size - 1) - at if after else at


def _replicated(at: Expr, size: Expr, before: bool, after: bool) -> Expr:
    at = sympy.Max(at, 0) if before else at
    return sympy.Min(at, size - 1) if after else at


# --- nearest neighbours ----------------------------------------------------------------------------------------


def paired(low: Builder, x: Buffer, factors: Sequence[int], counts: Sequence[Expr]) -> Buffer:
    """The start of the trailing dimensions of ``x`` seen as (count, factor) pairs."""
    rank = len(factors)
    sizes, strides = list(x.sizes[:-rank]), list(x.strides[:-rank])
    for factor, count, stride in zip(factors, counts, x.strides[-rank:], strict=True):
        sizes += [count, sympy.Integer(factor)]
        strides += [stride * factor, stride]
    return low.view(x, tuple(sizes), tuple(strides), x.offset, low.fresh_name())


def spread(low: Builder, x: Buffer, factors: Sequence[int]) -> Buffer:
    """``x`` with each element of the trailing dimensions seen ``factor`` times, as pairs."""
    rank = len(factors)
    sizes, strides = list(x.sizes[:-rank]), list(x.strides[:-rank])
    for factor, size, stride in zip(factors, x.sizes[-rank:], x.strides[-rank:], strict=True):
        sizes += [size, sympy.Integer(factor)]
        strides += [stride, sympy.S.Zero]
    return low.view(x, tuple(sizes), tuple(strides), x.offset, low.fresh_name())


def neighbours(
    dtype: str, sizes: Sequence[Expr], outs: Sequence[Expr], scales: Sequence[Any], exact: bool
) -> list[list[int]]:
    """The element that each place of the result has, by ATen's floating-point arithmetic."""
    if dtype not in FLOATS:
        raise Declined(f"interpolation of {dtype}")
    rounded, half = _single if compute_dtype(dtype) == "f32" else float, 0.5 if exact else 0.0
    found = []
    for size, out, scale in zip(sizes, outs, scales, strict=True):
        if not (size.is_Integer and out.is_Integer and int(size) > 0 and int(out) > 0):
            raise Declined("interpolation along a dimension of symbolic size")
        step = rounded(1 / scale if scale else int(size) / int(out))
        found.append([min(int(rounded((o + half) * step)), int(size) - 1) for o in range(int(out))])
    return found


def factors_of(sizes: Sequence[Expr], outs: Sequence[Expr], nearest: Sequence[Sequence[int]]) -> list[int] | None:
    """How many times each element is repeated, where all are equally often."""
    found = []
    for size, out, places in zip(sizes, outs, nearest, strict=True):
        factor, rest = divmod(int(out), int(size))
        if rest or any(i != o // factor for o, i in enumerate(places)):
            return None
        found.append(factor)
    return found


def _single(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def _nearest(rank: int, exact: bool) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x, out = args[0], low.like(meta)
        sizes, counts = x.sizes[-rank:], out.sizes[-rank:]
        factors = factors_of(
            sizes, counts, neighbours(x.dtype, sizes, counts, scales_of(args[2:], kwargs, rank), exact)
        )
        if factors is None:
            raise Declined("a size that is no multiple of the input's")
        if out.strides[-1] == 1 and factors[-1] > 1:
            raise Declined("vectors of repeated elements, which ATen is faster at")
        low.pointwise(paired(low, out, factors, x.sizes[-rank:]), [spread(low, x, factors)], lambda v: v, "")
        return out

    return rule


def repeated_back(low: Builder, grad: Buffer, out: Buffer, factors: Sequence[int]) -> Buffer:
    """The gradient of repetition: sums over the places of each element."""
    rank = len(factors)
    if math.prod(factors) > MOST_TERMS:
        pairs = paired(low, grad, factors, out.sizes[-rank:])
        folded = range(len(out.sizes) - rank + 1, len(pairs.sizes), 2)
        return low.reduce(out, "sum", [pairs], list(folded))
    terms = [every(low, grad, out.sizes[-rank:], factors, place)
             for place in itertools.product(*map(range, factors))]  # fmt: skip
    return low.pointwise(out, terms, lambda first, *rest: sum(rest, first))


def every(low: Builder, x: Buffer, counts: Sequence[Expr], steps: Sequence[int], starts: Sequence[int]) -> Buffer:
    """Every ``step``-th element of the trailing dimensions of ``x``, from ``start`` on, ``count`` of them."""
    rank = len(steps)
    strides = x.strides[-rank:]
    offset = x.offset + sum(s * t for s, t in zip(starts, strides, strict=True))
    spaced = tuple(s * k for s, k in zip(strides, steps, strict=True))
    return low.view(x, (*x.sizes[:-rank], *counts), (*x.strides[:-rank], *spaced), offset, low.fresh_name())


def scales_of(rest: tuple[Any, ...], kwargs: dict[str, Any], rank: int) -> list[Any]:
    names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[rank]
    given = {**dict(zip(names, rest, strict=False)), **kwargs}
    return [given.get(n) for n in names]


RULES: dict[str, Rule] = {
    **{f"aten.reflection_pad{d}d": _padded(_reflected) for d in (1, 2, 3)},
    **{f"aten.replication_pad{d}d": _padded(_replicated) for d in (1, 2, 3)},
    **{f"aten.upsample_nearest{d}d": _nearest(d, False) for d in (1, 2, 3)},
    **{f"aten._upsample_nearest_exact{d}d": _nearest(d, True) for d in (1, 2, 3)},
}
