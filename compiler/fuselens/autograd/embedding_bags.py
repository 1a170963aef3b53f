"""Sums and means of embeddings over bags, as gathers and sums at positions, which fuse; over bags of one size on a GPU as sums
over a dimension, which need no positions.

Bags are numbered by a running sum of marks at their first elements: an offset out of range, and an element before the
first bag, are then positions out of range, with which the frame runs eagerly. Maxima are ATen's, as are sums that its
vendor's library computes, which took three quarters of the time that loops take; their gradients took twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

aten = torch.ops.aten
_SUM, _MEAN = 0, 1
_HALVES = (torch.float16, torch.bfloat16)


def _bags(offsets: Tensor, count: int) -> Tensor:
    """The bag of each of ``count`` elements."""
    marks = torch.zeros(count + 1, dtype=torch.int64, device=offsets.device)
    return aten.index_add(marks, 0, offsets, torch.ones_like(offsets, dtype=torch.int64)).cumsum(0)[:count] - 1


def _scaled(rows: Tensor, indices: Tensor, scales: Tensor | None, padding: int) -> Tensor:
    """Rows times their scales, without those of the padding; halves in float32."""
    rows = rows.float() if rows.dtype in _HALVES else rows
    rows = rows if scales is None else rows * scales.unsqueeze(-1)
    return rows if padding < 0 else torch.where(indices.unsqueeze(-1) == padding, 0, rows)


def _forward(
    weight: Tensor, indices: Tensor, offsets: Tensor, by_frequency: bool = False, mode: int = _SUM, sparse: bool = False,
    scales: Tensor | None = None, includes_last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    count, bags = indices.shape[0], offsets.shape[0] - includes_last
    if mode not in (_SUM, _MEAN) or weight.shape[0] == 0 or count == 0 or bags <= 0:
        return NotImplemented
    if mode == _SUM and padding < 0 and weight.dtype is not torch.float64 and weight.stride(1) == 1:
        return NotImplemented
    padding = padding + weight.shape[0] if padding < -1 else padding
    bag = _bags(offsets, count)
    rows = _scaled(aten.embedding(weight, indices), indices, scales, padding)
    out = aten.index_add(torch.zeros(bags, weight.shape[1], dtype=rows.dtype, device=rows.device), 0, bag, rows)
    sizes = torch.zeros(bags, dtype=offsets.dtype, device=offsets.device)
    if mode == _MEAN:
        sizes = aten.index_add(sizes, 0, bag, (indices != padding).to(offsets.dtype))
        out = out / sizes.clamp(min=1).unsqueeze(1)
    return out.to(weight.dtype), bag.to(offsets.dtype), sizes, sizes.clone()


def _forward_only(weight: Tensor, indices: Tensor, offsets: Tensor, *rest: Any) -> Any:
    found = _forward(weight, indices, offsets, *rest)
    if found is NotImplemented or found[2].shape == offsets.shape:
        return found
    out, bag, sizes, _ = found
    sizes = aten.constant_pad_nd(sizes, [0, 1])
    return out, bag, sizes, sizes.clone()


def _backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, _: Tensor, sizes: Tensor, most: Tensor, rows: int, by_frequency: bool,
    mode: int, sparse: bool, scales: Tensor | None, padding: int = -1,
) -> Any:  # fmt: skip
    if mode not in (_SUM, _MEAN) or sparse or by_frequency or indices.shape[0] == 0 or grad.shape[0] == 0:
        return NotImplemented
    bag = _bags(offsets, indices.shape[0])
    if mode == _MEAN:
        grad = grad / sizes.clamp(min=1).unsqueeze(1)
    each = _scaled(aten.index_select(grad, 0, bag), indices, scales, padding)
    made = aten.index_add(torch.zeros(rows, grad.shape[1], dtype=each.dtype, device=each.device), 0, indices, each)
    return made.to(grad.dtype)


def _scales_backward(
    grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, _: Tensor, mode: int, padding: int = -1
) -> Any:
    if mode != _SUM or indices.shape[0] == 0 or weight.shape[0] == 0:
        return NotImplemented
    rows, grads = aten.embedding(weight, indices), aten.index_select(grad, 0, _bags(offsets, indices.shape[0]))
    return _scaled(rows * grads, indices, None, padding).sum(1).to(grad.dtype)


def of_one_size(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2.0,  # noqa: A002  torch's name
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor | None:  # fmt: skip
    """``F.embedding_bag`` where each bag is a row of indices; None for any other."""
    if input.dim() != 2 or weight.dim() != 2 or mode not in ("sum", "mean"):
        return None
    if offsets is not None or max_norm is not None or scale_grad_by_freq or sparse or include_last_offset:
        return None
    if padding_idx is not None or input.shape[1] == 0 or input.dtype not in (torch.int32, torch.int64):
        return None
    scales = per_sample_weights
    if scales is not None and (mode == "mean" or scales.shape != input.shape or scales.dtype is not weight.dtype):
        return None
    rows = F.embedding(input, weight)
    if scales is None and input.shape[1] == 1:
        return rows.squeeze(1)
    rows = _scaled(rows, input, scales, -1)
    return (rows.sum(1) if mode == "sum" else rows.mean(1)).to(weight.dtype)


TABLE: dict[Any, Callable[..., Any]] = {
    aten._embedding_bag.default: _forward,
    aten._embedding_bag_forward_only.default: _forward_only,
    aten._embedding_bag_backward.default: _backward,
    aten._embedding_bag_per_sample_weights_backward.default: _scales_backward,
}
