"""Attention masks that are the same in every call: libraries write them out for compilers, where they give eager none.

A mask that hides nothing is left out, and one that hides what comes later becomes ``is_causal``: kernels of attention need read
neither, and torch has faster ones that take no mask. Other masks stay. A mask is known where the graph makes it from nothing but
sizes: its nodes are run, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.ir.graphs.known_values import known_value

from .attention import ARGUMENTS
from .recorder import OperatorRecorder

_MOST_NODES = 64  # that make a mask
_KIND = "mask"  # fx.Node.meta: what the mask says


def without_known_mask(
    recorder: OperatorRecorder, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``scaled_dot_product_attention`` without its mask, if all calls have it and it can be said otherwise."""
    given = dict(zip(ARGUMENTS, args[3:], strict=False)) | dict(kwargs)
    mask = given.get("attn_mask")
    if not isinstance(mask, torch.Tensor) or given.get("is_causal") or mask.requires_grad or mask.dim() < 2:
        return None
    node = recorder.known_node(torch_private.from_functional(mask))
    query = args[0] if args else given.get("query")
    if node is None or not isinstance(query, torch.Tensor) or not _fits(mask, query):
        return None
    if _KIND not in node.meta:
        with recorder.pause(), torch_private.real_tensors(), torch.no_grad():
            node.meta[_KIND] = _said_otherwise(node)
    kind = node.meta[_KIND]
    if kind is None:
        return None
    return args[:3], {**given, "attn_mask": None, "is_causal": kind == "causal"}


def _fits(mask: torch.Tensor, query: torch.Tensor) -> bool:
    """Whether sizes are known, and the result has those of the query with or without the mask."""
    if not all(type(n) is int and n > 0 for n in mask.shape) or mask.dim() > query.dim():
        return False
    batches = zip(reversed(mask.shape[:-2]), reversed(query.shape[:-2]), strict=False)
    return all(n == 1 or str(n) == str(m) for n, m in batches) and (
        mask.dtype == torch.bool or mask.is_floating_point()
    )


def _said_otherwise(node: fx.Node) -> str | None:
    """ "all" for a mask that hides nothing, "causal" for one that hides from each row what comes after it; None for others."""
    value = known_value(node, _MOST_NODES)
    if value is None:
        return None
    for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
        if dim < value.dim() - 2 and stride == 0 and size > 1:
            value = value.narrow(dim, 0, 1)  # the same for all
    seen = value if value.dtype == torch.bool else value == 0
    if value.dtype != torch.bool and not (seen | (value <= torch.finfo(value.dtype).min / 2)).all():
        return None
    if seen.all():
        return "all"
    rows, keys = seen.shape[-2:]
    past = torch.ones(rows, keys, dtype=torch.bool).tril()
    return "causal" if rows == keys and bool((seen == past).all()) else None
