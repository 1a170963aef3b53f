"""Cubic interpolation between the elements of a grid.

Positions and weights are computed for each element as ATen computes them, in the type that it computes in. Linear
interpolation and the gradients are ATen's: it walks rows of neighbours with weights that it computes once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sympy import Expr

from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes, element_index
from fuselens.lowering.dtypes import FLOATS, compute_dtype

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
_SHARPNESS = -0.75  # of the cubic kernel


def _step(body: Body, size: Expr, count: Expr, aligned: bool, scale: float | None, dtype: str) -> Scalar:
    """How far apart, in elements of the input, two elements of the result are."""
    if aligned:
        if not count.is_Integer:
            raise Declined("corners aligned over a dimension of symbolic size")
        if count == 1:
            return body.const(0, dtype)
        size, count, scale = size - 1, count - 1, None
    if scale is not None and scale > 0:
        return body.const(1 / scale, dtype)
    return body.lift(size, "i64").cast(dtype) / body.lift(count, "i64").cast(dtype)


def _place(body: Body, out: Expr, step: Scalar, aligned: bool) -> Scalar:
    number = body.lift(out, "i64").cast(step.dtype)
    return step * number if aligned else step * (number + 0.5) - 0.5


def _at(place: Scalar, size: Expr) -> Expr:
    """An i64 that is limited to the input, for an index expression."""
    return place.apply("max", 0).apply("min", place.body.expression(size - 1)).bounds(size, False).symbol


def _taps(place: Scalar, size: Expr) -> list[tuple[Expr, Scalar]]:
    """The positions around a place, and their weights."""
    whole = place.apply("floor").cast("i64").apply("min", place.body.expression(size - 1))
    t = (place - whole.cast(place.dtype)).apply("max", 0.0).apply("min", 1.0)
    weights = [_outer(t + 1.0), _inner(t), _inner(1.0 - t), _outer(2.0 - t)]
    return [(_at(whole + (k - 1), size), w) for k, w in enumerate(weights)]


def _inner(x: Scalar) -> Scalar:
    """The cubic kernel at distances up to 1."""
    return ((_SHARPNESS + 2) * x - (_SHARPNESS + 3)) * x * x + 1.0


def _outer(x: Scalar) -> Scalar:
    """The cubic kernel at distances from 1 to 2."""
    return ((_SHARPNESS * x - 5 * _SHARPNESS) * x + 8 * _SHARPNESS) * x - 4 * _SHARPNESS


def _bicubic(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """``op(x, output_size, align_corners, scales_h, scales_w)``."""
    x, out, aligned = args[0], low.like(meta), args[2]
    if x.dtype not in FLOATS:
        raise Declined(f"interpolation of {x.dtype}")
    if any(size == 0 for size in x.sizes):
        raise Declined("there is nothing to interpolate")
    scales = [*args[3:], None, None][:2]
    if any(not isinstance(s, (int, float)) and s is not None for s in scales):
        raise Declined("a scale that varies")
    dtype, sizes = compute_dtype(x.dtype), x.sizes[-2:]

    def mixed(body: Body, outer: Sizes, taps: list[list[tuple[Expr, Scalar]]]) -> Scalar:
        if not taps:
            return body.load(x.owner, element_index(x.offset, x.strides, outer), x.dtype).cast(dtype)
        first, *rest = (mixed(body, (*outer, at), taps[1:]) * weight for at, weight in taps[0])
        return sum(rest, first)

    def compute(body: Body, point: Sizes) -> Scalar:
        taps = []
        for place, size, count, scale in zip(point[-2:], sizes, out.sizes[-2:], scales, strict=True):
            step = _step(body, size, count, aligned, scale, dtype)
            taps.append(_taps(_place(body, place, step, aligned), size))
        return mixed(body, point[:-2], taps)

    return low.indexed(out, compute)


RULES: dict[str, Rule] = {"aten.upsample_bicubic2d": _bicubic}
