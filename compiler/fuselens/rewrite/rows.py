"""Attention on a GPU that is written out, ``softmax(q @ k.T * scale + bias) @ v``, as one operator for which there is a kernel of ours.

The kernel holds scores in registers, and masks are computed as they are needed; written out, each step of half precision
goes through memory. Keys that are repeated for the heads that share them are read where they are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from fuselens.ir.attention import OWN
from fuselens.report import Decision

from .attention import Maker, Scores, peeled, scores_of, shaped, softmax_of

aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
_CONVERSIONS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)
KEYS, WIDTH = 256, 128  # from which, and up to which, the kernel is the better one


def own_attention(module: fx.GraphModule) -> list[Decision]:
    """Replaces what is written out in a functional ATen graph, in place."""
    products = [n for n in module.graph.nodes if n.target is aten.bmm.default and n.meta["val"].device.type == "cuda"]
    decisions = [made for n in products if (made := _replace(n))]
    for node in list(module.graph.nodes):
        if node.target is OWN:
            _share(node)
    if decisions:
        module.graph.eliminate_dead_code()
    return decisions


def _replace(node: fx.Node) -> Decision | None:
    value = node.meta["val"]
    if value.dtype not in _HALVES or any(isinstance(s, torch.SymInt) for s in value.shape):
        return None
    softmax = softmax_of(_unconverted(peeled(node.args[0])))
    found = scores_of(_unconverted(softmax, users=2)) if softmax is not None else None
    if softmax is None or found is None or found.product.meta["val"].dtype != value.dtype:
        return None
    shape = softmax.meta["val"].shape
    if any(isinstance(s, torch.SymInt) for s in shape) or len(shape) not in (3, 4):
        return None
    *lead, queries, keys = shape
    across, width = value.shape[-1], found.product.args[0].meta["val"].shape[-1]  # type: ignore[union-attr]
    if keys < KEYS or max(width, across) > WIDTH:
        return None
    make = Maker(node)
    query = shaped(found.product.args[0], (*lead, queries, width), make)
    key = shaped(found.product.args[1], (*lead, width, keys), make)
    values = shaped(node.args[1], (*lead, keys, across), make)
    if query is None or key is None or values is None:
        return None
    operands = [query, make(aten.transpose.int, key, -2, -1), values]
    if len(lead) == 1:
        operands = [make(aten.unsqueeze.default, n, 0) for n in operands]
    mask = _mask(found, make)
    out = make(OWN, *operands, mask, found.scale, False, math.nan, False)
    node.replace_all_uses_with(make(aten.view.default, out, list(value.shape)))
    subject = f"attention of {queries} queries and {keys} keys"
    return Decision(
        "FL415", "own", subject, "its scores are never stored", node.meta.get("span"), {"scale": found.scale}
    )


def _unconverted(node: Any, users: int = 1) -> Any:
    """What the node converts between precisions, while nobody else reads it."""
    if isinstance(node, fx.Node) and node.target in _CONVERSIONS and len(node.users) <= users:
        source: Any = node.args[0]
        if source.meta["val"].is_floating_point() and len(source.users) == 1:
            return peeled(source)
    return node


def _mask(found: Scores, make: Maker) -> fx.Node | None:
    """What is added to the scaled product, or the mask where there is nothing but that."""
    if not found.biases and len(found.masks) == 1:
        mask, low = found.masks[0]
        return _by_rows(make(aten.logical_not.default, mask) if low else mask, make)
    terms = list(found.biases)
    dtype, device = found.product.meta["val"].dtype, found.product.meta["val"].device
    for mask, low in found.masks:
        least, zero = (make(aten.full.default, [], n, dtype=dtype, device=device) for n in (-math.inf, 0.0))
        terms.append(make(aten.where.self, mask, *((least, zero) if low else (zero, least))))
    if not terms:
        return None
    total = terms[0]
    for term in terms[1:]:
        total = make(aten.add.Tensor, total, term)
    return _by_rows(total, make)


def _by_rows(mask: fx.Node, make: Maker) -> fx.Node:
    return mask if mask.meta["val"].dim() > 1 else make(aten.unsqueeze.default, mask, 0)


def _share(node: fx.Node) -> None:
    """Gives the operator keys and values as they are before each was repeated for several heads."""
    operands: Any = node.args[1:3]
    found = [_repeated(n) for n in operands]
    if None not in found and found[0].meta["val"].shape[1] == found[1].meta["val"].shape[1]:  # pyright: ignore
        node.args = (node.args[0], *found, *node.args[3:])


def _repeated(node: Any) -> fx.Node | None:
    """What ``x[:, :, None].expand(...).reshape(...)`` repeats."""
    turned = node.target is aten.transpose.int and sorted(d % 4 for d in node.args[1:]) == [2, 3]
    inner = node.args[0] if turned else node
    if turned and (inner.target is aten.transpose.int and sorted(d % 4 for d in inner.args[1:]) == [2, 3]):
        inner, turned = inner.args[0], False
    copy = inner.args[0] if inner.target in (aten.view.default, aten._unsafe_view.default) else None
    if isinstance(copy, fx.Node) and copy.target is aten.clone.default:
        copy = copy.args[0]
    single = copy.args[0] if isinstance(copy, fx.Node) and copy.target is aten.expand.default else None
    if turned or not isinstance(single, fx.Node) or single.target is not aten.unsqueeze.default or single.args[1] != 2:
        return None
    source: Any = single.args[0]
    batch, groups, times, *rest = copy.meta["val"].shape  # type: ignore[union-attr]
    before = source.meta["val"].shape
    same = list(before) == [batch, groups, *rest] and list(inner.meta["val"].shape) == [batch, groups * times, *rest]
    return source if len(before) == 4 and same else None
