"""Attention written out, ``softmax(q @ k.T * scale + bias) @ v``, as one call of the vendor's flash kernel.

The scores of a long sequence do not fit into cache; the flash kernel never stores them. Where sequences are short, two
products with a fused softmax between them are as fast and stay. Values keep eager's meaning: a row whose scores are all
masked by minus infinity is NaN, where the vendor's kernel would give 0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.report import Decision

aten = torch.ops.aten
_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.clone.default)
KEYS, QUERIES = 128, 16  # sequences from which the flash kernel wins, measured with one thread on Zen 3


@dataclass(frozen=True, slots=True)
class Scores:
    """``product * scale`` and what is added to it: tensors, and masks with where they hold minus infinity."""

    product: fx.Node
    scale: float
    biases: tuple[fx.Node, ...] = ()
    masks: tuple[tuple[fx.Node, bool], ...] = ()


def attention(module: fx.GraphModule) -> list[Decision]:
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
    weights = peeled(node.args[0])
    scores = softmax_of(weights)
    found = scores_of(scores) if scores is not None else None
    if scores is None or found is None:
        return None
    shape = scores.meta["val"].shape
    value = node.meta["val"]
    if any(isinstance(s, torch.SymInt) for s in (*shape, *value.shape)) or len(shape) not in (3, 4):
        return None
    *lead, queries, keys = shape
    width = value.shape[-1]
    if keys < KEYS or queries < QUERIES or value.dtype != torch.float32 or value.device.type != "cpu":
        return None
    make = Maker(node)
    query = shaped(found.product.args[0], (*lead, queries, width), make)
    key = shaped(found.product.args[1], (*lead, width, keys), make)
    values = shaped(node.args[1], (*lead, keys, width), make)
    if query is None or key is None or values is None:
        return None
    key = make(aten.transpose.int, key, -2, -1)
    if any(n.meta["val"].stride(-1) != 1 for n in (query, key, values)):
        return None
    bias = _bias(found, len(shape), make)
    operands = [n if len(lead) == 2 else make(aten.unsqueeze.default, n, 0) for n in (query, key, values)]
    more: dict[str, Any] = {"scale": found.scale}
    if bias is not None:
        while bias.meta["val"].dim() < 4:
            bias = make(aten.unsqueeze.default, bias, 0)
        more["attn_mask"] = bias
    both = make(_FLASH, *operands, 0.0, False, **more)
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


class Maker:
    """Makes nodes before one that they stand in for, with its spans."""

    def __init__(self, at: fx.Node) -> None:
        self.at = at

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        with self.at.graph.inserting_before(self.at):
            made = self.at.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in self.at.meta.items() if k in ("span", "stack", "captured")}
        mode = torch_private.fake_mode_of(self.at.meta["val"])
        assert mode is not None
        with mode, torch.no_grad():
            made.meta["val"] = target(*fx.map_arg(args, _value), **fx.map_arg(kwargs, _value))
        return made

    def item(self, several: fx.Node, position: int) -> fx.Node:
        return self(operator.getitem, several, position)


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


def _only_user(node: fx.Node) -> bool:
    return len(node.users) == 1


def peeled(node: Any) -> Any:
    """The node whose elements ``node`` has in the same order, while nobody else reads what lies between."""
    while isinstance(node, fx.Node) and node.target in _RESHAPES and _only_user(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        if source.meta["val"].numel() != node.meta["val"].numel():
            break
        node = source
    return node


def softmax_of(node: Any) -> fx.Node | None:
    """``x`` where the node is ``softmax(x, -1)``, decomposed, and nobody else reads its parts."""
    if not isinstance(node, fx.Node) or node.target is not aten.div.Tensor or not _only_user(node):
        return None
    args: tuple[Any, ...] = node.args
    powers, total = args
    if not isinstance(powers, fx.Node) or not isinstance(total, fx.Node) or set(powers.users) != {node, total}:
        return None
    last = (-1, powers.meta["val"].dim() - 1)
    if powers.target is not aten.exp.default or not _folds(total, aten.sum.dim_IntList, powers, last):
        return None
    shifted = powers.args[0]
    if not isinstance(shifted, fx.Node) or shifted.target is not aten.sub.Tensor or not _only_user(shifted):
        return None
    scores, top = shifted.args
    if not isinstance(scores, fx.Node) or not isinstance(top, fx.Node) or set(scores.users) != {shifted, top}:
        return None
    return scores if _folds(top, aten.amax.default, scores, last) else None


def _folds(node: fx.Node, target: Any, source: fx.Node, last: Sequence[int]) -> bool:
    """Whether the node is ``target(source, [-1], True)`` and has one reader."""
    if node.target is not target or not _only_user(node) or node.kwargs or len(node.args) != 3:
        return False
    operand, dims, keep = node.args
    return operand is source and isinstance(dims, (list, tuple)) and len(dims) == 1 and dims[0] in last and keep is True


def scores_of(node: Any, top: bool = True) -> Scores | None:
    """The node as scaled product plus biases; parts of it are read by nobody else."""
    if not isinstance(node, fx.Node) or not (top or _only_user(node)) or node.kwargs:
        return None
    args: tuple[Any, ...] = node.args
    if node.target is aten.bmm.default:
        return Scores(node, 1.0)
    if node.target in _RESHAPES:
        reshapes = isinstance(args[0], fx.Node) and args[0].target is aten.bmm.default
        return scores_of(args[0], False) if reshapes else None
    if node.target in (aten.mul.Tensor, aten.div.Tensor):
        inner, factor = scores_of(args[0], False), args[1]
        if inner is None or inner.biases or inner.masks or not isinstance(factor, (int, float)) or not factor:
            return None
        scale = inner.scale * factor if node.target is aten.mul.Tensor else inner.scale / factor
        return Scores(inner.product, scale) if scale > 0 and math.isfinite(scale) else None
    if node.target is aten.add.Tensor:
        for product, bias in (args, args[::-1]):
            inner = scores_of(product, False) if isinstance(bias, fx.Node) else None
            if inner is not None and _spreads(bias, node) and bias.meta["val"].dtype == node.meta["val"].dtype:
                return Scores(inner.product, inner.scale, (*inner.biases, bias), inner.masks)
    if node.target is aten.where.self:
        mask, yes, no = args
        for product, other, holds in ((no, yes, True), (yes, no, False)):
            inner = scores_of(product, False)
            if inner is not None and _is_minus_infinity(other) and isinstance(mask, fx.Node) and _spreads(mask, node):
                return Scores(inner.product, inner.scale, inner.biases, (*inner.masks, (mask, holds)))
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


def shaped(node: Any, shape: tuple[int, ...], make: Maker) -> fx.Node | None:
    """A node with the elements of ``node`` and this shape: one that it was copied or reshaped from, or a view of it."""
    if not isinstance(node, fx.Node) or node.meta["val"].numel() != math.prod(shape):
        return None
    earlier, found = node, None
    while True:
        if tuple(earlier.meta["val"].shape) == shape:
            found = earlier
        source = earlier.args[0] if earlier.target in _RESHAPES else None
        if not isinstance(source, fx.Node) or source.meta["val"].numel() != node.meta["val"].numel():
            break
        earlier = source
    if found is not None:
        return found
    return make(aten.view.default, node, list(shape)) if node.meta["val"].is_contiguous() else None


def _bias(found: Scores, rank: int, make: Maker) -> fx.Node | None:
    """What is added to the scaled product, in one tensor; masks become minus infinity and 0."""
    terms = list(found.biases)
    dtype, device = found.product.meta["val"].dtype, found.product.meta["val"].device
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
