"""``fuselens.attention``: the kernel that attends, and loops that put its parts together where keys were split."""

from __future__ import annotations

import math
from typing import Any

from fuselens.ir.affine import ZERO
from fuselens.ir.loops import Attention, Axis, Buffer, Ref
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Sizes, Unsupported, contiguous_strides, expression

PROGRAMS = 256  # of which a card runs two on each of its processors
LONG = 512  # keys of a split from which one program keeps a processor busy
LEAST = 64  # keys of a split


def _attention(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    query, key, value, mask, scale, causal, masked, _ = args
    if not (low.device or query.device).startswith("cuda"):
        raise Unsupported("its kernel is one for a GPU")
    query, key, value = (low.whole(b) for b in (query, key, value))
    batch, heads, rows, _ = query.sizes
    keys = key.sizes[2]
    axes = tuple(Axis(f"i{k}", size) for k, size in enumerate((batch, heads, rows, keys)))
    point: Sizes = tuple(a.symbol for a in axes)
    body = Body(low.spans)
    score = Scalar(body, "score", "f32")
    if scale != 1:
        score = score * float(scale)
    if causal:
        score = _seen(body.expression(point[3]) <= body.expression(point[2]), score)
    if mask is not None:
        held = low.load(body, low.whole(mask), point, (batch, heads, rows, keys))
        if held.dtype != "bool":
            score = score + held.cast("f32")
        else:  # a row that sees nothing is 0, or what remains of its scores, as with eager's kernel
            score = _seen(held, score) if math.isinf(masked) else score + held.where(body.const(0.0, "f32"), masked)
    splits = _splits(low.hint(batch * key.sizes[1]), low.hint(keys))
    operands = tuple(Ref(b.name) for b in (query, key, value))
    if splits == 1:
        out = low.like(meta)
        low.nodes.append(_node(low, (out.name,), operands, axes, body, score, 1))
        return out
    parts = (batch, heads, rows, expression(splits))
    whole = low.temporary((*parts, value.sizes[3]), "f32", query.device)
    top, total = (low.temporary(parts, "f32", query.device) for _ in range(2))
    outputs = (whole.name, top.name, total.name)
    low.nodes.append(_node(low, outputs, operands, axes, body, score, splits))
    return _together(low, low.like(meta), whole, top, total)


def _node(
    low: Builder,
    outputs: tuple[str, ...],
    operands: tuple[Ref, ...],
    axes: tuple[Axis, ...],
    body: Body,
    score: Scalar,
    splits: int,
) -> Attention:
    name = f"attention{sum(isinstance(n, Attention) for n in low.nodes)}"
    made = Attention(
        name, "fuselens.attention.default", operands, (), outputs, (), "", low.origin, low.spans, axes, splits=splits
    )
    return made.with_body(tuple(body.ops), score.name)


def _seen(condition: Scalar, score: Scalar) -> Scalar:
    return condition.where(score, score.body.const(-math.inf, "f32"))


def _splits(programs: int, keys: int) -> int:
    """How often keys are split, so that all of the card reads."""
    wanted = PROGRAMS // programs
    if keys >= LONG * wanted:
        wanted //= 2
    return max(1, min(wanted, keys // LEAST))


def _together(low: Builder, out: Buffer, whole: Buffer, top: Buffer, total: Buffer) -> Buffer:
    """The mean over the splits, by their weights. Everything has a value for each element of the result, so that all of
    it is one kernel."""
    sizes = (*out.sizes, top.sizes[3])
    device = out.device

    def over(buffer: Buffer) -> Buffer:
        """The buffer with the sizes (batch, heads, rows, width, splits)."""
        strides = buffer.strides
        order = (*strides[:3], strides[4], strides[3]) if len(strides) == 5 else (*strides[:3], ZERO, strides[3])
        return low.view(buffer, sizes, order, buffer.offset)

    def folded(kind: Any, sources: list[Buffer], before: Any = None) -> Buffer:
        made = low.temporary(out.sizes, "f32", device)
        return low.reduce(made, kind, sources, [4], before=before)

    def weighted(value: Scalar, height: Scalar, highest: Scalar) -> Scalar:
        return value * (height - highest).apply("exp")

    tops = over(top)
    most = folded("max", [tops])
    finite = low.temporary(out.sizes, "f32", device)
    low.pointwise(finite, [most], lambda m: m.eq(-math.inf).where(m.body.const(0.0, "f32"), m))
    highest = low.view(finite, sizes, (*contiguous_strides(out.sizes), ZERO), ZERO)
    weights = folded("sum", [over(total), tops, highest], weighted)
    values = folded("sum", [over(whole), tops, highest], weighted)
    return low.pointwise(out, [values, weights], lambda v, w: w.eq(0.0).where(v.body.const(0.0, "f32"), v / w), "f32")


RULES: dict[str, Any] = {"fuselens.attention": _attention}
