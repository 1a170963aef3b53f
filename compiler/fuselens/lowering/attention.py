"""Attention of one query on a GPU, as a token that is generated has it: two products by a vector, a softmax between them.

There is nothing for a flash kernel to keep on chip: the scores are a row for each head. What is computed before and
after them fuses, and one launch less is most of the time. Keys and values beyond a few megabytes are the vendor's, whose
kernels share a key between the queries of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fuselens.ir.affine import ONE, ZERO, divide
from fuselens.ir.loops import ITEMSIZE, Buffer
from fuselens.lowering.body import Scalar
from fuselens.lowering.builder import Builder, Unsupported
from fuselens.lowering.dtypes import FLOATS
from fuselens.lowering.products import VENDOR

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
MOST = 8 << 20  # bytes of keys and values
LOWEST = -3.4e38  # of f32: what is subtracted where all scores are minus infinity


def _rule(*names: str) -> Rule:
    """``names``: of the operator's arguments, in order."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        q, k, v, bias = given["query"], given["key"], given["value"], given.get("attn_bias")
        if given.get("dropout_p") or given.get("is_causal") or low.used != {0} or (low.device or q.device) == "cpu":
            raise Unsupported(VENDOR)
        size = ITEMSIZE[k.dtype] * (low.hint(k.numel()) + low.hint(v.numel()))
        if q.sizes[2] != 1 or not {q.dtype, k.dtype, v.dtype} <= FLOATS or v.strides[3] != 1 or k.strides[3] != 1:
            raise Unsupported(VENDOR)
        if size > MOST or (bias is not None and bias.dtype not in FLOATS):
            raise Unsupported(VENDOR)
        scale = given.get("scale")
        out = low.like(meta[0])
        _attention(low, out, q, k, v, bias, 1 / math.sqrt(int(q.sizes[3])) if scale is None else scale)
        return (out, *(None for _ in meta[1:]))

    return rule


def _attention(
    low: Builder, out: Buffer, q: Buffer, k: Buffer, v: Buffer, bias: Buffer | None, scale: float
) -> Buffer:  # fmt: skip
    batch, heads, *_ = q.sizes
    groups, keys, own = k.sizes[1], k.sizes[2], v.sizes[3]
    each = divide(heads, groups)
    if each is None or v.sizes[1] != groups or own != out.sizes[3]:
        raise Unsupported(VENDOR)

    def by_group(x: Buffer, last: tuple[int, ...]) -> Buffer:
        """Of (batch, heads, 1, n) as (batch, groups, heads of each, *) where ``last`` names dimensions or -1 for a new one."""
        heads_apart = ZERO if x.sizes[1] == 1 and heads != 1 else x.strides[1]
        sizes = (batch, groups, each, *(x.sizes[d] if d >= 0 else ONE for d in last))
        strides = (x.strides[0] if x.sizes[0] != 1 else ZERO, heads_apart * each, heads_apart,
                   *(x.strides[d] if d >= 0 else ZERO for d in last))  # fmt: skip
        return low.view(x, sizes, strides, x.offset)

    def spread(x: Buffer, dims: tuple[int, ...]) -> Buffer:
        """Keys or values as (batch, groups, heads of each, *)."""
        sizes = (batch, groups, each, *(x.sizes[d] for d in dims))
        return low.view(x, sizes, (*x.strides[:2], ZERO, *(x.strides[d] for d in dims)), x.offset)

    scores = low.temporary((batch, groups, each, keys), "f32", out.device)
    low.reduce(
        scores, "sum", [spread(k, (2, 3)), by_group(q, (-1, 3))], [4], dtype="f32",
        before=lambda x, y: x * y, after=lambda total: total * scale,
    )  # fmt: skip
    if bias is not None:
        biased = low.temporary(scores.sizes, "f32", out.device)
        scores = low.pointwise(biased, [scores, by_group(bias, (3,))], lambda x, y: x + y)
    sizes = (batch, groups, each, own)
    rows = low.view(scores, (*scores.sizes[:3], own, keys), (*scores.strides[:3], ZERO, ONE), scores.offset)
    most, total, mixed = (low.temporary(sizes, "f32", out.device) for _ in range(3))
    low.reduce(most, "max", [rows], [4], after=lambda x: x.apply("max", LOWEST))
    tops = low.view(most, (*sizes, ONE), (*most.strides, ZERO), most.offset)

    def weight(score: Scalar, top: Scalar) -> Scalar:
        return (score - top).apply("exp")

    low.reduce(total, "sum", [rows, tops], [4], before=weight)
    low.reduce(
        mixed, "sum", [rows, tops, spread(v, (3, 2))], [4], before=lambda s, t, x: weight(s, t) * x
    )  # fmt: skip
    heads_last = low.view(
        out, sizes, (out.strides[0], out.strides[1] * each, out.strides[1], out.strides[3]), out.offset
    )
    low.pointwise(heads_last, [mixed, total], lambda x, n: n.eq(0.0).where(0.0, x / n))
    return out


_SHARED = ("query", "key", "value")
RULES: dict[str, Rule] = {
    "aten._scaled_dot_product_cudnn_attention": _rule(
        *_SHARED, "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"
    ),
    "aten._scaled_dot_product_efficient_attention": _rule(
        *_SHARED, "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"
    ),
    "aten._scaled_dot_product_flash_attention": _rule(*_SHARED, "dropout_p", "is_causal"),
}
