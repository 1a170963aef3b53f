"""Views: new buffers over the same storage. No loop is made, nothing is copied.

One rule serves every operator whose schema says that its result aliases its first argument: sizes and strides are
those of the fake result, the offset is the argument's plus the difference of the two fake offsets (a graph input
counts from its own first element, whatever its position in the caller's storage).
"""

from __future__ import annotations

from typing import Any

import sympy
import torch
from sympy import Expr

from fuselens import torch_private
from fuselens.ir.affine import ZERO, divide
from fuselens.ir.loops import Buffer
from fuselens.lowering.builder import Builder, Declined, LoweringError, Pair, Sizes, expression, expressions
from fuselens.lowering.dtypes import NAMES
from fuselens.torch_private import OpOverload

# views whose elements are other numbers: torch computes them lazily, buffers hold them
_COMPUTING = frozenset({"aten._conj", "aten._neg_view"})


def is_region(target: OpOverload, packet: str) -> bool:
    """Whether the operator's results are elements of its first argument, as they are. In a graph that writes nothing, sharing
    memory cannot be told from copying."""
    return torch_private.is_view(target) and packet not in _COMPUTING


def lower_view(low: Builder, base: Buffer, base_meta: torch.Tensor, meta: Any, *, whole: bool = False) -> Any:
    """The view, or the tuple of views, that ``meta`` describes. Raises :class:`Declined`.

    One half of what is made of complex numbers is read from where they are computed, unless ``whole``."""
    if isinstance(meta, (tuple, list)):
        return tuple(lower_view(low, base, base_meta, m) for m in meta)
    if NAMES.get(meta.dtype) != base.dtype:
        raise Declined("it reinterprets the elements' type")
    sizes, strides, moved = expressions(meta.shape), expressions(meta.stride()), ZERO
    if meta.storage_offset() is not base_meta.storage_offset():
        moved = expression(meta.storage_offset()) - expression(base_meta.storage_offset())
    if not base.name and not isinstance(base, Pair) and _is_closer(base, expressions(base_meta.stride())):
        strides, moved = _closer(sizes, strides, moved)
    offset, pair = base.offset + moved, low.halves.get(base.name)
    if (
        pair
        and not whole
        and (sizes, strides) == (base.sizes[:-1], base.strides[:-1])
        and offset in (0, base.strides[-1])
    ):
        return pair.part(0 if offset == 0 else 1)
    if offset.is_negative:
        raise Declined("it reaches before its argument's first element")
    return low.view(base, sizes, strides, offset)


def _is_closer(part: Buffer, strides: Sizes) -> bool:
    """Whether elements of a part of complex numbers lie side by side, which are two apart as torch counts."""
    return any(n != 1 and own != torchs for n, own, torchs in zip(part.sizes, part.strides, strides, strict=True))


def _closer(sizes: Sizes, strides: Sizes, moved: Expr) -> tuple[Sizes, Expr]:
    """Strides and the distance from the first element with the other part left out."""
    two = sympy.Integer(2)
    kept = [ZERO if n == 1 else divide(s, two) for n, s in zip(sizes, strides, strict=True)]
    distance = divide(moved, two)
    if distance is None or None in kept:
        raise LoweringError("a view of one part of complex numbers reaches the other part")
    return tuple(s for s in kept if s is not None), distance
