"""Attention written out, ``softmax(q @ k.T * scale + bias) @ v``, as one call of the vendor's flash kernel.

The scores of a long sequence do not fit into cache; the flash kernel never stores them. Where sequences are short, two
products with a fused softmax between them are as fast and stay. Values keep eager's meaning: a row whose scores are all
masked by minus infinity is NaN, where the vendor's kernel would give 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuselens.record.report import Decision

from .find_attention import Maker, find_attention, operands, remade

aten = torch.ops.aten
_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
KEYS, QUERIES = 128, 16  # sequences from which the flash kernel wins, measured with one thread on Zen 3


@dataclass(frozen=True, slots=True)
class Biased:
    """``product * scale`` and what is added to it: tensors, and masks with where they hold minus infinity."""

    scale: float
    biases: tuple[fx.Node, ...] = ()
    masks: tuple[tuple[fx.Node, bool], ...] = ()


def call_flash_attention(module: fx.GraphModule) -> list[Decision]:
    """Replaces attention that is written out in a functional ATen graph on the CPU, in place."""
    decisions = []
    for node in list(module.graph.nodes):
        if node.target is aten.bmm.default:
            decision = _replace(node)
            if decision is not None:
                decisions.append(decision)
    if decisions:
        module.graph.eliminate_dead_code()
    return decisions


def _replace(node: fx.Node) -> Decision | None:
    value = node.meta["val"]
    written = find_attention(node) if value.dtype == torch.float32 and value.device.type == "cpu" else None
    if written is None or written.sink is not None or written.zero:
        return None
    _, _, queries, keys = written.shape
    if keys < KEYS or queries < QUERIES or written.product.args[-1].meta["val"].shape[-2] != value.shape[-1]:  # type: ignore[union-attr]
        return None
    make = Maker(node)
    given = operands(written, make)
    made = remade(written, make)
    found = _biased(made.scores, made.product)
    if given is None or found is None or given[0].meta["val"].shape[1] != given[1].meta["val"].shape[1]:
        return None
    if any(n.meta["val"].stride(-1) != 1 for n in given):
        return None
    bias = _bias(found, value, make)
    more: dict[str, Any] = {"scale": found.scale}
    if bias is not None:
        while bias.meta["val"].dim() < 4:
            bias = make(aten.unsqueeze.default, bias, 0)
        more["attn_mask"] = bias
    both = make(_FLASH, *given, 0.0, False, **more)
    out = make.item(both, 0)
    if bias is not None:
        masked = make(aten.eq.Scalar, make(aten.amax.default, bias, [-1], True), -math.inf)
        nan = make(aten.full.default, [], math.nan, dtype=value.dtype, device=value.device)
        out = make(aten.where.self, masked, nan, out)
    out = make(aten.clone.default, out, memory_format=torch.contiguous_format)
    result = make(aten.view.default, out, list(value.shape))
    node.replace_all_uses_with(result)
    subject = f"attention of {queries} queries and {keys} keys"
    data = {"operator": str(_FLASH), "scale": found.scale}
    return Decision("FL415", "vendor", subject, "its scores are never stored", node.meta.get("span"), data)


def _biased(node: Any, product: fx.Node) -> Biased | None:
    """The node as scaled product plus biases."""
    if node is product:
        return Biased(1.0)
    if not isinstance(node, fx.Node) or node.kwargs:
        return None
    args: tuple[Any, ...] = node.args
    if node.target in (aten.mul.Tensor, aten.div.Tensor):
        inner, factor = _biased(args[0], product), args[1]
        if inner is None or inner.biases or inner.masks or not isinstance(factor, (int, float)) or not factor:
            return None
        scale = inner.scale * factor if node.target is aten.mul.Tensor else inner.scale / factor
        return Biased(scale) if scale > 0 and math.isfinite(scale) else None
    if node.target is aten.add.Tensor:
        for first, bias in (args, args[::-1]):
            inner = _biased(first, product) if isinstance(bias, fx.Node) else None
            if inner is not None and _spreads(bias, node) and bias.meta["val"].dtype == node.meta["val"].dtype:
                return Biased(inner.scale, (*inner.biases, bias), inner.masks)
    if node.target is aten.where.self:
        mask, yes, no = args
        for first, other, holds in ((no, yes, True), (yes, no, False)):
            inner = _biased(first, product)
            if inner is not None and _is_minus_infinity(other) and isinstance(mask, fx.Node) and _spreads(mask, node):
                return Biased(inner.scale, inner.biases, (*inner.masks, (mask, holds)))
    return None


def _spreads(operand: fx.Node, over: fx.Node) -> bool:
    """Whether the operand broadcasts to the node's shape without making it larger; numbers in tensors do not count."""
    mine, whole = operand.meta["val"].shape, over.meta["val"].shape
    return 1 <= len(mine) <= len(whole) and operand.meta["val"].device == over.meta["val"].device


def _is_minus_infinity(node: Any) -> bool:
    fills = {aten.full.default: 1, aten.scalar_tensor.default: 0}
    if not isinstance(node, fx.Node) or node.target not in fills:
        return False
    return node.args[fills[node.target]] == -math.inf  # type: ignore[index]


def _bias(found: Biased, like: Any, make: Maker) -> fx.Node | None:
    """What is added to the scaled product, in one tensor; masks become minus infinity and 0."""
    terms = list(found.biases)
    dtype, device = like.dtype, like.device
    for mask, holds in found.masks:
        low = make(aten.full.default, [], -math.inf, dtype=dtype, device=device)
        zero = make(aten.full.default, [], 0.0, dtype=dtype, device=device)
        terms.append(make(aten.where.self, mask, *((low, zero) if holds else (zero, low))))
    if not terms:
        return None
    total = terms[0]
    for term in terms[1:]:
        total = make(aten.add.Tensor, total, term)
    return total
