"""``fuselens.attention``: ``scaled_dot_product_attention`` as an operator of graphs, for which there is a kernel of ours.

``masked`` says what becomes of a row that sees no key: it is 0 (minus infinity), NaN, or attends to all (-65536, which is
added where the mask is False). Rows lie in memory after heads or, ``apart``, before them.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


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
    if math.isnan(masked) and mask is not None:
        seen = mask if mask.dtype == torch.bool else mask > -math.inf
        out = torch.where(seen.any(-1, keepdim=True), out, math.nan)
    return meta(query, key, value, mask, scale, causal, masked, apart).copy_(out)


def meta(
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
_library.impl("attention", meta, "Meta")
OWN = torch.ops.fuselens.attention.default
