"""oneDNN's operators, where this torch has them."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import torch.utils.checkpoint


def _onednn(operator: str, overload: str = "default") -> Any:
    """An operator that calls oneDNN; None where torch was built without it."""
    return getattr(getattr(torch.ops.mkldnn, operator, None), overload, None)


ONEDNN_LINEAR = _onednn("_linear_pointwise")  # x, w, bias, "none", [], None
ONEDNN_LINEAR_ADD = _onednn("_linear_pointwise", "binary")  # x, other, w, bias, "add"
ONEDNN_CONVOLUTION = _onednn(
    "_convolution_pointwise"
)  # x, w, bias, padding, stride, dilation, groups, "none", [], None
# x, other, w, bias, padding, stride, dilation, groups, "add", None, None, [], None
ONEDNN_CONVOLUTION_ADD = _onednn("_convolution_pointwise", "binary")
# x, w, bias, padding, output_padding, stride, dilation, groups, "none", [], None
ONEDNN_TRANSPOSED_CONVOLUTION = _onednn("_convolution_transpose_pointwise")

# Weights in the layout that oneDNN computes with: operands of the operators above only.
ONEDNN_PACK_LINEAR = _onednn("_reorder_linear_weight")  # w, rows
ONEDNN_PACK_CONVOLUTION = _onednn("_reorder_convolution_weight")  # w, padding, stride, dilation, groups, input's size
# w, padding, output_padding, stride, dilation, groups, input's size
ONEDNN_PACK_TRANSPOSED_CONVOLUTION = _onednn("_reorder_convolution_transpose_weight")


def onednn_computes(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes convolutions and products of this dtype on this processor."""
    if ONEDNN_LINEAR is None:
        return False
    if dtype in (torch.bfloat16, torch.float16):
        supports = _onednn(f"_is_mkldnn_{'bf16' if dtype == torch.bfloat16 else 'fp16'}_supported")
        return supports is not None and bool(supports())
    return dtype == torch.float32
