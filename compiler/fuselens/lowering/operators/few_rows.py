"""``fuselens.attention`` and ``attention_of``: the kernel that attends, and loops that put its parts together where keys were split."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fuselens.ir.affine import ONE, ZERO
from fuselens.ir.loops import Attention, Axis, Buffer, Ref
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes, contiguous_strides, expression

PROGRAMS = 128  # that keep a card busy; twice as many where they wait for masks
LEAST = 64  # keys of a split
ROWS = 64  # of a program, at most


def _attention(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    query, key, value, mask, scale, causal, masked, _ = args
    attend = _Attending(low, query, key, value)
    body, point, sizes = attend.body, attend.point, attend.sizes
    score = Scalar(body, "score", "f32")
    if scale != 1:
        score = score * float(scale)
    if causal:
        score = _seen(body.expression(point[3]) <= body.expression(point[2]), score)
    if mask is not None:
        held = low.load(body, low.whole(mask), point, sizes)
        # added, as by eager's kernels: a key that is not seen and NaN is NaN
        score = score + (held.where(body.const(0.0, "f32"), masked) if held.dtype == "bool" else held.cast("f32"))
    return attend.make(meta, score, waits=mask is not None)


def _attention_of(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    query, key, value, product, scores, sink, zero, masked = args
    attend = _Attending(low, query, key, value)
    score = low.load(attend.body, low.whole(scores), attend.point, attend.sizes).cast("f32")
    point, sizes = (*attend.point[:3], ZERO), (*attend.sizes[:3], ONE)
    last = None if sink is None else low.load(attend.body, low.whole(sink), point, sizes).cast("f32")
    return attend.make(meta, score, waits=masked, nan=not zero, sink=last, product=low.whole(product))


class _Attending:
    """The node that attends, as it is made: first what becomes of scores, then what follows from that."""

    def __init__(self, low: Builder, *operands: Buffer) -> None:
        if not (low.device or operands[0].device).startswith("cuda"):
            raise Declined("its kernel is one for a GPU")
        self.low, self.body = low, Body(low.spans)
        self.query, self.key, self.value = (low.whole(b) for b in operands)
        self.sizes: Sizes = (*self.query.sizes[:3], self.key.sizes[2])
        self.axes = tuple(Axis(f"i{k}", size) for k, size in enumerate(self.sizes))
        self.point: Sizes = tuple(a.symbol for a in self.axes)

    def make(
        self, meta: Any, score: Scalar, *, waits: bool, nan: bool = False, sink: Scalar | None = None,
        product: Buffer | None = None,
    ) -> Buffer:  # fmt: skip
        """The result: ``waits`` says whether scores take more than the product."""
        low = self.low
        batch, heads, rows, keys = self.sizes
        groups = self.key.sizes[1]
        bands = -(-low.hint(rows * heads) // (ROWS * low.hint(groups)))
        splits = _splits(low.hint(batch * groups) * bands, low.hint(keys), waits)
        operands = tuple(Ref(b.name) for b in (self.query, self.key, self.value))
        name = f"attention{sum(isinstance(n, Attention) for n in low.nodes)}"
        node = Attention(
            name, "fuselens.attention.default", operands, (), (), (), "", low.origin, low.spans, self.axes, splits=splits,
            nan=nan, product="" if product is None else product.name,
        ).with_body(tuple(self.body.ops), score.name, "" if sink is None else sink.name)  # fmt: skip
        out = low.like(meta)
        if splits == 1:
            low.nodes.append(replace(node, outputs=(out.name,)))
            return out
        parts = (batch, heads, rows, expression(splits))
        whole = low.temporary((*parts, self.value.sizes[3]), "f32", self.query.device)
        top, total = (low.temporary(parts, "f32", self.query.device) for _ in range(2))
        low.nodes.append(replace(node, outputs=(whole.name, top.name, total.name)))
        return _together(low, out, whole, top, total, nan)


def _seen(condition: Scalar, score: Scalar) -> Scalar:
    return condition.where(score, score.body.const(-math.inf, "f32"))


def _splits(programs: int, keys: int, waiting: bool) -> int:
    """How often keys are split, so that all of the card reads."""
    wanted = PROGRAMS * (2 if waiting else 1) // programs
    return max(1, min(wanted, keys // LEAST)) if keys > 2 * LEAST else 1


def _together(low: Builder, out: Buffer, whole: Buffer, top: Buffer, total: Buffer, nan: bool) -> Buffer:
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

    def mean(value: Scalar, weight: Scalar) -> Scalar:
        return value / weight if nan else weight.eq(0.0).where(value.body.const(0.0, "f32"), value / weight)

    return low.pointwise(out, [values, weights], mean, "f32")


RULES: dict[str, Any] = {"fuselens.attention": _attention, "fuselens.attention_of": _attention_of}
