"""Attention of few rows as one operator of the graph, ``fuselens.attention``, for which there is a kernel of ours.

torch chooses among its implementations by device and operands when the operator is traced: a kernel of a library, or
products and a softmax where no library takes them. Those are made for long sequences. A decoded token has a row or a few
to attend with: reading keys and values is all the time it takes, and the kernels of the libraries take several times that.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuselens import torch_private

ROWS = 16  # of one head; with those of the heads that share its keys
SHARED = 64
WIDTH = 256
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    masked: float,
    apart: bool,
) -> Tensor:
    out = F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
    )
    made = _meta(query, key, value, mask, scale, causal, masked, apart)
    return made.copy_(out)


def _meta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    masked: float,
    apart: bool,
) -> Tensor:
    batch, heads, rows, _ = query.shape
    if apart:
        return query.new_empty(batch, rows, heads, value.shape[3]).transpose(1, 2)
    return query.new_empty(batch, heads, rows, value.shape[3])


_library = torch.library.Library("fuselens", "FRAGMENT")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale, bool causal, float masked, bool apart) -> Tensor"
)
_library.impl("attention", _attention, "CompositeExplicitAutograd")
_library.impl("attention", _meta, "Meta")


def attended(found: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of ``scaled_dot_product_attention`` by our operator, laid out as ``found``; None where torch chooses."""
    given = dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False)) | kwargs
    mask, causal, scale = given.get("attn_mask"), bool(given.get("is_causal")), given.get("scale")
    if given.get("dropout_p") or not _taken(query, key, value, mask, causal, bool(given.get("enable_gqa"))):
        return None
    masked = -math.inf
    if mask is not None and mask.dtype is torch.bool and _is_cudnns(query, key, value, mask):
        masked = -65536.0
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    apart = torch_private.size_hint(found.stride(2)) != value.shape[3]  # rows of all heads lie together
    return torch.ops.fuselens.attention.default(query, key, value, mask, scale, causal, masked, apart)


def _taken(query: Any, key: Any, value: Any, mask: Any, causal: bool, grouped: bool) -> bool:
    operands = (query, key, value)
    tensors = [t for t in (*operands, mask) if isinstance(t, Tensor)]
    if len(tensors) != 3 + (mask is not None) or any(t.device.type != "cuda" for t in tensors):
        return False
    if (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)) or torch.is_autocast_enabled("cuda"):
        return False
    if any(t.dim() != 4 or t.dtype != query.dtype or t.dtype not in _DTYPES for t in operands):
        return False
    if mask is not None and (causal or not 2 <= mask.dim() <= 4 or mask.dtype not in (torch.bool, query.dtype)):
        return False
    (_, heads, rows, width), (_, groups, keys, _) = query.shape, key.shape
    fixed = (heads, rows, width, groups, key.shape[3], value.shape[1], value.shape[3])
    if any(isinstance(n, torch.SymInt) for n in fixed) or len({str(t.shape[0]) for t in operands}) > 1:
        return False
    if (
        width != key.shape[3]
        or groups != value.shape[1]
        or (heads != groups and not grouped)
        or not groups
        or heads % groups
    ):
        return False
    if not (0 < width <= WIDTH and 0 < value.shape[3] <= WIDTH and torch_private.size_hint(keys)):
        return False
    return 0 < rows <= ROWS and rows * heads // groups <= SHARED


def _is_cudnns(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether eager calls cuDNN, which adds -65536 where the mask is False: a row that is all masked attends to all keys."""
    if not torch.cuda.is_available():
        return False
    params = torch.backends.cuda.SDPAParams(query, key, value, mask, 0.0, False, query.shape[1] != key.shape[1])
    if not torch.backends.cuda.can_use_cudnn_attention(params):
        return False
    first = torch.cuda.get_device_capability(query.device)[0] >= 9
    return first or not torch.backends.cuda.can_use_efficient_attention(params)
