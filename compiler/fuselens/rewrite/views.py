"""Nodes of an ATen graph that only see elements of another: what they do to dimensions, and where elements lie."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_RESHAPES = (
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.clone.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims,
)  # fmt: skip
CONVERSIONS = (torch.ops.prims.convert_element_type.default, aten._to_copy.default)
_VIEWS = (*_RESHAPES, aten.permute.default, aten.transpose.int)


def sizes_of(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def peeled(node: Any) -> Any:
    """The node whose elements ``node`` has in the same order, while nobody else reads what lies between."""
    if not isinstance(node, fx.Node):
        return node
    found, steps, count = node, [node], node.meta["val"].numel()
    while steps[-1].target in _VIEWS and len(steps[-1].users) == 1 and isinstance(steps[-1].args[0], fx.Node):
        steps.append(steps[-1].args[0])
        if steps[-1].meta["val"].numel() == count and _strides(steps[::-1], [count], dense=True) == [1]:
            found = steps[-1]
    return found


def is_reshape(node: fx.Node) -> bool:
    """Whether the node has the elements of its operand, in their order."""
    source: Any = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or not isinstance(node.meta["val"], torch.Tensor):
        return False
    if node.target in _RESHAPES:
        return source.meta["val"].numel() == node.meta["val"].numel()
    order = _order(node)
    if order is None:
        return False
    moved = [d for d in order if source.meta["val"].shape[d] != 1]
    return moved == sorted(moved)


def lies_at(node: fx.Node, shape: Sequence[int], dtype: torch.dtype) -> list[tuple[fx.Node, list[int]]]:
    """The nodes of which ``node`` is a view, a copy or a conversion that loses nothing, first ones first, that are of this type
    and have its elements in this shape by strides."""
    steps = [node]
    while (steps[-1].target in _VIEWS and isinstance(steps[-1].args[0], fx.Node)) or _widens(steps[-1]):
        steps.append(steps[-1].args[0])  # type: ignore[arg-type]
    of_type = (k for k in reversed(range(len(steps))) if steps[k].meta["val"].dtype == dtype)
    found = ((steps[k], _strides(steps[k::-1], shape)) for k in of_type)
    return [(first, strides) for first, strides in found if strides is not None]


def _widens(node: fx.Node) -> bool:
    """Whether the node is a conversion that keeps every number."""
    if node.target not in CONVERSIONS:
        return False
    source: Any = node.args[0]
    before, after = source.meta["val"], node.meta["val"]
    if not (before.is_floating_point() and after.is_floating_point()) or before.device != after.device:
        return False
    return before.dtype.itemsize < after.dtype.itemsize


_Dim = list[tuple[int, int]]  # sizes and distances of what was made one dimension, outer ones first


def _strides(steps: Sequence[fx.Node], shape: Sequence[int], dense: bool = False) -> list[int] | None:
    """The strides by which elements of the first step, seen through the others and in this shape, are found where they are, or
    would be if they lay one after the other (``dense``)."""
    value = steps[0].meta["val"]
    if not all(isinstance(n, int) for n in (*value.shape, *value.stride(), *shape)) or 0 in shape:
        return None
    strides = [math.prod(value.shape[d + 1 :]) for d in range(value.dim())] if dense else value.stride()
    dims: list[_Dim] | None = [[(n, s)] if n != 1 else [] for n, s in zip(value.shape, strides, strict=True)]
    for step in steps[1:]:
        to = sizes_of(step)
        if (order := _order(step)) is not None:
            dims = [dims[d] for d in order]
        elif step.target is aten.expand.default:
            dims = [[] for _ in range(len(to) - len(dims))] + dims
            dims = [dim if dim or n == 1 else [(n, 0)] for dim, n in zip(dims, to, strict=True)]
        elif step.target in _RESHAPES:
            dims = _regrouped(dims, to)
        if dims is None:
            return None
    dims = _regrouped(dims, shape)
    found = [_stride(dim) for dim in dims or ()]
    return None if dims is None or None in found else found  # pyright: ignore


def _order(node: fx.Node) -> list[int] | None:
    """Which dimensions of its operand the node's are, where it only permutes them."""
    if node.target not in (aten.permute.default, aten.transpose.int):
        return None
    rank = node.meta["val"].dim()
    if node.target is aten.permute.default:
        return [d % rank for d in node.args[1]]  # type: ignore[union-attr]
    order = list(range(rank))
    a, b = node.args[1:]
    order[a], order[b] = order[b], order[a]  # type: ignore[index]
    return order


def _regrouped(dims: list[_Dim], shape: Sequence[int]) -> list[_Dim] | None:
    """The same elements in the same order, in another shape."""
    rest = [part for dim in dims for part in dim]
    if math.prod(n for n, _ in rest) != math.prod(shape):
        return None
    found: list[_Dim] = []
    for size in shape:
        dim: _Dim = []
        while size > 1:
            n, step = rest.pop(0)
            if size % n and n % size:
                return None
            if n > size:
                rest.insert(0, (n // size, step))
                n, step = size, step * (n // size)
            dim.append((n, step))
            size //= n
        found.append(dim)
    return found


def _stride(dim: _Dim) -> int | None:
    """Of all that was made one dimension."""
    if not dim:
        return 1
    size, stride = dim[-1]
    for n, step in reversed(dim[:-1]):
        if step != stride * size:
            return None
        size *= n
    return stride
