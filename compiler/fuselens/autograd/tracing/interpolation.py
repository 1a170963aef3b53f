"""Interpolation of symbolic sizes, as the operator that eager calls.

What computes the sizes of the result takes no symbolic ones in C++. Torch's rules in Python replace it, and the operator with it: by
sums of weighted neighbours. These are other numbers where a neighbour with a weight of zero is infinite, and autocast does not see them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fuselens import torch_private

aten = torch.ops.aten

_OPERATORS = {
    ("linear", 3): aten.upsample_linear1d.default,
    ("bilinear", 4): aten.upsample_bilinear2d.default,
    ("trilinear", 5): aten.upsample_trilinear3d.default,
    ("bicubic", 4): aten.upsample_bicubic2d.default,
    ("nearest", 3): aten.upsample_nearest1d.default,
    ("nearest", 4): aten.upsample_nearest2d.default,
    ("nearest", 5): aten.upsample_nearest3d.default,
    ("nearest-exact", 3): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 4): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 5): aten._upsample_nearest_exact3d.default,
}


def whole_interpolation(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor | None:
    """What ``F.interpolate`` returns, by one operator; None where its function has to choose."""
    operator = _OPERATORS.get((mode, x.ndim))
    if operator is None or antialias or torch.are_deterministic_algorithms_enabled():
        return None
    scales: Sequence[Any] = [None] * (x.ndim - 2)
    if size is not None:
        sizes = _each(size, x)
    else:
        scales = _each(scale_factor, x)
        if not all(isinstance(s, (int, float)) for s in scales):
            return None
        if recompute_scale_factor:
            sizes, scales = [math.floor(n * s) for n, s in zip(x.shape[2:], scales, strict=True)], [None] * len(scales)
        else:
            sizes = [torch.sym_int(n * s) for n, s in zip(x.shape[2:], scales, strict=True)]
    corners = () if mode.startswith("nearest") else (bool(align_corners),)
    with torch_private.no_python_rules():
        return operator(x, sizes, *corners, *scales)


def _each(given: Any, x: Tensor) -> Sequence[Any]:
    """One for each dimension of the grid."""
    return given if isinstance(given, (list, tuple)) else [given] * (x.ndim - 2)
