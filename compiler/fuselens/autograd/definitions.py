"""Operators by their definitions, where torch keeps them whole: distances, copies of views.

Functions of the operators' arguments, for the recorder's table; NotImplemented keeps the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuselens import torch_private

aten = torch.ops.aten
_BY_MATMUL = 25  # rows from which ATen computes Euclidean distances by a matrix product


def _dist(x: Tensor, y: Tensor, p: float = 2.0) -> Tensor:
    return aten.linalg_vector_norm(x - y, p)


def _differences(x: Tensor, y: Tensor) -> Tensor:
    """Row i of ``x`` minus row j of ``y``."""
    return x.unsqueeze(-2) - y.unsqueeze(-3)


def _cdist(x: Tensor, y: Tensor, p: float, mode: int | None) -> Any:
    rows = (x.shape[-2], y.shape[-2])
    if p == 2.0 and (mode == 1 or (mode != 2 and any(n > _BY_MATMUL for n in rows))):
        return NotImplemented
    if x.shape[-1] == 0:
        return NotImplemented
    return aten.linalg_vector_norm(_differences(x, y), p, [-1])


def _cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Any:
    """The derivative to ``x``; 0 at points that coincide, where there is none."""
    if not x.numel() or not y.numel():
        return NotImplemented
    if p == 0.0:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    difference = _differences(x, y)
    size = difference.abs()
    far, grad = distance.unsqueeze(-1), grad.unsqueeze(-1)
    if p == 1.0:
        each = grad * difference.sign()
    elif math.isinf(p):
        each = torch.where(size == far, grad * difference.sign(), 0.0)
    elif p == 2.0:
        each = torch.where(far == 0, 0.0, grad * difference / far)
    else:
        each = difference.sign() * size ** (p - 1) * grad / far ** (p - 1)
        each = torch.where((far == 0) | ((difference == 0) if p < 1.0 else False), 0.0, each)
    return each.sum(-2)


def _linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **rest: Any) -> Tensor:
    """torch's decomposition; of integers from the whole parts of the ends, as ATen computes."""
    if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
        start, end = (int(v) if isinstance(v, float) else v for v in (start, end))
    rule = torch_private.decompositions_for(["linspace"])[aten.linspace.default]
    return rule(start, end, steps, dtype=dtype, **rest)


def _shrink_backward(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.where((x >= -limit) & (x <= limit), 0, grad)


def _unbind_copy(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [part.clone(memory_format=torch.contiguous_format) for part in aten.unbind.int(x, dim)]


def _copied(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: view(*args, **kwargs).clone(memory_format=torch.contiguous_format)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.dist.default: _dist,
    aten._cdist_forward.default: _cdist,
    aten._cdist_backward.default: _cdist_backward,
    aten.linspace.default: _linspace,
    aten.hardshrink_backward.default: _shrink_backward,
    aten.softshrink_backward.default: _shrink_backward,
    aten.as_strided_copy.default: _copied(aten.as_strided.default),
    aten.view_copy.default: _copied(aten.view.default),
    aten.unbind_copy.int: _unbind_copy,
    aten.narrow_copy.default: _copied(aten.narrow.default),
    aten.permute_copy.default: _copied(aten.permute.default),
}
