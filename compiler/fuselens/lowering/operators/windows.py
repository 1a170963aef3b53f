"""Pooling: windows that move over the trailing dimensions.

A window's taps are written out, one load each, so that vectors run along whatever is contiguous: a row, or channels.
A tap outside of the input is moved to the border, where the same window reads anyway: an extremum needs no mask. Sums
mask such taps. Windows that neither overlap nor leave the input are axes of a view, and large ones are reduced.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
from sympy import Expr

from fuselens.ir.affine import product
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes, contiguous_strides, element_index
from fuselens.lowering.dtypes import FLOATS, compute_dtype
from fuselens.lowering.operators.indexing import position, unraveled, update
from fuselens.lowering.operators.resampling import (
    every,
    factors_of,
    neighbours,
    paired,
    repeated_back,
    scales_of,
    spread,
)
from fuselens.lowering.operators.uneven import Uneven, repeats, shares

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
MOST_TAPS = 64  # of a window that is written out
MOST_PHASES = 16  # of a stride, each a loop of its own


@dataclass(frozen=True, slots=True)
class Span:
    """Where windows lie along one dimension: from ``first(window)`` on, ``taps`` elements ``step`` apart."""

    size: int  # of the input
    taps: int
    step: int
    first: Callable[[Expr], Expr]
    low: int  # the least and the greatest position that a tap may have
    high: int

    def at(self, out: Expr, tap: int) -> Expr:
        return self.first(out) + tap * self.step

    def inside(self, out: Expr, tap: int) -> Expr:
        """The tap's position, moved to the border when it lies beyond."""
        place = self.at(out, tap)
        if self.low + tap * self.step < 0:
            place = sympy.Max(place, 0)
        if self.high - (self.taps - 1 - tap) * self.step >= self.size:
            place = sympy.Min(place, self.size - 1)
        return place

    @property
    def leaves(self) -> bool:
        return self.low < 0 or self.high >= self.size

    def place(self, body: Body, out: Expr, tap: Scalar) -> Scalar:
        """As ``inside``, of a tap that is computed; in i32."""
        at = body.lift(self.first(out), "i64").cast("i32") + tap * self.step
        return at.apply("max", 0).apply("min", self.size - 1) if self.leaves else at

    def holds(self, body: Body, out: Expr, tap: int) -> Scalar | None:
        """Whether the tap lies inside of the input; None where it always does."""
        before, beyond = self.low + tap * self.step < 0, self.high - (self.taps - 1 - tap) * self.step >= self.size
        if not (before or beyond):
            return None
        place = body.lift(self.at(out, tap), "i64").cast("i32")
        found = [c for c, wanted in ((place >= 0, before), (place < self.size, beyond)) if wanted]
        return found[0] & found[1] if len(found) == 2 else found[0]

    def masked(self, body: Body, out: Expr, tap: int, value: Scalar) -> Scalar:
        """``value``, or 0 where the tap lies outside of the input."""
        inside = self.holds(body, out, tap)
        return value if inside is None else inside.where(value, 0)

    def count(self, body: Body, out: Expr, limits: tuple[int, int]) -> int | Scalar:
        """How many taps lie between the limits."""
        least, most = limits
        if self.low >= least and self.high < most:
            return self.taps
        first = body.lift(self.first(out), "i64").cast("i32")
        return (first + self.taps).apply("min", most) - first.apply("max", least)


Spans = Sequence[Span] | Sequence[Uneven]


def _numbers(value: Any, rank: int, default: Sequence[int] = ()) -> list[int]:
    """ATen's list argument: one number stands for all dimensions, none for ``default``."""
    values = [value] if isinstance(value, int) else list(value) if value is not None else []
    values = values or list(default)
    if not all(isinstance(v, int) for v in values):
        raise Declined("a window of symbolic size")
    return values * rank if len(values) == 1 else values


def _spans(
    x: Buffer, out: Sizes, kernel: Any, stride: Any, padding: Any, dilation: Any, rank: int
) -> list[Span]:  # fmt: skip
    kernel = _numbers(kernel, rank)
    stride, padding, dilation = _numbers(stride, rank, kernel), _numbers(padding, rank), _numbers(dilation, rank)
    spans = []
    for k, s, p, d, size, count in zip(kernel, stride, padding, dilation, x.sizes[-rank:], out[-rank:], strict=True):
        if not (size.is_Integer and count.is_Integer):
            raise Declined("windows over a dimension of symbolic size")
        high = (int(count) - 1) * s - p + (k - 1) * d
        spans.append(Span(int(size), k, d, lambda o, s=s, p=p: o * s - p, -p, high))
    return spans


def _checked(x: Buffer, spans: Spans) -> None:
    if x.dtype not in FLOATS and x.dtype != "i64":
        raise Declined(f"pooling of {x.dtype}")
    if _taps(spans) > MOST_TAPS:
        raise Declined("windows of too many elements to be written out")


def _taps(spans: Spans) -> int:
    count = 1
    for span in spans:
        count *= span.taps
    return count


def _elements(body: Body, x: Buffer, spans: Spans, point: Sizes) -> list[tuple[tuple[int, ...], Scalar]]:
    """The window's taps in order, each with the element there, in the type that is computed in."""
    rank = len(spans)
    found = []
    for taps in itertools.product(*(range(s.taps) for s in spans)):
        inside = (s.inside(p, t) for s, p, t in zip(spans, point[-rank:], taps, strict=True))
        index = element_index(x.offset, x.strides, (*point[:-rank], *inside))
        found.append((taps, body.load(x.owner, index, x.dtype).cast(compute_dtype(x.dtype))))
    return found


# --- maxima ----------------------------------------------------------------------------------------------------


def _max_pool(rank: int) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, Buffer]:
        x, kernel, stride, padding, dilation = _given(
            args, kwargs, ("kernel_size", "stride", "padding", "dilation"), (None, (), 0, 1)
        )
        values, places = low.like(meta[0]), low.like(meta[1])
        return _maxima(low, x, _spans(x, values.sizes, kernel, stride, padding, dilation, rank), values, places)

    return rule


def _maxima(low: Builder, x: Buffer, spans: Spans, values: Buffer, places: Buffer) -> tuple[Buffer, Buffer]:
    """The greatest element of each window, and its flat position in the pooled dimensions. NaN counts as greatest; of
    equal elements the first is found, of several NaNs the last."""
    _checked(x, spans)
    gaps = any(s.leaves and s.step != 1 for s in spans)  # the border may then be no tap
    least = -math.inf if x.dtype in FLOATS else -(1 << 63)

    def held(body: Body, point: Sizes, taps: tuple[int, ...]) -> Scalar | None:
        """Whether the tap lies inside of the input, where that matters."""
        parts = [s.holds(body, p, t) for s, p, t in zip(spans, point[-len(spans) :], taps, strict=True)] if gaps else []
        return functools.reduce(lambda a, b: a if b is None else b if a is None else a & b, parts, None)

    def value(body: Body, point: Sizes) -> Scalar:
        best: Scalar | None = None
        for taps, v in _elements(body, x, spans, point):
            inside = held(body, point, taps)
            v = v if inside is None else inside.where(v, least)
            best = v if best is None else best.apply("max", v)
        assert best is not None
        return best

    def place(body: Body, point: Sizes) -> Scalar:
        (first, best), *others = _elements(body, x, spans, point)
        number, some = body.const(0, "i32"), held(body, point, first)  # some: whether a tap was inside yet
        for k, (taps, v) in enumerate(others, 1):
            inside = held(body, point, taps)
            better = (v > best) | v.apply("isnan") if x.dtype in FLOATS else v > best
            better = better if some is None else better | ~some
            better = better if inside is None else better & inside
            best, number = better.where(v, best), better.where(body.const(k, "i32"), number)
            some = None if some is None or inside is None else some | inside
        return _position(body, spans, point, number).cast("i64")

    low.indexed(values, value)
    return values, low.indexed(places, place)


def _position(body: Body, spans: Spans, point: Sizes, number: Scalar) -> Scalar:
    """The flat position of tap ``number``, in i32: digits of the number by multiplication, each moved to the border."""
    if product(sympy.Integer(s.size) for s in spans) >= 1 << 31:
        raise Declined("a plane of more than 2**31 elements")
    taps, flat = _taps(spans), body.const(0, "i32")
    for span, out in zip(spans, point[-len(spans) :], strict=True):
        taps //= span.taps
        digit = (number * -(-(1 << 16) // taps)).apply("shr", 16) if taps > 1 else number
        number = number - digit * taps
        flat = flat * span.size + span.place(body, out, digit)
    return flat


# --- means -----------------------------------------------------------------------------------------------------


def _avg_pool(rank: int) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x, kernel, stride, padding, _, include, divisor = _given(
            args, kwargs, ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
            (None, (), 0, False, True, None),
        )  # fmt: skip
        out = low.like(meta)
        spans = _spans(x, out.sizes, kernel, stride, padding, 1, rank)
        pads = _numbers(padding, rank)
        limits = [(-p, s.size + p) if include else (0, s.size) for p, s in zip(pads, spans, strict=True)]
        return _means(low, x, spans, out, limits, divisor)

    return rule


def _means(
    low: Builder, x: Buffer, spans: Spans, out: Buffer, limits: Sequence[tuple[int, int]], divisor: int | None
) -> Buffer:
    """Means over the windows. What lies between ``limits`` counts, also outside of the input, where it is 0."""
    _checked(x, spans)

    def value(body: Body, point: Sizes) -> Scalar:
        places = point[-len(spans) :]
        total: Scalar | None = None
        for taps, v in _elements(body, x, spans, point):
            for span, out, tap in zip(spans, places, taps, strict=True):
                v = span.masked(body, out, tap, v)
            total = v if total is None else total + v
        assert total is not None
        count: Any = 1 if divisor is None else divisor
        if divisor is None:
            for span, out, limit in zip(spans, places, limits, strict=True):
                count = count * span.count(body, out, limit)
        count = count.cast(total.dtype) if isinstance(count, Scalar) else count
        if total.floating:
            return total / count
        # positive as far as the kernel can tell: it computes counts of points past the last as well
        return total.apply("truncdiv", count.apply("max", 1) if isinstance(count, Scalar) else count)

    return low.indexed(out, value)


def _max_backward(rank: int, indices: int) -> Rule:
    """Each gradient is added where its window's maximum is: ``indices`` (the argument of this number) says where."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        grad, places, out = args[0], args[indices], low.like(meta)
        if out.dtype not in FLOATS:
            raise Declined(f"pooling of {out.dtype}")
        if any(low.hint(s) < low.hint(out.strides[-1]) for n, s in zip(out.sizes, out.strides, strict=True) if n != 1):
            raise Declined("maxima of channels that lie side by side, which ATen is faster at")
        wide = out if out.dtype == compute_dtype(out.dtype) else low.fresh(
            out.sizes, out.strides, compute_dtype(out.dtype), out.device
        )  # fmt: skip
        low.indexed(wide, lambda body, _: body.lift(0, wide.dtype))
        space, plane = grad.sizes, out.sizes[-rank:]
        update(
            low, wide, "sum", space, range(len(space) - rank, len(space)),
            lambda body, p: (*p[:-rank], *unraveled(
                position(low, body, places, p, space, product(plane), wrap=False), plane)),
            lambda body, p: low.load(body, grad, p, space),
        )  # fmt: skip
        return wide if wide is out else low.pointwise(out, [wide], lambda v: v)

    return rule


# --- windows that share the input evenly -----------------------------------------------------------------------


def _adaptive_mean(rank: int) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x, out = args[0], low.like(meta)
        if x.dtype not in FLOATS:
            raise Declined(f"pooling of {x.dtype}")
        everything = [(0, 1 << 31)] * rank
        even = _even(x, out, rank)
        if even is None:
            return _means(low, x, shares(x.sizes[-rank:], out.sizes[-rank:]), out, everything, None)
        kernel, view = even
        if _small(kernel):
            return _means(low, x, _spans(x, out.sizes, kernel, kernel, 0, 1, rank), out, everything, None)
        count = int(product(map(sympy.Integer, kernel)))
        shape = low.view(x, *view, x.offset, low.fresh_name())
        folded = range(len(x.sizes) - rank + 1, len(shape.sizes), 2)
        return low.reduce(out, "sum", [shape], list(folded), after=lambda total: total / count)

    return rule


def _adaptive_max(rank: int) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, Buffer]:
        x, values, places = args[0], low.like(meta[0]), low.like(meta[1])
        even = _even(x, values, rank)
        if even is None:
            return _maxima(low, x, shares(x.sizes[-rank:], values.sizes[-rank:]), values, places)
        kernel, _ = even
        return _maxima(low, x, _spans(x, values.sizes, kernel, kernel, 0, 1, rank), values, places)

    return rule


def _small(kernel: Sequence[int]) -> bool:
    count = 1
    for k in kernel:
        count *= k
    return count <= 16


def _even(x: Buffer, out: Buffer, rank: int) -> tuple[list[int], tuple[Sizes, Sizes]] | None:
    """The windows' sizes where they divide the input, and the sizes and strides of its view as (window, tap) pairs."""
    kernel: list[int] = []
    sizes, strides = list(x.sizes[:-rank]), list(x.strides[:-rank])
    for size, count, stride in zip(x.sizes[-rank:], out.sizes[-rank:], x.strides[-rank:], strict=True):
        if not (size.is_Integer and count.is_Integer and int(count) and int(size) % int(count) == 0):
            return None
        kernel.append(int(size) // int(count))
        sizes += [count, sympy.Integer(kernel[-1])]
        strides += [stride * kernel[-1], stride]
    return kernel, (tuple(sizes), tuple(strides))


# --- gradients of means ----------------------------------------------------------------------------------------


def _avg_backward(rank: int) -> Rule:
    """Each input element adds up the gradients of the windows that it lies in, divided by their size."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        grad = args[0]
        x, kernel, stride, padding, _, include, divisor = _given(
            args[1:], kwargs, ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
            (None, (), 0, False, True, None),
        )  # fmt: skip
        out = low.like(meta)
        kernel = _numbers(kernel, rank)
        strides, pads = _numbers(stride, rank, kernel), _numbers(padding, rank)
        spans = _spans(x, grad.sizes, kernel, stride, padding, 1, rank)
        if divisor is None:
            if any(
                s.high >= s.size + (p if include else 0) or (p and not include)
                for s, p in zip(spans, pads, strict=True)
            ):
                raise Declined("windows that count different numbers of elements")
            divisor = _taps(spans)
        return _spread_back(low, grad, out, strides, pads, kernel, divisor)

    return rule


def _adaptive_backward(rank: int) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        grad, x, out = args[0], args[1], low.like(meta)
        even = _even(x, grad, rank)
        if even is None:
            return _shared_back(low, grad, x, out, rank)
        kernel, _ = even
        return _spread_back(low, grad, out, kernel, [0] * rank, kernel, math.prod(kernel))

    return rule


def _shared_back(low: Builder, grad: Buffer, x: Buffer, out: Buffer, rank: int) -> Buffer:
    """The gradients of windows of different sizes, each divided by its own, then summed for each element."""
    if out.dtype not in FLOATS:
        raise Declined(f"pooling of {out.dtype}")
    dtype = compute_dtype(grad.dtype)
    spans = shares(x.sizes[-rank:], grad.sizes[-rank:])
    if _taps(spans) > MOST_TAPS and out.strides[-1] == 1:
        raise Declined("gradients of few large windows along rows, which ATen is faster at")

    def share(body: Body, point: Sizes) -> Scalar:
        v, count = body.load(grad.owner, grad.index(point), grad.dtype).cast(dtype), body.const(1, "i32")
        for span, window in zip(spans, point[-rank:], strict=True):
            count = count * span.count(body, window, (0, 0))
        return v / count.cast(dtype)

    made = low.fresh(
        grad.sizes, grad.strides if _packed(low, grad) else contiguous_strides(grad.sizes), dtype, grad.device
    )
    each = low.indexed(made, share)
    return sums(low, each, shares(grad.sizes[-rank:], x.sizes[-rank:]), out)


def _packed(low: Builder, x: Buffer) -> bool:
    """Whether the elements fill their memory without gaps, in any order of the dimensions."""
    expected: Expr = sympy.S.One
    for stride, size in sorted(zip(x.strides, x.sizes, strict=True), key=lambda d: low.hint(d[0])):
        if size != 1 and stride != expected:
            return False
        expected = expected * size
    return True


def sums(low: Builder, x: Buffer, spans: Spans, out: Buffer) -> Buffer:
    """Sums over the windows."""
    return _means(low, x, spans, out, [(0, 0)] * len(spans), 1)


def _nearest_backward(rank: int, exact: bool) -> Rule:
    """Sums over the places to which nearest neighbours took each element."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        grad, out = args[0], low.like(meta)
        sizes, counts = out.sizes[-rank:], grad.sizes[-rank:]
        nearest = neighbours(out.dtype, sizes, counts, scales_of(args[3:], kwargs, rank), exact)
        factors = factors_of(sizes, counts, nearest)
        if factors is not None:
            return repeated_back(low, grad, out, factors)
        return sums(low, grad, repeats(sizes, counts, nearest, exact), out)

    return rule


def _spread_back(
    low: Builder, grad: Buffer, out: Buffer, strides: Sequence[int], pads: Sequence[int], kernel: Sequence[int], divisor: int,
) -> Buffer:  # fmt: skip
    """One loop for the elements at each phase of the stride: there the windows are neighbours, and indexes stay linear."""
    rank = len(kernel)
    if out.dtype not in FLOATS:
        raise Declined(f"pooling of {out.dtype}")
    if any(not s.is_Integer for s in (*out.sizes[-rank:], *grad.sizes[-rank:])):
        raise Declined("windows over a dimension of symbolic size")
    if (
        list(strides) == list(kernel)
        and not any(pads)
        and all(int(s) == k * int(g) for s, k, g in zip(out.sizes[-rank:], kernel, grad.sizes[-rank:], strict=True))
    ):
        return (
            low.pointwise(
                paired(low, out, kernel, grad.sizes[-rank:]), [spread(low, grad, kernel)], lambda g: g / divisor
            )
            and out
        )
    phases = itertools.product(*(range(min(s, int(n))) for s, n in zip(strides, out.sizes[-rank:], strict=True)))
    if math.prod(strides) > MOST_PHASES:
        raise Declined("windows that lie far apart")
    for phase in phases:
        counts = [-(-(int(n) - b) // s) for n, b, s in zip(out.sizes[-rank:], phase, strides, strict=True)]
        windows = [
            _windows(int(n), int(g), b, s, p, k)
            for n, g, b, s, p, k in zip(counts, grad.sizes[-rank:], phase, strides, pads, kernel, strict=True)
        ]
        part = every(low, out, list(map(sympy.Integer, counts)), strides, phase)

        def value(body: Body, point: Sizes, windows: list[list[Span]] = windows) -> Scalar:
            places = point[-rank:]
            total: Scalar | None = None
            for spans in itertools.product(*windows):
                inside = (s.inside(p, 0) for s, p in zip(spans, places, strict=True))
                index = element_index(grad.offset, grad.strides, (*point[:-rank], *inside))
                v = body.load(grad.owner, index, grad.dtype).cast(compute_dtype(grad.dtype))
                for span, place in zip(spans, places, strict=True):
                    v = span.masked(body, place, 0, v)
                total = v if total is None else total + v
            return body.const(0, compute_dtype(grad.dtype)) if total is None else total / divisor

        low.indexed(part, value)
    return out


def _windows(count: int, windows: int, phase: int, stride: int, pad: int, taps: int) -> list[Span]:
    """The windows that elements ``stride * i + phase`` lie in, one span of a single tap for each."""
    found = []
    for tap in reversed(range(taps)):
        if (phase + pad - tap) % stride == 0:
            first = (phase + pad - tap) // stride
            found.append(Span(windows, 1, 1, lambda o, first=first: o + first, first, first + count - 1))
    return found


def _given(args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str], defaults: Sequence[Any]) -> list[Any]:
    """The first argument, and those named, by position or by keyword."""
    given = {**dict(zip(names, args[1:], strict=False)), **kwargs}
    return [args[0], *(given.get(n, d) for n, d in zip(names, defaults, strict=True))]


RULES: dict[str, Rule] = {
    "aten.max_pool2d_with_indices": _max_pool(2),
    "aten.max_pool3d_with_indices": _max_pool(3),
    "aten.max_pool2d_with_indices_backward": _max_backward(2, 7),
    "aten.max_pool3d_with_indices_backward": _max_backward(3, 7),
    "aten.adaptive_max_pool2d_backward": _max_backward(2, 2),
    "aten.adaptive_max_pool3d_backward": _max_backward(3, 2),
    "aten.fractional_max_pool2d_backward": _max_backward(2, 4),
    "aten.fractional_max_pool3d_backward": _max_backward(3, 4),
    **{f"aten.upsample_nearest{d}d_backward": _nearest_backward(d, False) for d in (1, 2, 3)},
    **{f"aten._upsample_nearest_exact{d}d_backward": _nearest_backward(d, True) for d in (1, 2, 3)},
    "aten.avg_pool2d": _avg_pool(2),
    "aten.avg_pool3d": _avg_pool(3),
    "aten.avg_pool2d_backward": _avg_backward(2),
    "aten.avg_pool3d_backward": _avg_backward(3),
    "aten._adaptive_avg_pool2d_backward": _adaptive_backward(2),
    "aten._adaptive_avg_pool3d_backward": _adaptive_backward(3),
    "aten._adaptive_avg_pool2d": _adaptive_mean(2),
    "aten._adaptive_avg_pool3d": _adaptive_mean(3),
    "aten.adaptive_max_pool2d": _adaptive_max(2),
    "aten.adaptive_max_pool3d": _adaptive_max(3),
}
