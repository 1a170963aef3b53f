"""Attention as operators of graphs, for which there is a kernel of ours.

``fuselens.attention`` is ``scaled_dot_product_attention``. ``masked`` says what becomes of a row that sees no key: it is 0
(minus infinity) or attends to all (-65536, which is added where the mask is False). Rows lie in memory after heads or,
``apart``, before them.

``fuselens.attention_of`` is ``softmax(scores) @ value`` of scores that the graph makes of ``product``, which is ``query @ key.mT``,
point by point: the kernel has them in registers. A ``sink`` [batch or 1, heads, 1, 1] is one more score of each row, of nothing.
Where ``zero``, a row that sees no key is 0, else NaN. ``masked``: scores depend on more than the product.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 16  # of one head, to be few; with those of the heads that share its keys
SHARED = 64
WIDTH = 256


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


def _attention_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    product: Tensor,
    scores: Tensor,
    sink: Tensor | None,
    zero: bool,
    masked: bool,
) -> Tensor:
    keys = scores.shape[3]
    if sink is not None:
        scores = torch.cat((scores, sink.to(scores.dtype).expand(*scores.shape[:3], 1)), -1)
    weights = torch.softmax(scores, -1, torch.promote_types(scores.dtype, torch.float32))
    if zero:
        weights = weights.masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return weights[..., :keys].to(value.dtype) @ value


def _meta_of(query: Tensor, key: Tensor, value: Tensor, *_: object) -> Tensor:
    return query.new_empty(*query.shape[:3], value.shape[3])


_library = torch.library.Library("fuselens", "FRAGMENT")
_library.define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale, bool causal, float masked, bool apart) -> Tensor"
)
_library.impl("attention", _attention, "CompositeExplicitAutograd")
_library.impl("attention", meta, "Meta")
_library.define(
    "attention_of(Tensor query, Tensor key, Tensor value, Tensor product, Tensor scores, Tensor? sink, bool zero, bool masked) -> Tensor"
)
_library.impl("attention_of", _attention_of, "CompositeExplicitAutograd")
_library.impl("attention_of", _meta_of, "Meta")
OF_SCORES = torch.ops.fuselens.attention_of.default
OWN = torch.ops.fuselens.attention.default
