"""Operations that read or write at positions that come from data.

Reads are pointwise loops over the result, whose loads use checked positions (``bounds``). Writes copy the tensor that
is written to, and store into the copy: in order along the axes that are indexed, in parallel along all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sympy import Expr

from fuselens.ir.affine import ONE, ZERO, product
from fuselens.ir.loops import Axis, Buffer
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes, contiguous_strides
from fuselens.lowering.dtypes import FLOATS, HALVES, INTEGERS, LOOP_DTYPES, compute_dtype, identity
from fuselens.torch_private import integer_functions

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
_MASK = "it takes a mask as an index"


def position(low: Builder, body: Body, index: Buffer, point: Sizes, sizes: Sizes, size: Expr, *, wrap: bool) -> Expr:
    """The element of ``index`` at ``point`` as a position in a dimension of ``size``."""
    if index.dtype not in INTEGERS or index.dtype == "u8":
        raise Declined(_MASK)
    if size == 0:
        raise Declined("there is nothing to index")
    return low.load(body, index, point, sizes).cast("i64").bounds(size, wrap).symbol


def supported(*buffers: Buffer) -> None:
    for b in buffers:
        if b.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute with {b.dtype}")


def _gathered(low: Builder, meta: Any, x: Buffer, at: Callable[[Body, Sizes], Sizes]) -> Buffer:
    """``x`` read at a function of the position."""
    supported(x)
    return low.indexed(low.like(meta), lambda body, point: low.element(body, x, at(body, point)))


def line(low: Builder, x: Buffer) -> Buffer:
    """``x``, or the one dimension that a number counts as."""
    return x if x.sizes else low.view(x, (ONE,), (ONE,), x.offset)


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
    x, dim, index = line(low, args[0]), _dimension(args[1], args[0]), args[2]
    along = _along(low, x, dim, index)
    return _gathered(low, meta, x, lambda body, point: along(body, point or (ZERO,)))


def _gather(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, dim, index = line(low, args[0]), _dimension(args[1], args[0]), line(low, args[2])

    def at(body: Body, point: Sizes) -> Sizes:
        point = point or (ZERO,)
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
            raise Declined(_MASK)
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
    supported(x)
    if ZERO in out.sizes:  # eager checks no position then
        return low.indexed(out, lambda body, _: body.lift(0, out.dtype))
    return low.indexed(out, lambda body, point: low.element(body, x, advanced.at(low, body, point, out.sizes)))


def _one_hot(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    index, out = args[0], low.like(meta)

    def compute(body: Body, point: Sizes) -> Scalar:
        k = position(low, body, index, point[:-1], index.sizes, out.sizes[-1], wrap=False)
        return body.lift(point[-1], "i64").eq(body.expression(k)).cast("i64")

    return low.indexed(out, compute)


# --- writes ----------------------------------------------------------------------------------------------------

# Updates that a GPU does at the same time for several points.
_ATOMIC = {"sum": ("f64", "f32", "i64", "i32"), "max": ("i64", "i32", "bool"), "min": ("i64", "i32", "bool")}
Value = Callable[[Body, Sizes], Scalar]


def copied(low: Builder, meta: Any, x: Buffer) -> Buffer:
    """A tensor to write to, with the elements of ``x``."""
    out = low.like(meta)
    supported(x, out)
    low.pointwise(line(low, out) if x.sizes else out, [x], lambda v: v, "")
    return out


def update(
    low: Builder, out: Buffer, kind: str, space: Sizes, in_turn: Sequence[int], at: Callable[[Body, Sizes], Sizes],
    value: Value,
) -> Buffer:  # fmt: skip
    """A loop over ``space`` that changes the elements of ``out`` at a function of the position.

    Points that differ in dimensions other than ``in_turn`` change different elements.
    """
    supported(out)
    kind = "max" if kind == "sum" and out.dtype == "bool" else kind
    if out.dtype == "bool" and kind == "prod":
        kind = "min"
    if out.device.startswith("cuda") and kind not in ("max", "min") and torch.are_deterministic_algorithms_enabled():
        raise Declined("points that update one element at the same time come in any order")
    if out.device.startswith("cuda") and kind != "last" and out.dtype not in _ATOMIC.get(kind, ()):
        if kind != "sum" or out.dtype not in HALVES:
            raise Declined(f"points that update one {out.dtype} at the same time by {kind}")
        wide = low.pointwise(low.temporary(out.sizes, "f32", out.device), [out], lambda v: v, "")
        update(low, wide, kind, space, in_turn, at, value)  # not rounded after each sum
        low.pointwise(_again(low, out), [wide], lambda v: v, "")
        return out
    target = _again(low, line(low, out))
    body = Body(low.spans)
    axes: dict[bool, list[Axis]] = {False: [], True: []}
    point: list[Expr] = []
    for d, size in enumerate(space):
        group = axes[d in in_turn]
        if size != 1:
            group.append(Axis(f"{'r' if d in in_turn else 'i'}{len(group)}", size))
        point.append(ZERO if size == 1 else group[-1].symbol)
    there = at(body, tuple(point))
    low.loop(target, tuple(axes[False]), tuple(axes[True]), value(body, tuple(point)), there, kind)
    return out


def _again(low: Builder, out: Buffer) -> Buffer:
    """``out`` for a loop that writes to what another loop made."""
    return low.view(out, out.sizes, out.strides, out.offset, low.fresh_name())


def _broadcast(shapes: Sequence[Sizes]) -> Sizes:
    rank = max(map(len, shapes), default=0)
    padded = [(*([ONE] * (rank - len(s))), *s) for s in shapes]
    return tuple(next((s for s in sizes if s != 1), ONE) for sizes in zip(*padded, strict=True))


def _index_put(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, indices, values = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if len(given) == 1 and given[0][1].dtype == "bool" and not accumulate and not set(values.sizes) - {ONE}:
        return _masked(low, meta, x, given[0][1], given[0][0], values)
    advanced = Advanced(x, indices)
    where = _broadcast([i.sizes for i in advanced.indices.values()])
    kept = [x.sizes[d] for d in advanced.kept]
    space = (*kept[: advanced.start], *where, *kept[advanced.start :])
    if ZERO in space:
        return copied(low, meta, x)
    return update(
        low, copied(low, meta, x), "sum" if accumulate else "last", space,
        range(advanced.start, advanced.start + advanced.rank),
        lambda body, point: advanced.at(low, body, point, space),
        lambda body, point: low.load(body, values, point, space),
    )  # fmt: skip


def _masked(low: Builder, meta: Any, x: Buffer, mask: Buffer, start: int, value: Buffer) -> Buffer:
    """One value at all places that a mask chooses, which covers the dimensions from ``start`` on."""
    out = low.like(meta)
    trailing = len(x.sizes) - start - len(mask.sizes)
    mask = low.view(mask, (*mask.sizes, *([ONE] * trailing)), (*mask.strides, *([ZERO] * trailing)), mask.offset)
    value = low.view(value, (), (), value.offset)
    supported(x, out)
    own = compute_dtype(x.dtype)
    return low.pointwise(out, [x, mask, value], lambda v, m, w: m.where(w.cast(own), v.cast(own)), "")


def _put(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, index, source = args[:3]
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if index.sizes != source.sizes:
        index, source = flattened(low, index), flattened(low, source)
    if index.sizes != source.sizes:
        raise Declined("positions and values of different shapes")
    out = copied(low, meta, x)
    flat, count = flattened(low, out), product(x.sizes)
    update(
        low, flat, "sum" if accumulate else "last", index.sizes, range(len(index.sizes)),
        lambda body, point: unraveled(position(low, body, index, point, index.sizes, count, wrap=True), flat.sizes),
        lambda body, point: low.load(body, source, point, index.sizes),
    )  # fmt: skip
    return out


def _along(low: Builder, x: Buffer, dim: int, index: Buffer, *, wrap: bool = False) -> Callable[[Body, Sizes], Sizes]:
    """The point whose coordinate along ``dim`` is looked up in a vector."""

    def at(body: Body, point: Sizes) -> Sizes:
        k = position(low, body, index, point[dim : dim + 1], (*index.sizes, ONE)[:1], x.sizes[dim], wrap=wrap)
        return (*point[:dim], k, *point[dim + 1 :])

    return at


class Rows:
    """``op(x, dim, index, source)``: whole slices of ``x``, chosen by a vector of positions, change."""

    def __init__(self, low: Builder, x: Buffer, dim: int, index: Buffer, source: Any, *, wrap: bool = False) -> None:
        self.low, self.x, self.source = low, line(low, x), source
        self.dim = _dimension(dim, x)
        self.at = _along(low, self.x, self.dim, index, wrap=wrap)
        self.space = (*self.x.sizes[: self.dim], line(low, index).sizes[0], *self.x.sizes[self.dim + 1 :])
        if isinstance(source, Buffer) and source.sizes != self.space[: len(x.sizes)] and (source.sizes or not wrap):
            raise Declined("a source of another shape")

    def value(self, body: Body, point: Sizes) -> Scalar:
        source = self.source
        if not isinstance(source, Buffer):
            return body.lift(source, self.x.dtype)
        return self.low.load(body, source, point if source.sizes else (), source.sizes)

    def update(self, out: Buffer, kind: str, value: Value | None = None) -> Buffer:
        """Changes ``out``, a copy of ``x``."""
        return update(self.low, out, kind, self.space, [self.dim], self.at, value or self.value)


def _index_copy(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    return Rows(low, *args[:4]).update(copied(low, meta, args[0]), "last")


def _index_add(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    rows, alpha = Rows(low, *args[:4]), kwargs.get("alpha", 1)

    def value(body: Body, point: Sizes) -> Scalar:
        v = rows.value(body, point)
        return v if alpha == 1 else v.cast(compute_dtype(rows.x.dtype)) * alpha

    return rows.update(copied(low, meta, args[0]), "sum", value)


def _index_fill(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    return Rows(low, *args[:4], wrap=True).update(copied(low, meta, args[0]), "last")


def _index_reduce(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    return _reduced(low, meta, args[0], Rows(low, *args[:4]), args[4], kwargs.get("include_self", True))


class Scatter:
    """``op(x, dim, index, source)``: each element of ``index`` says where, along ``dim``, its place in ``x`` is."""

    def __init__(self, low: Builder, x: Buffer, dim: int, index: Buffer, source: Any) -> None:
        self.low, self.x, self.index = low, line(low, x), line(low, index)
        self.source = line(low, source) if isinstance(source, Buffer) else source
        self.dim = _dimension(dim, x)

    def position(self, body: Body, point: Sizes) -> Expr:
        return position(self.low, body, self.index, point, self.index.sizes, self.x.sizes[self.dim], wrap=False)

    def at(self, body: Body, point: Sizes) -> Sizes:
        return (*point[: self.dim], self.position(body, point), *point[self.dim + 1 :])

    def value(self, body: Body, point: Sizes) -> Scalar:
        if isinstance(self.source, Buffer):
            supported(self.source)
            return self.low.element(body, self.source, point)
        return body.lift(self.source, self.x.dtype)

    @property
    def one_each(self) -> bool:
        """Whether every line of ``x`` along ``dim`` has one place that changes: then the loop may run over ``x``."""
        pairs = enumerate(zip(self.index.sizes, self.x.sizes, strict=True))
        return all(own == (ONE if d == self.dim else size) for d, (own, size) in pairs)

    def update(self, out: Buffer, kind: str, value: Value | None = None) -> Buffer:
        """Changes ``out``, a copy of ``x``."""
        return update(self.low, out, kind, self.index.sizes, [self.dim], self.at, value or self.value)

    def whole(self, meta: Any, kind: str) -> Buffer:
        """``x``, which is as ``meta``, with its changes, by one loop where that is possible."""
        if not self.one_each:
            return self.update(copied(self.low, meta, self.x), kind)
        x, dtype = self.x, compute_dtype(self.x.dtype)
        supported(x)

        def compute(body: Body, point: Sizes) -> Scalar:
            point = point or (ZERO,)
            first = (*point[: self.dim], ZERO, *point[self.dim + 1 :])
            here = body.lift(point[self.dim], "i64").eq(body.expression(self.position(body, first)))
            old, new = self.low.element(body, x, point).cast(dtype), self.value(body, first).cast(dtype)
            return here.where(_updated(kind, old, new), old)

        return self.low.indexed(self.low.like(meta), compute)


def _updated(kind: str, old: Scalar, new: Scalar) -> Scalar:
    if kind in ("sum", "prod"):
        return old + new if kind == "sum" else old * new
    return new if kind == "last" else old.apply(kind, new)


_REDUCTIONS = {"sum": "sum", "add": "sum", "prod": "prod", "multiply": "prod", "amax": "max", "amin": "min"}


def _scatter(kind: str) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        return Scatter(low, *args[:4]).whole(meta, _REDUCTIONS[kwargs["reduce"]] if "reduce" in kwargs else kind)

    return rule


def _scatter_reduce(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, dim, index, source, name, *rest = args
    scatter = Scatter(low, x, dim, index, source)
    include = rest[0] if rest else kwargs.get("include_self", True)
    if include and name != "mean":
        return scatter.whole(meta, _REDUCTIONS[name])
    return _reduced(low, meta, x, scatter, name, include)


def _reduced(low: Builder, meta: Any, x: Buffer, changes: Scatter | Rows, name: str, include: bool) -> Buffer:
    """``x`` with changes by a reduction of all values for an element: its own, if that is to be included, and new ones."""
    out, kind = copied(low, meta, x), _REDUCTIONS.get(name, "sum")
    if not include:
        changes.update(out, "last", lambda body, point: body.const(identity(kind, x.dtype), x.dtype))
    changes.update(out, kind)
    if name != "mean":
        return out
    count = low.temporary(x.sizes, compute_dtype(x.dtype), x.device)
    low.indexed(count, lambda body, _: body.lift(int(include), count.dtype))
    changes.update(count, "sum", lambda body, point: body.const(1, count.dtype))
    divided = "div" if x.dtype in FLOATS else "floordiv"
    return low.pointwise(low.like(meta), [out, count], lambda total, n: total.apply(divided, n.apply("max", 1)))


def _nll_loss_backward(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """Zero but for the class of each sample: a function of the position, so that it fuses with what reads it."""
    grad, x, target, weight, reduction, ignored, total = args
    out = low.like(meta)
    supported(grad, x, out)
    channel = min(len(x.sizes) - 1, 1)
    dtype = compute_dtype(out.dtype)

    def compute(body: Body, point: Sizes) -> Scalar:
        place = (*point[:channel], *point[channel + 1 :]) if target.sizes else ()
        place = place or (ZERO,) * len(target.sizes)
        label = low.load(body, target, place, target.sizes).cast("i64")
        counts = label.ne(ignored)
        k = counts.where(label, 0).bounds(x.sizes[channel], False)
        g = low.load(body, grad, place if grad.sizes else (), grad.sizes).cast(dtype)
        if reduction == 1:
            g = g / low.load(body, total, (), ()).cast(dtype)
        if weight is not None:
            g = g * body.load(weight.owner, weight.index((k.symbol,)), weight.dtype).cast(dtype)
        value = counts.where(-g, 0.0)
        return body.lift(point[channel], "i64").eq(k).where(value, 0.0)

    if not x.sizes or x.sizes[channel] == 0 or target.dtype != "i64" or (grad.sizes and len(x.sizes) == 1):
        raise Declined("a form of the loss without batches or classes")
    return low.indexed(out, compute)


def _embedding_backward(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    grad, indices, _, padding, by_frequency = args
    if by_frequency:
        raise Declined("gradients are divided by how often a row is used")
    out = low.like(meta)
    supported(grad, out)
    on_gpu = out.device.startswith("cuda")  # not rounded after each sum
    wide = low.fresh(out.sizes, out.strides, "f32", out.device) if on_gpu and out.dtype in HALVES else out
    low.indexed(wide, lambda body, _: body.lift(0, wide.dtype))
    rank = len(indices.sizes)

    def at(body: Body, point: Sizes) -> Sizes:
        return (position(low, body, indices, point[:rank], indices.sizes, out.sizes[0], wrap=False), *point[rank:])

    def value(body: Body, point: Sizes) -> Scalar:
        v = low.load(body, grad, point, grad.sizes)
        if isinstance(padding, int) and padding < 0:
            return v
        row = low.load(body, indices, point[:rank], indices.sizes).cast("i64")
        return row.eq(padding).where(0, v.cast(compute_dtype(v.dtype)))

    made = update(low, wide, "sum", grad.sizes, range(rank), at, value)
    return made if wide is out else low.pointwise(out, [made], lambda v: v)


RULES: dict[str, Rule] = {
    "aten.embedding": _embedding,
    "aten.index_select": _index_select,
    "aten.gather": _gather,
    "aten.take": _take,
    "aten.one_hot": _one_hot,
    "aten.index": _index,
    "aten._unsafe_index": _index,
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
    "aten.put": _put,
    "aten.index_add": _index_add,
    "aten.index_copy": _index_copy,
    "aten.index_reduce": _index_reduce,
    "aten.index_fill": _index_fill,
    "aten.scatter": _scatter("last"),
    "aten.scatter_add": _scatter("sum"),
    "aten.scatter_reduce": _scatter_reduce,
    "aten.embedding_dense_backward": _embedding_backward,
    "aten.nll_loss_backward": _nll_loss_backward,
    "aten.nll_loss2d_backward": _nll_loss_backward,
}
