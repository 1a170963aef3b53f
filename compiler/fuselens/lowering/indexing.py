"""Operations that read or write at positions that come from data.

Reads are pointwise loops over the result, whose loads use checked positions (``bounds``). Writes copy the tensor that
is written to, and store into the copy: in order along the axes that are indexed, in parallel along all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sympy import Expr

from fuselens.ir.affine import ONE, product
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Sizes, Unsupported, contiguous_strides, element_index
from fuselens.lowering.dtypes import INTEGERS, LOOP_DTYPES
from fuselens.torch_private import integer_functions

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
_MASK = "it takes a mask as an index"


def position(low: Builder, body: Body, index: Buffer, point: Sizes, sizes: Sizes, size: Expr, *, wrap: bool) -> Expr:
    """The element of ``index`` at ``point`` as a position in a dimension of ``size``."""
    if index.dtype not in INTEGERS or index.dtype == "u8":
        raise Unsupported(_MASK)
    if size == 0:
        raise Unsupported("there is nothing to index")
    return low.load(body, index, point, sizes).cast("i64").bounds(size, wrap).symbol


def _supported(*buffers: Buffer) -> None:
    for b in buffers:
        if b.dtype not in LOOP_DTYPES:
            raise Unsupported(f"loops do not compute with {b.dtype}")


def _element(body: Body, x: Buffer, point: Sizes) -> Scalar:
    return body.load(x.owner, element_index(x.offset, x.strides, point), x.dtype)


def _gathered(low: Builder, meta: Any, x: Buffer, at: Callable[[Body, Sizes], Sizes]) -> Buffer:
    """``x`` read at a function of the position."""
    _supported(x)
    return low.indexed(low.like(meta), lambda body, point: _element(body, x, at(body, point)))


# --- reads -----------------------------------------------------------------------------------------------------


def _dimension(dim: int, x: Buffer) -> int:
    return dim % max(len(x.sizes), 1)


def _embedding(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    weight, indices = args[:2]
    rank = len(indices.sizes)

    def at(body: Body, point: Sizes) -> Sizes:
        row = position(low, body, indices, point[:rank], indices.sizes, weight.sizes[0], wrap=False)
        return (row, *point[rank:])

    return _gathered(low, meta, weight, at)


def _index_select(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, dim, index = args[0], _dimension(args[1], args[0]), args[2]
    if not x.sizes:
        raise Unsupported("a number")

    def at(body: Body, point: Sizes) -> Sizes:
        k = position(low, body, index, point[dim : dim + 1], (*index.sizes, ONE)[:1], x.sizes[dim], wrap=False)
        return (*point[:dim], k, *point[dim + 1 :])

    return _gathered(low, meta, x, at)


def _gather(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, dim, index = args[0], _dimension(args[1], args[0]), args[2]
    if not x.sizes or not index.sizes:
        raise Unsupported("a number")

    def at(body: Body, point: Sizes) -> Sizes:
        k = position(low, body, index, point, index.sizes, x.sizes[dim], wrap=False)
        return (*point[:dim], k, *point[dim + 1 :])

    return _gathered(low, meta, x, at)


def _take(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, index = flattened(low, args[0]), args[1]
    count = product(x.sizes)

    def at(body: Body, point: Sizes) -> Sizes:
        return unraveled(position(low, body, index, point, index.sizes, count, wrap=True), x.sizes)

    return _gathered(low, meta, x, at)


def flattened(low: Builder, x: Buffer) -> Buffer:
    """``x`` as one dimension, where its elements lie in order."""
    if x.strides != contiguous_strides(x.sizes):
        return x
    return low.view(x, (product(x.sizes),), (ONE,), x.offset)


def unraveled(flat: Expr, sizes: Sizes) -> Sizes:
    """The position in each dimension of the element number ``flat``, in row-major order."""
    functions = integer_functions()
    divide, remainder = functions["FloorDiv"], functions["Mod"]
    out: list[Expr] = []
    for d, size in enumerate(sizes):
        below = product(sizes[d + 1 :])
        part = flat if below == 1 else divide(flat, below)
        out.append(part if d == 0 else remainder(part, size))
    return tuple(out)


class Advanced:
    """Indexing by tensors: where their common shape lies in the result, and which dimensions they index."""

    def __init__(self, x: Buffer, indices: Sequence[Buffer | None]) -> None:
        self.x = x
        self.indices = {d: i for d, i in enumerate(indices) if i is not None}
        if any(i.dtype not in INTEGERS or i.dtype == "u8" for i in self.indices.values()):
            raise Unsupported(_MASK)
        dims = list(self.indices)
        self.rank = max((len(i.sizes) for i in self.indices.values()), default=0)
        adjacent = dims == list(range(dims[0], dims[0] + len(dims))) if dims else True
        self.start = dims[0] if dims and adjacent else 0
        self.kept = [d for d in range(len(x.sizes)) if d not in self.indices]

    def at(self, low: Builder, body: Body, point: Sizes, sizes: Sizes) -> Sizes:
        """The position in ``x`` of the result's ``point``, given the result's ``sizes``."""
        inside = slice(self.start, self.start + self.rank)
        rest = iter((*point[: self.start], *point[self.start + self.rank :]))
        return tuple(
            position(low, body, self.indices[d], point[inside], sizes[inside], size, wrap=True)
            if d in self.indices else next(rest)
            for d, size in enumerate(self.x.sizes)
        )  # fmt: skip


def _index(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, indices = args
    advanced = Advanced(x, indices)
    out = low.like(meta)
    _supported(x)
    return low.indexed(out, lambda body, point: _element(body, x, advanced.at(low, body, point, out.sizes)))


RULES: dict[str, Rule] = {
    "aten.embedding": _embedding,
    "aten.index_select": _index_select,
    "aten.gather": _gather,
    "aten.take": _take,
    "aten.index": _index,
    "aten._unsafe_index": _index,
}
