"""Channels-last memory for what lies between convolutions.

The vendor's convolutions are faster on channels-last operands, by up to three times where channels are few, and
operators that compute point by point do not mind. So intermediate values that are connected to a convolution get
channels-last strides, across the forward and the backward graph; what the caller sees keeps its own, and so does what a
view looks at, because a view is a statement about strides.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from fuselens import torch_private

aten = torch.ops.aten

_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_SPATIAL = frozenset({
    "convolution", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_nearest2d_backward", "upsample_bilinear2d_backward",
})  # fmt: skip
_COPIES = frozenset({"clone", "_to_copy", "full_like"})
_REDUCTIONS = frozenset(
    {"sum", "mean", "amax", "amin", "var", "var_mean", "prod", "any", "all", "convolution_backward"}
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def channels_last(graphs: Sequence[fx.Graph], same: Iterable[tuple[fx.Node, fx.Node]] = ()) -> int:
    """Gives values of functional ATen graphs channels-last strides, in place; how many.

    ``same`` pairs a value of one graph with the placeholder of another that receives it, and that nobody else sees.
    """
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return 0
    convolutions = [n for g in graphs for n in g.nodes if n.target in _CONVOLUTIONS and _profits(n)]
    if not convolutions:
        return 0
    pairs = list(same)
    received = {b for _, b in pairs}
    passed = {a for a, _ in pairs}
    free = {n for g in graphs for n in g.nodes if _is_free(n, received, passed)}
    while dropped := {n for a, b in pairs if (a in free) != (b in free) for n in (a, b)} & free:
        free -= dropped
    changed = _reached(convolutions, free, pairs)
    for node in changed:
        _restride(node)
    for convolution in convolutions:
        _convert_operands(convolution, changed)
    return len(changed)


def _profits(node: fx.Node) -> bool:
    operand = node.args[0]
    known = isinstance(operand, fx.Node) and _is_plane(operand) and operand.meta["val"].dtype in _DTYPES
    return known and not _overruns(node)


def _overruns(node: fx.Node) -> bool:
    """Whether the vendor's kernel might write out of bounds: oneDNN's gradient of the weight of a strided 1 x 1 convolution
    does on channels-last operands of fewer than 8 channels (with AVX-512; 16 to be safe)."""
    if node.target is not aten.convolution_backward.default:
        return False
    weight, strides = node.args[2], node.args[4]
    assert isinstance(weight, fx.Node) and isinstance(strides, (list, tuple))
    _, channels, *window = weight.meta["val"].shape
    return all(str(n) == "1" for n in window) and any(str(n) != "1" for n in strides) and channels < 16


def _is_plane(node: fx.Node) -> bool:
    """Whether the node's value is a contiguous (N, C, H, W) on the CPU that channels-last memory would change."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or value.device.type != "cpu":
        return False
    sizes = [str(s) for s in value.shape]
    if sizes[1] == "1" or sizes[2:] == ["1", "1"]:
        return False
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if str(stride) != str(expected):
            return False
        expected = expected * size
    return True


def _is_free(node: fx.Node, received: set[fx.Node], passed: set[fx.Node]) -> bool:
    """Whether nothing but the values of ``node`` matters to whoever reads it."""
    if not _is_plane(node):
        return False
    if node.op == "placeholder":
        made = node in received
    else:
        made = node.op == "call_function" and _made_freely(node)
    return made and all(_reads_freely(u) or (u.op == "output" and node in passed) for u in node.users)


def _made_freely(node: fx.Node) -> bool:
    if node.target is operator.getitem:
        source, position = node.args
        assert isinstance(source, fx.Node)
        pooled = _packet(source) == "max_pool2d_with_indices"
        return pooled or (source.target is aten.convolution_backward.default and type(position) is int and not position)
    return not node.meta.get("random") and (_is_pointwise(node) or _packet(node) in _SPATIAL | _COPIES)


def _reads_freely(node: fx.Node) -> bool:
    return (
        not node.meta.get("random")
        and not _overruns(node)
        and (_is_pointwise(node) or _packet(node) in _SPATIAL | _COPIES | _REDUCTIONS)
    )


def _is_pointwise(node: fx.Node) -> bool:
    return isinstance(node.target, torch_private.OpOverload) and torch.Tag.pointwise in node.target.tags


def _packet(node: fx.Node) -> str:
    return str(node.target).partition(".")[2].partition(".")[0]


def _reached(convolutions: list[fx.Node], free: set[fx.Node], pairs: list[tuple[fx.Node, fx.Node]]) -> list[fx.Node]:
    """The free values that a path of free values connects to a convolution."""
    partner = dict(pairs) | {b: a for a, b in pairs}
    stack = [n for c in convolutions for n in (c, *_neighbours(c))]
    found: dict[fx.Node, None] = {}
    while stack:
        node = stack.pop()
        if node in free and node not in found:
            found[node] = None
            stack += [*_neighbours(node), *([partner[node]] if node in partner else [])]
    return list(found)


def _neighbours(node: fx.Node) -> Iterator[fx.Node]:
    for other in (*node.all_input_nodes, *node.users):
        yield other
        if other.target is operator.getitem or isinstance(other.meta.get("val"), (tuple, list)):
            yield from (*other.all_input_nodes, *other.users)


def _restride(node: fx.Node) -> None:
    value = node.meta["val"] = _channels_last(node.meta["val"])
    if node.target is operator.getitem:
        source, position = node.args
        assert isinstance(source, fx.Node) and isinstance(position, int)
        source.meta["val"] = tuple(value if i == position else v for i, v in enumerate(source.meta["val"]))


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    mode = torch_private.fake_mode_of(value)
    assert mode is not None
    with mode:
        return torch.empty_like(value, memory_format=torch.channels_last)


def _convert_operands(convolution: fx.Node, changed: Iterable[fx.Node]) -> None:
    """A convolution chooses its algorithm by the strides of its operands: those that are contiguous are copied."""
    graph, known = convolution.graph, set(changed)
    touches = convolution in known or any(n in known for n in (*convolution.all_input_nodes, *convolution.users))
    if not touches:
        return
    for operand in convolution.args[: 2 if convolution.target is aten.convolution_backward.default else 1]:
        if isinstance(operand, fx.Node) and operand not in known and _is_plane(operand):
            with graph.inserting_before(convolution):
                copy = graph.call_function(aten.clone.default, (operand,), {"memory_format": torch.channels_last})
            copy.meta.update(operand.meta, val=_channels_last(operand.meta["val"]))
            convolution.replace_input_with(operand, copy)
