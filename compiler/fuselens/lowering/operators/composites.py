"""Operations that core decompositions leave whole but that are several loops: softmax, normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuselens.ir.affine import ZERO, divide
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Scalar
from fuselens.lowering.builder import Builder, Declined, contiguous_strides, expression
from fuselens.lowering.dtypes import LOOP_DTYPES, compute_dtype
from fuselens.lowering.operators import reductions
from fuselens.lowering.operators.reductions import kept_sizes, moments, squeezed

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]


def _real(x: Buffer) -> Buffer:
    if x.dtype not in LOOP_DTYPES:
        raise Declined(f"loops do not compute with {x.dtype}")
    return x


def _row_fold(low: Builder, kind: str, sources: list[Buffer], dim: int, dtype: str, before: Any = None) -> Buffer:
    out = low.temporary(kept_sizes(sources[0].sizes, [dim]), dtype, sources[0].device)
    return low.reduce(out, kind, sources, [dim], keep=True, dtype=dtype, before=before)


def _softmax(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, dim = _real(args[0]), args[1] % max(len(args[0].sizes), 1)
    dtype = compute_dtype(x.dtype)
    if not x.sizes:
        return low.pointwise(low.like(meta), [x], lambda v: (v - v).apply("exp"))
    top = _row_fold(low, "max", [x], dim, dtype)
    powers = low.pointwise(low.fresh(x.sizes, x.strides if _dense(x) else contiguous_strides(x.sizes), dtype, x.device),
                           [x, top], lambda v, m: (v - m).apply("exp"))  # fmt: skip
    total = _row_fold(low, "sum", [powers], dim, dtype)
    return low.pointwise(low.like(meta), [powers, total], lambda e, s: e / s)


def _dense(x: Buffer) -> bool:
    return x.strides == contiguous_strides(x.sizes)


def _log_softmax(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, dim = _real(args[0]), args[1] % max(len(args[0].sizes), 1)
    dtype = compute_dtype(x.dtype)
    if not x.sizes:
        return low.pointwise(low.like(meta), [x], lambda v: v - v)
    top = _row_fold(low, "max", [x], dim, dtype)
    total = _row_fold(low, "sum", [x, top], dim, dtype, lambda v, m: (v - m).apply("exp"))
    log = low.temporary(total.sizes, dtype, x.device)
    low.pointwise(log, [total], lambda s: s.apply("log"))
    return low.pointwise(low.like(meta), [x, top, log], lambda v, m, s: v - m - s)


def _softmax_backward(of_log: bool) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        grad, y, dim = _real(args[0]), _real(args[1]), args[2] % max(len(args[0].sizes), 1)
        dtype = compute_dtype(grad.dtype)
        if not grad.sizes:
            raise Declined("a scalar")
        if of_log:
            total = _row_fold(low, "sum", [grad], dim, dtype)
            return low.pointwise(low.like(meta), [grad, y, total], lambda g, v, s: g - v.apply("exp") * s)
        total = _row_fold(low, "sum", [grad, y], dim, dtype, lambda g, v: g * v)
        return low.pointwise(low.like(meta), [grad, y, total], lambda g, v, s: (g - s) * v)

    return rule


def _affine(normal: Scalar, weight: Scalar | None, bias: Scalar | None) -> Scalar:
    normal = normal * weight if weight is not None else normal
    return normal + bias if bias is not None else normal


def _normalise(low: Builder, out: Buffer, parts: list[Buffer], weight: Buffer | None, bias: Buffer | None) -> Buffer:
    """``(x - mean) * rstd``, scaled and shifted: parts are x, mean and rstd."""
    extra = [b for b in (weight, bias) if b is not None]

    def compute(v: Scalar, m: Scalar, r: Scalar, *rest: Scalar) -> Scalar:
        given = iter(rest)
        w = next(given) if weight is not None else None
        return _affine((v - m) * r, w, next(given) if bias is not None else None)

    return low.pointwise(out, [*parts, *extra], compute)


def _layer_norm(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, ...]:
    x, shape, weight, bias, eps = args
    _real(x)
    dims = list(range(len(x.sizes) - len(shape), len(x.sizes)))
    mean, variance = moments(low, x, dims, 0)
    rstd = low.temporary(mean.sizes, mean.dtype, x.device)
    low.pointwise(rstd, [variance], lambda v: (v + eps).apply("rsqrt"))
    out = _normalise(low, low.like(meta[0]), [x, mean, rstd], weight, bias)
    return (
        out, squeezed(low, mean, meta[1], dims, lambda v: v), squeezed(low, rstd, meta[2], dims, lambda v: v),
    )  # fmt: skip


def _group_norm(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Buffer, ...]:
    """The channels seen as (group, channel in group): statistics over the latter and all that follows."""
    x, weight, bias, _, _, count, groups, eps = args
    _real(x)
    if count == 0:
        raise Declined("ATen's statistics of nothing")
    inner = divide(x.sizes[1], expression(groups))
    if inner is None:
        raise Declined("the groups do not divide the channels evenly")

    def grouped(b: Buffer, channel: int) -> Buffer:
        sizes = (*b.sizes[:channel], expression(groups), inner, *b.sizes[channel + 1 :])
        stride = b.strides[channel]
        strides = (*b.strides[:channel], stride * inner, stride, *b.strides[channel + 1 :])
        return low.view(b, sizes, strides, b.offset, low.fresh_name())

    def channels(b: Buffer | None) -> Buffer | None:
        if b is None:
            return None
        b = grouped(b, 0)
        trailing = len(x.sizes) - 2
        return low.view(b, (*b.sizes, *([expression(1)] * trailing)), (*b.strides, *([ZERO] * trailing)), b.offset)

    whole = grouped(x, 1)
    dims = list(range(2, len(whole.sizes)))
    mean, variance = moments(low, whole, dims, 0)
    rstd = low.temporary(mean.sizes, mean.dtype, x.device)
    low.pointwise(rstd, [variance], lambda v: (v + eps).apply("rsqrt"))
    out = low.like(meta[0])
    _normalise(low, grouped(out, 1), [whole, mean, rstd], channels(weight), channels(bias))
    return (
        out, squeezed(low, mean, meta[1], dims, lambda v: v), squeezed(low, rstd, meta[2], dims, lambda v: v),
    )  # fmt: skip


def _binary_cross_entropy(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """What is no probability is reported as a position out of range is, so that eager raises its own error."""
    x, target = args[:2]
    weight = args[2] if len(args) > 2 else kwargs.get("weight")
    reduction = args[3] if len(args) > 3 else kwargs.get("reduction", 1)
    losses = low.like(meta) if reduction == 0 else low.temporary(x.sizes, x.dtype, x.device)

    def loss(x: Scalar, target: Scalar, *weights: Scalar) -> Scalar:
        one = ((x >= 0.0) & (x <= 1.0)).where(x.body.const(1, "i64"), -1).bounds(expression(2), False)
        log, other = x.apply("log"), (-x).apply("log1p")
        value = (target - 1.0) * other.apply("max", -100.0) - target * log.apply("max", -100.0)
        return (value * weights[0] if weights else value) * one.cast(value.dtype)

    low.pointwise(losses, [x, target, *([weight] if weight is not None else [])], loss)
    if reduction == 0:
        return losses
    return reductions.RULES["aten.mean" if reduction == 1 else "aten.sum"](low, meta, (losses,), {})


RULES: dict[str, Rule] = {
    "aten.binary_cross_entropy": _binary_cross_entropy,
    "aten._softmax": _softmax,
    "aten._log_softmax": _log_softmax,
    "aten._softmax_backward_data": _softmax_backward(False),
    "aten._log_softmax_backward_data": _softmax_backward(True),
    "aten.native_layer_norm": _layer_norm,
    "aten.native_group_norm": _group_norm,
}
