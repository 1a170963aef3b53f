"""Positions that are found: where values belong in sorted sequences, and the elements that a mask selects, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuselens.ir.affine import ONE, ZERO, product
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes
from fuselens.lowering.dtypes import FLOATS, compute_dtype
from fuselens.lowering.operators.indexing import flattened, supported, unraveled, update

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]


def _found(low: Builder, meta: Any, values: Any, sequence: Buffer, right: bool, sorter: Buffer | None = None) -> Buffer:
    """Binary searches along the last dimension of ``sequence``, in ATen's steps: they lead past NaNs as ATen's do.

    ``sorter`` holds the positions of the elements in their order."""
    out, dtype = low.like(meta), sequence.dtype
    supported(sequence)
    if not sequence.sizes:
        raise Declined("a sequence without a dimension")
    if values.dtype != dtype if isinstance(values, Buffer) else dtype not in FLOATS and not isinstance(values, int):
        raise Declined("a search for values of another type than the sequence's")
    size = sequence.sizes[-1]
    if not size.is_Integer or int(size) >= 1 << 30:
        raise Declined("a search in a sequence of symbolic length, or of more elements than i32 counts")
    own = compute_dtype(dtype)

    def compute(body: Body, point: Sizes) -> Scalar:
        row = point[: len(sequence.sizes) - 1]
        value = low.load(body, values, point, out.sizes) if isinstance(values, Buffer) else body.lift(values, dtype)
        value = value.cast(own)
        start, end = body.const(0, "i32"), body.const(int(size), "i32")
        for _ in range(int(size).bit_length()):
            middle = start + (end - start).apply("shr", 1)
            place = middle.apply("min", int(size) - 1).cast("i64").bounds(size, False)
            if sorter is not None:
                place = low.element(body, sorter, (*row, place.symbol)).cast("i64").bounds(size, False)
            there = low.element(body, sequence, (*row, place.symbol)).cast(own)
            left = (start < end) & ~(there > value if right else there >= value)
            start, end = left.where(middle + 1, start), left.where(end, middle)
        return start

    return low.indexed(out, compute)


def _searchsorted(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    sequence, values = args[:2]
    right, side, sorter = (kwargs.get(name) for name in ("right", "side", "sorter"))
    if side == "left" and right:
        raise Declined("sides that contradict each other")
    rows = values.sizes[:-1] if isinstance(values, Buffer) and len(sequence.sizes) > 1 else ()
    if sequence.sizes[:-1] != rows:
        raise Declined("sequences of another shape than the values")
    return _found(low, meta, values, sequence, side == "right" or bool(right), sorter)


def _bucketize(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    if len(args[1].sizes) != 1:
        raise Declined("boundaries that are no vector")
    return _found(low, meta, args[0], args[1], bool(kwargs.get("right")))


# --- masks -----------------------------------------------------------------------------------------------------


def _ranks(low: Builder, mask: Buffer, sizes: Sizes) -> Buffer:
    """How many elements of the mask, which is spread over ``sizes``, are set up to and with each, in row-major order."""
    spread = low.temporary(sizes, "bool", mask.device)
    low.pointwise(spread, [mask], lambda m: m, "")
    count = product(sizes)
    ranks = low.temporary(sizes, "i64", mask.device)
    low.scan(flattened(low, ranks), "sum", [low.view(spread, (count,), (ONE,), ZERO)], 0, "i64")
    return ranks


def _masked_scatter(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """Where the mask is set, the elements of the source in order."""
    x, mask, source = args
    out = low.like(meta)
    supported(x, source, out)
    source = flattened(low, source)
    count, ranks = product(source.sizes), _ranks(low, mask, out.sizes)
    if count == 0:
        raise Declined("there is nothing to take values from")

    def compute(body: Body, point: Sizes) -> Scalar:
        chosen = low.load(body, mask, point, out.sizes)
        k = chosen.where(low.load(body, ranks, point, out.sizes) - 1, 0).bounds(count, False).symbol
        old, new = low.load(body, x, point, out.sizes), low.element(body, source, unraveled(k, source.sizes))
        return chosen.where(new.cast(compute_dtype(out.dtype)), old.cast(compute_dtype(out.dtype)))

    return low.indexed(out, compute)


def _masked_scatter_backward(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """The gradients where the mask is set, in order, and zeros after them."""
    grad, mask = args[:2]
    out = low.like(meta)
    supported(grad, out)
    ranks, flat = _ranks(low, mask, grad.sizes), flattened(low, out)
    if len(flat.sizes) != 1 or flat.sizes[0] == 0:
        raise Declined("there is nothing to put values in")
    low.indexed(out, lambda body, _: body.lift(0, out.dtype))

    def at(body: Body, point: Sizes) -> Sizes:
        rank = low.load(body, ranks, point, grad.sizes)
        return ((rank - 1).apply("max", 0).bounds(flat.sizes[0], False).symbol,)

    def value(body: Body, point: Sizes) -> Scalar:
        chosen = low.load(body, mask, point, grad.sizes)
        return chosen.where(low.load(body, grad, point, grad.sizes).cast(compute_dtype(out.dtype)), 0)

    update(low, flat, "sum", grad.sizes, range(len(grad.sizes)), at, value)
    return out


RULES: dict[str, Rule] = {
    "aten.searchsorted": _searchsorted,
    "aten.bucketize": _bucketize,
    "aten.masked_scatter": _masked_scatter,
    "aten.masked_scatter_backward": _masked_scatter_backward,
}
