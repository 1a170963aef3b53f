"""Operations that make or move elements: constants, ranges, concatenation, padding, flips, repeats.

What joins pieces (cat, pad, slice_scatter) becomes one copying loop per piece, each into its own region of the result:
every loop stays affine and unmasked, and the producer of a piece fuses into the loop that stores it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from sympy import Expr

from fuselens.ir.affine import ONE, ZERO, within
from fuselens.ir.loops import ITEMSIZE, Buffer, Loop
from fuselens.lowering.body import Body, Scalar
from fuselens.lowering.builder import Builder, Called, Declined, Sizes, expression
from fuselens.lowering.dtypes import FLOATS, LOOP_DTYPES, compute_dtype
from fuselens.torch_private import integer_functions

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
MANY = 32  # tensors for which a copying loop each takes long to compile
FEW, SMALL = 4, 1 << 20  # tensors, and bytes of what they are joined to, that one loop of a GPU chooses among


def fill(low: Builder, out: Buffer, value: Any) -> Buffer:
    if out.dtype not in LOOP_DTYPES:
        raise Declined(f"loops do not compute with {out.dtype}")
    return low.indexed(out, lambda body, _: body.lift(value, out.dtype))


def _filled(position: int | None, value: Any = None) -> Rule:
    """A constant tensor; the value is the argument at ``position``, or ``value``."""

    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        number = value if position is None else args[position] if len(args) > position else kwargs["fill_value"]
        if isinstance(number, Buffer):
            return low.pointwise(low.like(meta), [number], lambda x: x, "")
        return fill(low, low.like(meta), number)

    return rule


def _range(low: Builder, meta: Any, start: Any, step: Any) -> Buffer:
    out = low.like(meta)

    def compute(body: Body, point: Sizes) -> Scalar:
        if out.dtype not in FLOATS:
            return body.lift(expression(start) + expression(step) * point[0], "i64")
        # torch accumulates in double
        return body.lift(point[0], "f64") * body.lift(_plain(step), "f64") + body.lift(_plain(start), "f64")

    if out.dtype not in LOOP_DTYPES or (out.dtype not in FLOATS and not all(_is_integer(v) for v in (start, step))):
        raise Declined("an integer range with a fractional step")
    return low.indexed(out, compute)


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else expression(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt, Expr)) and not isinstance(value, bool)


def _arange(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) > 2 else kwargs.get("step", 1))
    return _range(low, meta, start, step)


def _iota(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    return _range(low, meta, kwargs.get("start", 0), kwargs.get("step", 1))


def _eye(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    out = low.like(meta)

    def compute(body: Body, point: Sizes) -> Scalar:
        return body.lift(point[0], "i64").eq(body.lift(point[1], "i64"))

    return low.indexed(out, compute)


# --- pieces ----------------------------------------------------------------------------------------------------


def region(low: Builder, out: Buffer, dim: int, start: Expr, size: Expr) -> Buffer:
    """The slice of ``out`` along ``dim``, as a buffer of its own that is always distinct from ``out``."""
    sizes = tuple(size if d == dim else s for d, s in enumerate(out.sizes))
    return low.view(out, sizes, out.strides, out.offset + start * out.strides[dim], low.fresh_name())


def copy_into(low: Builder, target: Buffer, source: Buffer) -> None:
    low.pointwise(target, [source], lambda x: x, "")


def _cat(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    tensors = [t for t in args[0] if t.sizes != (ZERO,)]  # torch skips empty one-dimensional tensors
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    out = low.like(meta)
    if any(t.dtype not in LOOP_DTYPES for t in (*tensors, out)):
        raise Declined(f"loops do not compute with {out.dtype}")
    dim %= max(len(out.sizes), 1)
    tensors = [t for t in tensors if t.sizes[dim] != 0]
    if out.device != "cpu" and 1 < len(tensors) <= FEW and ITEMSIZE[out.dtype] * low.hint(out.numel()) <= SMALL:
        pieces = [
            t for t in tensors if t.sizes[dim] != ZERO
        ]  # of which there is an element to load wherever a point is
        if pieces and all(t.sizes[dim].is_Integer or t.sizes[dim].is_Symbol for t in pieces):
            return _chosen(low, out, pieces, dim)
    loops = {node.name for node in low.nodes if isinstance(node, Loop)} if len(tensors) > MANY else set[str]()
    if len(tensors) - sum(t.owner in loops for t in tensors) > MANY:
        raise Called(f"it joins {len(tensors)} tensors, of which loops compute few")
    start: Expr = ZERO
    for tensor in tensors:
        copy_into(low, region(low, out, dim, start, tensor.sizes[dim]), tensor)
        start = start + tensor.sizes[dim]
    return out if tensors else fill(low, out, 0)


def _chosen(low: Builder, out: Buffer, tensors: list[Buffer], dim: int) -> Buffer:
    """The tensors one after the other along ``dim``, by one loop that chooses: on a GPU launches of small ones count."""

    def compute(body: Body, point: Sizes) -> Scalar:
        place, start = body.lift(point[dim], "i64"), ZERO
        pieces: list[tuple[Expr, Scalar]] = []
        for tensor in tensors:
            size = tensor.sizes[dim]
            at = within(point[dim] - start, size - 1)
            start = start + size
            piece = low.element(body, tensor, (*point[:dim], at, *point[dim + 1 :])).cast(out.dtype)
            pieces.append((start, _widened(piece)[0]))
        value = pieces[-1][1]
        for end, piece in pieces[-2::-1]:
            value = (place < end).where(piece, value)
        return value

    return low.indexed(out, compute)


def _stack(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
    out = low.like(meta)
    dim %= len(out.sizes)
    for position, tensor in enumerate(args[0]):  # pyright: ignore[reportGeneralTypeIssues]
        whole = region(low, out, dim, sympy.Integer(position), sympy.Integer(1))
        sizes = (*tensor.sizes[:dim], sympy.Integer(1), *tensor.sizes[dim:])
        strides = (*tensor.strides[:dim], ZERO, *tensor.strides[dim:])
        copy_into(low, whole, low.view(tensor, sizes, strides, tensor.offset))
    return out


def _pad(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, pads = args[0], [expression(p) for p in args[1]]
    value = args[2] if len(args) > 2 else kwargs.get("value", 0)
    rank = len(x.sizes)
    inner, out = x, low.like(meta)
    if out.dtype not in LOOP_DTYPES:
        raise Declined(f"loops do not compute with {out.dtype}")
    target = out
    for k in range(len(pads) // 2):
        dim, before, after = rank - 1 - k, pads[2 * k], pads[2 * k + 1]
        if any(not p.is_Integer and not p.is_nonnegative for p in (before, after)):
            raise Declined("the padding's sign is not known")
        # a negative pad crops: the piece starts later or ends earlier
        crop, before = _sign_split(before)
        tail, after = _sign_split(after)
        if crop != 0 or tail != 0:
            inner = region(low, inner, dim, crop, inner.sizes[dim] - crop - tail)
        size = inner.sizes[dim]
        if before != 0:
            fill(low, region(low, target, dim, ZERO, before), value)
        if after != 0:
            fill(low, region(low, target, dim, before + size, after), value)
        if before != 0 or after != 0:
            target = region(low, target, dim, before, size)
    copy_into(low, target if target is not out else region(low, out, 0, ZERO, out.sizes[0]), inner)
    return out


def _sign_split(pad: Any) -> tuple[Expr, Expr]:
    """What to crop and what to add."""
    return (max(-pad, ZERO), max(pad, ZERO)) if isinstance(pad, sympy.Integer) else (ZERO, pad)


def _slice_scatter(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, source = args[0], args[1]
    names = ("dim", "start", "end", "step")
    given = {**dict(zip(names, args[2:], strict=False)), **kwargs}
    dim = given.get("dim", 0) % len(x.sizes)
    size, length, step = x.sizes[dim], source.sizes[dim], expression(given.get("step", 1))
    if length == 0:  # the start may lie behind the end
        return low.pointwise(low.like(meta), [x], lambda v: v, "")
    start = given.get("start")
    start = ZERO if start is None else expression(start)
    if start.is_negative:
        start = start + size
        start = start if low.hint(start) > 0 else ZERO  # which torch guarded when it knew the source's size
    if start.is_Integer and size.is_Integer:
        start = min(start, size)
    if step != 1:
        return _interleaved(low, low.like(meta), x, source, dim, start, step)
    return _splice(low, meta, x, source, dim, start, length)


def _flat(low: Builder, x: Buffer) -> Buffer:
    """The elements in row-major order as one dimension, copied where they do not lie so."""
    if not _row_major(x):
        x = low.pointwise(low.temporary(x.sizes, x.dtype, x.device), [x], lambda v: v, "")
    return low.view(x, (x.numel(),), (ONE,), x.offset, low.fresh_name())


def _as_strided_scatter(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """Of steps through a contiguous tensor, as along its diagonal."""
    x, source, _, strides = args[:4]
    offset = args[4] if len(args) > 4 else kwargs.get("storage_offset")
    out = low.like(meta)
    plain = _row_major(x) and _row_major(out) and x.offset == 0 and not x.storage and x.dtype in LOOP_DTYPES
    if not plain or len(source.sizes) != 1 or strides[0] == 0 or offset is None:
        raise Declined("it writes more than steps through a contiguous tensor")
    _interleaved(low, _flat(low, out), _flat(low, x), source, 0, expression(offset), expression(strides[0]))
    return out


def _interleaved(low: Builder, out: Buffer, x: Buffer, source: Buffer, dim: int, start: Expr, step: Expr) -> Buffer:
    """``x`` with every ``step``-th position along ``dim`` from ``start`` on replaced, as long as ``source`` is."""
    length = source.sizes[dim]
    if length == 0:
        return low.pointwise(out, [x], lambda v: v, "")
    divide = integer_functions()["FloorDiv"]

    def compute(body: Body, point: Sizes) -> Scalar:
        nearest = sympy.Min(divide(sympy.Max(point[dim] - start, ZERO), step), length - 1)
        there = (*point[:dim], nearest, *point[dim + 1 :])
        kept = low.element(body, x, point)
        new = low.element(body, source, there)
        hit = body.lift(point[dim], "i64").eq(body.lift(start + step * nearest, "i64"))
        return hit.where(*_widened(new, kept))

    return low.indexed(out, compute)


def _diagonal_scatter(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """``x`` with a diagonal replaced: where row and column differ by the offset."""
    x, source = args[0], args[1]
    given = {**dict(zip(("offset", "dim1", "dim2"), args[2:], strict=False)), **kwargs}
    offset, rank = expression(given.get("offset", 0)), len(x.sizes)
    if not offset.is_Integer or x.dtype not in LOOP_DTYPES:
        raise Declined(f"loops do not compute with {x.dtype}, or the diagonal is not known")
    row, column = (given.get(n, d) % rank for n, d in (("dim1", 0), ("dim2", 1)))
    length = source.sizes[-1]
    if length == 0:
        return low.pointwise(low.like(meta), [x], lambda v: v, "")

    def compute(body: Body, point: Sizes) -> Scalar:
        nearest = within(point[row] + min(offset, ZERO), length - 1)
        there = (*(p for d, p in enumerate(point) if d not in (row, column)), nearest)
        kept = low.element(body, x, point)
        new = low.element(body, source, there)
        hit = body.lift(point[row] + offset, "i64").eq(body.lift(point[column], "i64"))
        return hit.where(*_widened(new, kept))

    return low.indexed(low.like(meta), compute)


def _widened(*values: Scalar) -> tuple[Scalar, ...]:
    """Half precision is chosen between as f32."""
    return tuple(v.cast(compute_dtype(v.dtype)) for v in values)


def _select_scatter(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, source, dim, index = args
    dim %= len(x.sizes)
    index = expression(index)
    if index.is_negative:
        index = index + x.sizes[dim]
    sizes = (*source.sizes[:dim], sympy.Integer(1), *source.sizes[dim:])
    strides = (*source.strides[:dim], ZERO, *source.strides[dim:])
    return _splice(low, meta, x, low.view(source, sizes, strides, source.offset), dim, index, sympy.Integer(1))


def _splice(low: Builder, meta: Any, x: Buffer, source: Buffer, dim: int, start: Expr, length: Expr) -> Buffer:
    """``x`` with ``length`` positions along ``dim`` replaced by ``source``: up to three disjoint copies."""
    out = low.like(meta)
    if out.dtype not in LOOP_DTYPES:
        raise Declined(f"loops do not compute with {out.dtype}")
    if not (start.is_Integer or start.is_nonnegative):
        raise Declined("the position's sign is not known")
    rest = x.sizes[dim] - start - length
    if start != 0:
        copy_into(low, region(low, out, dim, ZERO, start), region(low, x, dim, ZERO, start))
    copy_into(low, region(low, out, dim, start, length), source)
    if rest != 0:
        copy_into(low, region(low, out, dim, start + length, rest), region(low, x, dim, start + length, rest))
    return out


def _flip(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    x, dims = args[0], {d % max(len(args[0].sizes), 1) for d in args[1]}
    return _gathered(low, meta, x, lambda p: tuple(x.sizes[d] - 1 - e if d in dims and e != 0 else e
                                                   for d, e in enumerate(p)))  # fmt: skip


def _gathered(low: Builder, meta: Any, x: Buffer, at: Callable[[Sizes], Sizes]) -> Buffer:
    """A copy that reads ``x`` at a function of the position."""
    if x.dtype not in LOOP_DTYPES:
        raise Declined(f"loops do not compute with {x.dtype}")
    return low.indexed(low.like(meta), lambda body, p: low.element(body, x, at(p)))


def _repeat(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """The result seen as (repeat, size) pairs of dimensions, the source broadcast along the repeats."""
    x, repeats = args[0], [expression(r) for r in args[1]]
    out = low.like(meta)
    missing = len(repeats) - len(x.sizes)
    sizes = (*([sympy.Integer(1)] * missing), *x.sizes)
    strides = (*([ZERO] * missing), *x.strides)
    if len(sizes) != len(out.sizes) or not _row_major(out):
        raise Declined("its result is not contiguous")
    pairs, from_strides, to_strides = [], [], []
    for repeat, size, stride, step in zip(repeats, sizes, strides, out.strides, strict=True):
        pairs += [repeat, size]
        from_strides += [ZERO, stride]
        to_strides += [step * size, step]
    target = low.view(out, tuple(pairs), tuple(to_strides), out.offset, low.fresh_name())
    copy_into(low, target, low.view(x, tuple(pairs), tuple(from_strides), x.offset))
    return out


def _row_major(x: Buffer) -> bool:
    if ZERO in x.sizes:
        return True
    step: Expr = sympy.Integer(1)
    for size, stride in zip(reversed(x.sizes), reversed(x.strides), strict=True):
        if stride != step and size != 1:
            return False
        step = step * size
    return True


def _tri(keep: Callable[[Scalar, Scalar], Scalar]) -> Rule:
    def rule(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
        x = args[0]
        diagonal = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
        if x.dtype not in LOOP_DTYPES:
            raise Declined(f"loops do not compute with {x.dtype}")

        def compute(body: Body, point: Sizes) -> Scalar:
            value = low.element(body, x, point)
            value = value.cast("f32") if value.dtype in ("f16", "bf16") else value
            column = body.lift(point[-1], "i64")
            return keep(column, body.lift(point[-2] + expression(diagonal), "i64")).where(value, 0)

        return low.indexed(low.like(meta), compute)

    return rule


def _roll(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """Along each dimension the two parts change places; without dimensions, those of the flattened tensor."""
    x, shifts = args[0], args[1]
    dims = args[2] if len(args) > 2 else kwargs.get("dims", ())
    out = low.like(meta)
    if out.dtype not in LOOP_DTYPES:
        raise Declined(f"loops do not compute with {out.dtype}")
    if not dims:
        if not _row_major(out):
            raise Declined("a roll of the flattened elements whose result is not contiguous")
        dims = (0,)
        x, target = _flat(low, x), _flat(low, out)
    else:
        target = low.view(out, out.sizes, out.strides, out.offset, low.fresh_name())
    if not x.sizes:
        copy_into(low, target, x)
        return out
    amounts: dict[int, Expr] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        dim %= len(x.sizes)
        amounts[dim] = amounts.get(dim, ZERO) + expression(shift)
    pieces = [(target, x)]
    for dim, shift in amounts.items():
        size = x.sizes[dim]
        if size == 0 or (shift := integer_functions()["PythonMod"](shift, size)) == 0:
            continue
        moves = [(ZERO, size - shift, shift), (shift, ZERO, size - shift)]  # to, from, how many
        pieces = [
            (region(low, to, dim, there, n), region(low, source, dim, here, n))
            for to, source in pieces for there, here, n in moves
        ]  # fmt: skip
    for to, source in pieces:
        copy_into(low, to, source)
    return out


RULES: dict[str, Rule] = {
    "aten.full": _filled(1),
    "aten.full_like": _filled(1),
    "aten.new_full": _filled(2),
    "aten.fill": _filled(1),
    "aten.scalar_tensor": _filled(0),
    "aten.zeros": _filled(None, 0),
    "aten.zeros_like": _filled(None, 0),
    "aten.new_zeros": _filled(None, 0),
    "aten.ones": _filled(None, 1),
    "aten.ones_like": _filled(None, 1),
    "aten.new_ones": _filled(None, 1),
    # uninitialised memory, made deterministic
    "aten.empty": _filled(None, 0),
    "aten.empty_like": _filled(None, 0),
    "aten.empty_strided": _filled(None, 0),
    "aten.new_empty": _filled(None, 0),
    "aten.new_empty_strided": _filled(None, 0),
    "aten.empty_permuted": _filled(None, 0),
    "aten.arange": _arange,
    "prims.iota": _iota,
    "aten.eye": _eye,
    "aten.cat": _cat,
    "aten.stack": _stack,
    "aten.constant_pad_nd": _pad,
    "aten.slice_scatter": _slice_scatter,
    "aten.select_scatter": _select_scatter,
    "aten.diagonal_scatter": _diagonal_scatter,
    "aten.as_strided_scatter": _as_strided_scatter,
    "aten.flip": _flip,
    "aten.roll": _roll,
    "aten.repeat": _repeat,
    "aten.tril": _tri(lambda column, limit: column <= limit),
    "aten.triu": _tri(lambda column, limit: column >= limit),
}
