"""Attention that a program writes out, ``softmax(scores) @ values`` with scores made of ``queries @ keys``, found in a
functional ATen graph, and its parts in the shapes that kernels of attention take."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

from .views import CONVERSIONS, is_reshape, lies_at, peeled, sizes_of

aten = torch.ops.aten
_PRODUCTS = (aten.bmm.default, aten.baddbmm.default)
_MOST = 64  # nodes between a product and its softmax
Shape = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Written:
    """``out`` is the product of the softmax with values. ``between`` are the nodes that lead from ``product`` to ``scores`` and
    nowhere else, in order; ``shape`` is that of the scores: batch, heads, queries, keys. A ``sink`` is one more score of each row,
    of no value. Where ``zero``, a row that sees no key is 0, else NaN."""

    out: fx.Node
    product: fx.Node
    between: tuple[fx.Node, ...]
    scores: fx.Node
    shape: Shape
    sink: fx.Node | None
    zero: bool


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

    def seen(
        self, node: fx.Node, shape: Sequence[int], repeated: int | None = None, dtype: torch.dtype | None = None
    ) -> fx.Node | None:
        """The elements of ``node`` in this shape, where they lay before views and copies of them were made, or conversions from
        ``dtype``, if they have strides there. Along a dimension that is ``repeated`` they must be the same, and are there once."""
        for first, strides in lies_at(node, shape, dtype or node.meta["val"].dtype):
            if repeated is None or not strides[repeated]:
                kept = [d for d in range(len(shape)) if d != repeated]
                sizes, strides = [shape[d] for d in kept], [strides[d] for d in kept]
                if (list(first.meta["val"].shape), list(first.meta["val"].stride())) == (sizes, strides):
                    return first
                return self(aten.as_strided.default, first, sizes, strides)
        return None


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


def find_attention(out: fx.Node) -> Written | None:
    """Attention whose last product is ``out``."""
    if out.target is not aten.bmm.default or any(isinstance(s, torch.SymInt) for s in out.meta["val"].shape):
        return None
    weights, hidden = _unless_hidden(peeled(out.args[0]))
    if not isinstance(weights, fx.Node) or len(weights.users.keys() - hidden) > 1:
        return None
    weights = peeled(_unconverted(weights))
    whole = _before_the_last(weights)
    scores = softmax_of(weights if whole is None else whole, hidden)
    if scores is None:
        return None
    scores = _unshifted(_unconverted(scores, hidden))
    sink = None
    if whole is not None:
        parts: Any = scores.args[0] if scores.target is aten.cat.default and len(scores.args) == 2 else ()
        if len(parts) != 2 or scores.args[1] not in (-1, scores.meta["val"].dim() - 1) or len(parts[0].users) != 1:
            return None
        scores, sink = parts
        if sizes_of(sink)[-1] != 1:
            return None
    if hidden and (whole is not None or hidden[-1].args[0] is not scores):
        return None
    found = _leading_to(scores)
    shape = sizes_of(scores)
    if found is None or not 3 <= len(shape) <= 5 or any(isinstance(s, torch.SymInt) for s in shape):
        return None
    if sizes_of(found[0])[-1] != shape[-1] or torch.float64 in (scores.meta["val"].dtype, weights.meta["val"].dtype):
        return None
    batch, heads = (1, shape[0]) if len(shape) == 3 else (shape[0], math.prod(shape[1:-2]))
    return Written(out, *found, scores, (batch, heads, shape[-2], shape[-1]), sink, bool(hidden))


def operands(found: Written, make: Maker) -> tuple[fx.Node, fx.Node, fx.Node] | None:
    """Query, key and value: [batch, heads or those that share them, length, width], as they were before they were converted."""
    batch, heads, rows, keys = found.shape
    query, key = found.product.args[-2:]
    value = found.out.args[1]
    assert isinstance(query, fx.Node) and isinstance(key, fx.Node) and isinstance(value, fx.Node)
    groups = sizes_of(key)[0] // batch
    if not groups or sizes_of(key)[0] != sizes_of(value)[0] or sizes_of(key)[0] % batch or heads % groups:
        return None
    width, across = sizes_of(query)[-1], sizes_of(value)[-1]
    dtype = value.meta["val"].dtype
    query = make.seen(query, (batch, heads, rows, width), dtype=dtype)
    for times in (n for n in range(groups, 0, -1) if groups % n == 0):
        shape, repeated = ((batch, groups), None) if times == 1 else ((batch, groups // times, times), 2)
        first = make.seen(key, (*shape, width, keys), repeated, dtype)
        second = make.seen(value, (*shape, keys, across), repeated, dtype) if first is not None else None
        if query is not None and first is not None and second is not None:
            return query, make(aten.transpose.int, first, -2, -1), second
    return None


@dataclass(frozen=True, slots=True)
class Made:
    """The nodes of a :class:`Written` again, all in its ``shape``. ``masked``: scores are made of more than the product."""

    product: fx.Node
    scores: fx.Node
    sink: fx.Node | None
    masked: bool


def remade(found: Written, make: Maker) -> Made:
    shape = found.shape
    product, sink, masked = found.product, found.sink, False
    query, key = product.args[-2:]
    plain = product if product.target is aten.bmm.default else make(aten.bmm.default, query, key)
    first = made = make(aten.view.default, plain, list(shape))
    if product.target is aten.baddbmm.default:
        alpha, beta = (product.kwargs.get(n, 1) for n in ("alpha", "beta"))
        made = made if alpha == 1 else make(aten.mul.Tensor, made, alpha)
        if beta != 0:
            added: Any = product.args[0]
            more: dict[str, Any] = {} if beta == 1 else {"alpha": beta}
            made = make(aten.add.Tensor, made, _beside(added, sizes_of(product), shape, make), **more)
            masked = True
    known = {product: made}
    for node in found.between:
        args: tuple[Any, ...] = node.args
        if is_reshape(node):
            known[node] = known[args[0]]
            continue
        for each in node.all_input_nodes:
            if each not in known:
                known[each] = _beside(each, sizes_of(node), shape, make)
                masked = masked or each.meta["val"].dim() > 0
        if node.target is aten.div.Tensor and isinstance(args[1], (int, float)) and _has_reciprocal(args[1]):
            known[node] = make(aten.mul.Tensor, known[args[0]], 1 / args[1])
        else:
            known[node] = make(node.target, *fx.map_arg(args, known.get), **fx.map_arg(node.kwargs, known.get))
    if sink is not None:
        sink = _beside(sink, (*sizes_of(found.scores)[:-1], 1), (*shape[:3], 1), make)
    return Made(first, known[found.scores], sink, masked)


def _has_reciprocal(number: float) -> bool:
    return number != 0 and math.isfinite(number) and math.isfinite(1 / number)


def softmax_of(node: Any, beside: Collection[fx.Node] = ()) -> fx.Node | None:
    """``x`` where the node is ``softmax(x, -1)``, decomposed, and nobody else reads its parts, nor ``x`` but for ``beside``."""
    if not isinstance(node, fx.Node) or node.target is not aten.div.Tensor or len(node.users.keys() - beside) > 1:
        return None
    args: tuple[Any, ...] = node.args
    powers, total = args
    if not isinstance(powers, fx.Node) or not isinstance(total, fx.Node) or set(powers.users) != {node, total}:
        return None
    if powers.target is not aten.exp.default or not _folds(total, aten.sum.dim_IntList, powers):
        return None
    shifted: Any = powers.args[0]
    scores = _unshifted(shifted, beside) if len(shifted.users) == 1 else shifted
    return scores if scores is not shifted else None


def _unshifted(node: Any, beside: Collection[fx.Node] = ()) -> Any:
    """``x`` where the node is ``x - max(x)`` along the last dimension."""
    if not isinstance(node, fx.Node) or node.target is not aten.sub.Tensor or node.kwargs:
        return node
    scores, top = node.args
    if not isinstance(scores, fx.Node) or not isinstance(top, fx.Node):
        return node
    readers: Any = top
    if top.target is operator.getitem and top.args[1] == 0 and set(top.users) == {node}:
        readers = top.args[0]
    if scores.users.keys() - beside != {node, readers}:
        return node
    target = aten.amax.default if readers is top else aten.max.dim
    return scores if _folds(readers, target, scores) else node  # type: ignore[arg-type]


def _folds(node: fx.Node, target: Any, source: fx.Node) -> bool:
    """Whether the node is ``target(source, [-1], True)`` and has one reader."""
    if node.target is not target or len(node.users) != 1 or node.kwargs or len(node.args) != 3:
        return False
    operand, dims, keep = node.args
    dims = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    return operand is source and dims in ([-1], [source.meta["val"].dim() - 1]) and keep is True


def _unconverted(node: Any, beside: Collection[fx.Node] = ()) -> Any:
    """What the node converts between precisions, while nobody but for ``beside`` reads it."""
    if isinstance(node, fx.Node) and node.target in CONVERSIONS:
        source: Any = node.args[0]
        if source.meta["val"].is_floating_point() and len(source.users.keys() - beside) == 1:
            return source
    return node


def _unless_hidden(node: Any) -> tuple[Any, tuple[fx.Node, ...]]:
    """The softmax of ``_safe_softmax``, which is 0 where a row sees no key, and what says where that is."""
    if not isinstance(node, fx.Node) or node.target is not aten.where.self:
        return node, ()
    all_, zero, weights = node.args
    if not all(isinstance(n, fx.Node) for n in node.args) or all_.target is not aten.all.dim:  # type: ignore[union-attr]
        return node, ()
    equal: Any = all_.args[0]  # type: ignore[union-attr]
    if equal.target is not aten.eq.Scalar or equal.args[1] != -math.inf or not _folds(all_, aten.all.dim, equal):  # type: ignore[arg-type]
        return node, ()
    fills = {aten.full_like.default: 1, aten.full.default: 1, aten.scalar_tensor.default: 0}
    at = fills.get(zero.target)  # type: ignore[union-attr]
    if at is None or zero.args[at] != 0 or len(equal.users) != 1:  # type: ignore[union-attr]
        return node, ()
    return weights, (node, zero, equal)  # type: ignore[return-value]


def _before_the_last(node: Any) -> fx.Node | None:
    """What the node is all columns of but for the last, if it is that."""
    if not isinstance(node, fx.Node) or node.target is not aten.slice.Tensor or len(node.users) != 1:
        return None
    source: Any = node.args[0]
    shape, kept = sizes_of(source), sizes_of(node)
    start = node.args[2] if len(node.args) > 2 else 0
    if start not in (0, None) or (*shape[:-1], shape[-1] - 1) != kept or len(node.args) > 4:
        return None
    return peeled(_unconverted(peeled(source)))


def _leading_to(scores: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]] | None:
    """A product, and the nodes point by point that lead from it to ``scores`` and nowhere else."""
    count = scores.meta["val"].numel()
    seen: dict[fx.Node, None] = {}
    waiting = [scores]
    while waiting and len(seen) < _MOST:
        node = waiting.pop()
        if node in seen or not isinstance(node.meta.get("val"), torch.Tensor) or node.meta["val"].numel() != count:
            continue
        seen[node] = None
        if node.target in _PRODUCTS:
            between = _between(node, scores)
            if between is not None:
                return node, between
        elif _is_point_by_point(node):
            waiting += node.all_input_nodes
    return None


def _between(product: fx.Node, scores: fx.Node) -> tuple[fx.Node, ...] | None:
    inside = {product}
    waiting = [product]
    while waiting:
        node = waiting.pop()
        for user in node.users if node is not scores else ():
            if not _is_point_by_point(user) or user.meta["val"].numel() != scores.meta["val"].numel():
                return None
            if user not in inside:
                inside.add(user)
                waiting.append(user)
        if len(inside) > _MOST:
            return None
    between, node = [], product.next
    while len(between) < len(inside) - 1:
        if node in inside:
            between.append(node)
        node = node.next
    return tuple(between) if scores in inside else None


def _is_point_by_point(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.dtype == torch.float64:
        return False
    return is_reshape(node) or torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target in CONVERSIONS


def _beside(node: fx.Node, over: tuple[int, ...], shape: Shape, make: Maker) -> fx.Node:
    """An operand that broadcasts to ``over``, so that it broadcasts to ``shape``, which has as many elements."""
    own = sizes_of(node)
    if not own or shape[-len(over) :] == over:
        return node
    own = (1,) * (len(over) - len(own)) + own
    theirs = [d for d, size in enumerate(over) if size != 1]
    ours = [d for d, size in enumerate(shape) if size != 1]
    wide, new = [own[d] for d in theirs], [1] * len(shape)
    i = j = 0
    while i < len(theirs):
        here, there = [i], [j]  # dimensions that are as many elements
        a, b = over[theirs[i]], shape[ours[j]]
        while a != b:
            if a < b:
                i += 1
                here.append(i)
                a *= over[theirs[i]]
            else:
                j += 1
                there.append(j)
                b *= shape[ours[j]]
        if any(wide[k] != 1 for k in here):
            for k in here:
                wide[k] = over[theirs[k]]
            for k in there:
                new[ours[k]] = shape[ours[k]]
        i, j = i + 1, j + 1
    if math.prod(wide) == math.prod(own):
        return make.seen(node, new) or make(aten.view.default, _copied(node, make), new)
    spread = make(aten.expand.default, make(aten.view.default, node, [own[d] for d in theirs]), wide)
    return make.seen(spread, new) or make(aten.view.default, _copied(spread, make), new)


def _copied(node: fx.Node, make: Maker) -> fx.Node:
    return make(aten.clone.default, node, memory_format=torch.contiguous_format)
