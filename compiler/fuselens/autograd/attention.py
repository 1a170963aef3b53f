"""Attention of few rows as one operator of the graph, ``fuselens.attention``, for which there is a kernel of ours.

torch chooses among its implementations by device and operands when the operator is traced: a kernel of a library, or
products and a softmax where no library takes them. Those are made for long sequences. A decoded token has a row or a few
to attend with: reading keys and values is all the time it takes, and the kernels of the libraries take several times that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fuselens import torch_private
from fuselens.ir.attention import OWN, ROWS, SHARED, WIDTH

ARGUMENTS = ("attn_mask", "dropout_p", "is_causal")  # of `scaled_dot_product_attention`, after query, key and value
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def attend(device: str, found: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of ``scaled_dot_product_attention`` by our operator, laid out as ``found``; None where torch chooses. It is
    for a ``device`` of this kind, if not for that of its operands."""
    given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    mask, causal, scale = given.get("attn_mask"), bool(given.get("is_causal")), given.get("scale")
    if given.get("dropout_p") or not _taken(device, query, key, value, mask, causal, bool(given.get("enable_gqa"))):
        return None
    masked = -math.inf
    if mask is not None and mask.dtype is torch.bool and _is_cudnns(query, key, value, mask):
        masked = -65536.0
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else float(scale)
    apart = torch_private.size_hint(found.stride(2)) != value.shape[3]  # rows of all heads lie together
    return OWN(query, key, value, mask, scale, causal, masked, apart)


def on_gpu(device: str, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of ``scaled_dot_product_attention`` with dropout in a graph for a GPU that is traced on a CPU, by the operator that
    torch chooses there; None where the CPU's choice has a twin there. For dropout the CPU has products and a softmax only, which hold
    the weights of all pairs for the backward."""
    given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
    mask, dropout = given.get("attn_mask"), given.get("dropout_p") or 0.0
    if device != "cuda" or not dropout or torch_private.GPU_ATTENTION is None:
        return None
    if any(t.device.type != "cpu" or t.dim() != 4 for t in (query, key, value)):
        return None
    if given.get("enable_gqa") or len({t.dtype for t in (query, key, value)}) > 1 or query.dtype not in _DTYPES:
        return None
    if not 0 < value.shape[3] <= WIDTH or any(t.shape[3] * t.element_size() % 16 for t in (query, value)):
        return None
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = query.new_zeros(()).masked_fill(~mask, -math.inf)
        mask = mask.expand(*query.shape[:3], key.shape[2])
    return torch_private.GPU_ATTENTION(
        query, key, value, mask, _is_differentiated((query, key, value)), dropout, bool(given.get("is_causal")),
        scale=given.get("scale"),
    )[0]  # fmt: skip


def _taken(device: str, query: Any, key: Any, value: Any, mask: Any, causal: bool, grouped: bool) -> bool:
    """Whether our kernel can do it, and takes less time."""
    operands = (query, key, value)
    given = operands if mask is None else (*operands, mask)
    if not all(isinstance(t, Tensor) and (device or t.device.type) == "cuda" for t in given):
        return False
    if torch_private.attends_by_steps() or _is_differentiated(given) or torch.is_autocast_enabled("cuda"):
        return False
    if any(t.dim() != 4 or t.dtype != query.dtype or t.dtype not in _DTYPES for t in operands):
        return False
    if mask is not None and (causal or not 2 <= mask.dim() <= 4 or mask.dtype not in (torch.bool, query.dtype)):
        return False
    if not _fits(query, key, value, grouped):
        return False
    sizes = (*key.shape[:3], query.shape[3] + value.shape[3], key.element_size())
    size = math.prod(map(torch_private.size_hint, sizes))
    return _is_faster(query.shape[2], query.shape[1] // key.shape[1], size, query.dtype, mask is not None)


def _is_differentiated(tensors: Iterable[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _fits(query: Tensor, key: Tensor, value: Tensor, grouped: bool) -> bool:
    """Whether the kernel takes operands of these sizes: few rows, heads in groups if they are ``grouped``; batches and the
    number of keys alone may vary."""
    (_, heads, rows, width), (_, groups, keys, _) = query.shape, key.shape
    fixed = (heads, rows, width, groups, key.shape[3], value.shape[1], value.shape[3])
    if any(isinstance(n, torch.SymInt) for n in fixed) or len({str(t.shape[0]) for t in (query, key, value)}) > 1:
        return False
    if width != key.shape[3] or groups != value.shape[1] or not groups or heads % groups:
        return False
    if (heads != groups and not grouped) or not 0 < rows <= ROWS or rows * heads // groups > SHARED:
        return False
    return bool(0 < width <= WIDTH and 0 < value.shape[3] <= WIDTH and torch_private.size_hint(keys))


def _is_faster(rows: int, shared: int, size: int, dtype: torch.dtype, masked: bool) -> bool:
    """Whether our kernel takes less time on an H100 than torch's, for keys and values of ``size`` bytes.

    Of 512 keys of 8 groups of 4 heads: 5.1 µs, cuDNN's 8.9. A row of one head leaves tensor cores idle; large masks and
    many small heads are read better by cuDNN. In f32 torch has no kernel for groups: 50 µs for 4096 keys, torch 227.
    """
    if dtype == torch.float32:
        return shared > 1
    if rows > 1:
        return True
    return size <= (8 << 20 if shared == 1 else 32 << 20) or (shared > 1 and not masked and size >= 128 << 20)


def _is_cudnns(query: Any, key: Any, value: Any, mask: Any) -> bool:
    """Whether eager calls cuDNN, which adds -65536 where the mask is False: a row that is all masked attends to all keys."""
    if not torch.cuda.is_available():
        return False
    params = torch.backends.cuda.SDPAParams(query, key, value, mask, 0.0, False, query.shape[1] != key.shape[1])
    if not torch.backends.cuda.can_use_cudnn_attention(params):
        return False
    first = torch.cuda.get_device_capability(query.device)[0] >= 9
    return first or not torch.backends.cuda.can_use_efficient_attention(params)
