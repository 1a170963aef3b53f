"""Small matrix products as loops of our own: where a call of the vendor's library costs more than the products it makes.

A product whose summed dimension is short is one pointwise loop, with the sum written out; products of vectors and of
slightly longer sums are reductions. Both fuse with what reads them. All else is the vendor's.

Which is which was measured against torch 2.13 with one thread on Zen 3: its batches of small matrices take 60 to 120 ns
a matrix and more, loops 9 to 30. The borders are the same for half precision, whose larger products are computed in f32.

On a GPU the product of a matrix with one vector takes as long as reading the matrix. A reduction along memory does that
on an H100 at 2.7 to 3.2 TB/s, where the vendor's library reads 2.1 to 2.8 (1.1 and 1.8 of a matrix of 8 MB).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import sympy

from fuselens.ir.affine import ONE, ZERO
from fuselens.ir.loops import Buffer
from fuselens.lowering.body import Scalar
from fuselens.lowering.builder import Builder, Declined, Sizes
from fuselens.lowering.dtypes import FLOATS, NAMES, compute_dtype

Rule = Callable[[Builder, Any, tuple[Any, ...], dict[str, Any]], Any]
Form = Literal["written out", "reduction", ""]
VENDOR = "the vendor's library is the better implementation"


def form(rows: int, short: int, columns: int, runs: tuple[bool, bool, bool]) -> Form:
    """How a product of (rows, short) and (short, columns) is computed; "" by the vendor's library.

    ``runs``: whether elements lie next to each other in a row of the first, in a column and in a row of the second.
    """
    vector = rows == 1 or columns == 1
    if columns > 1 and runs[2]:  # vectors run along columns
        if columns % 8 and columns != 4:
            return ""
        if short <= 8 or (short <= 16 and rows * columns <= 256):
            return "written out"
        return "reduction" if rows * columns <= 64 >= short or (rows == 1 and short * columns <= 1 << 16) else ""
    if not (runs[0] and runs[1]):
        return ""
    if short <= 16 and (rows * columns * short <= 512 or columns * short <= 16):
        return "written out"
    small = rows * columns <= 64 >= short and short % 8 == 0
    return "reduction" if small or (vector and short >= 8) else ""


def _form(low: Builder, a: Buffer, b: Buffer) -> Form:
    if (low.device or a.device) != "cpu":
        by_vector = (a.sizes[1] == 1 and b.strides[1] == 1) or (b.sizes[2] == 1 and a.strides[2] == 1)
        return "reduction" if by_vector else ""
    rows, short, columns = (low.hint(s) for s in (*a.sizes[1:], b.sizes[2]))
    return form(rows, short, columns, (a.strides[2] == 1, b.strides[1] == 1, b.strides[2] == 1))


def _padded(low: Builder, x: Buffer, places: tuple[int, ...]) -> Buffer:
    """``x`` with dimensions of size 1 inserted one after the other."""
    sizes, strides = list(x.sizes), list(x.strides)
    for k in places:
        sizes.insert(k, ONE)
        strides.insert(k, ZERO)
    return low.view(x, tuple(sizes), tuple(strides), x.offset)


def _product(low: Builder, meta: Any, a: Buffer, b: Buffer, more: tuple[Buffer, float, float] | None = None) -> Buffer:
    """``a @ b`` of one to three dimensions, or ``beta * bias + alpha * (a @ b)`` with ``more``: loops, or Declined."""
    if not {a.dtype, b.dtype} <= FLOATS:
        raise Declined(VENDOR)
    rank_a, rank_b = len(a.sizes), len(b.sizes)
    a = _padded(low, a, {1: (0, 0), 2: (0,), 3: ()}[rank_a])
    b = _padded(low, b, {1: (0, 1), 2: (0,), 3: ()}[rank_b]) if rank_b > 1 else _padded(low, b, (0, 2))
    short, form = a.sizes[2], _form(low, a, b)
    if short == 0 and more is None:  # the vendor's batches leave such results as their memory was
        return low.indexed(low.like(meta), lambda body, _: body.const(0, NAMES[meta.dtype]))
    if not form or short == 0 or (form == "written out" and not isinstance(short, sympy.Integer)):
        raise Declined(VENDOR)
    out, dtype = low.like(meta), compute_dtype(a.dtype)
    kept = [d for d, there in enumerate((rank_a == 3, rank_a > 1, rank_b > 1)) if there]
    bias, beta, alpha = more or (None, 0, 1)

    def finish(total: Scalar, added: Scalar | None) -> Scalar:
        total = total if alpha == 1 else total * alpha
        return total if added is None else total + (added if beta == 1 else added * beta)

    if form == "reduction":
        first = low.view(a, (*a.sizes[:2], b.sizes[2], short), (*a.strides[:2], ZERO, a.strides[2]), a.offset)
        second = low.view(
            b, (b.sizes[0], a.sizes[1], b.sizes[2], short), (b.strides[0], ZERO, b.strides[2], b.strides[1]), b.offset
        )
        folded = [d for d in range(3) if d not in kept]
        if any(first.sizes[d] != 1 for d in folded):
            raise Declined(VENDOR)
        made = out if bias is None and alpha == 1 else low.temporary(out.sizes, dtype, out.device)
        low.reduce(made, "sum", [first, second], [*folded, 3], dtype=dtype, before=lambda x, y: x * y)
        if made is out:
            return out
        operands = [made] if bias is None or beta == 0 else [made, bias]
        return low.pointwise(out, operands, lambda total, added=None: finish(total, added))

    def compute(body: Any, point: Sizes) -> Scalar:
        at = dict(zip(kept, point, strict=True))
        batch, row, column = (at.get(d, ZERO) for d in range(3))
        total: Scalar | None = None
        for k in map(sympy.Integer, range(int(short))):
            x = low.load(body, a, (batch, row, k), a.sizes).cast(dtype)
            y = low.load(body, b, (batch, k, column), b.sizes).cast(dtype)
            total = x * y if total is None else total + x * y
        assert total is not None
        return finish(total, None if bias is None or beta == 0 else low.load(body, bias, point, out.sizes).cast(dtype))

    return low.indexed(out, compute)


def _plain(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    if len(args) != 2 or kwargs:
        raise Declined(VENDOR)
    return _product(low, meta, args[0], args[1])


def _added(low: Builder, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Buffer:
    """``addmm(bias, a, b, *, beta=1, alpha=1)`` and the like."""
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    if len(args) != 3 or not kwargs.keys() <= {"beta", "alpha"} or not _are_numbers(beta, alpha):
        raise Declined(VENDOR)
    if alpha == 0:  # operands are not read then: NaN is none
        raise Declined(VENDOR)
    bias, a, b = args
    if bias.dtype not in FLOATS:
        raise Declined(VENDOR)
    return _product(low, meta, a, b, (bias, beta, alpha))


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, (int, float)) for v in values)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("aten.mm", "aten.bmm", "aten.mv", "aten.dot"), _plain),
    **dict.fromkeys(("aten.addmm", "aten.addmv", "aten.baddbmm"), _added),
}
