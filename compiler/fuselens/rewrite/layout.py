"""Channels-last memory for what lies between convolutions.

The vendor's convolutions are faster on channels-last operands, by up to three times where channels are few, and
operators that compute point by point do not mind. So intermediate values that are connected to a convolution get
channels-last strides, across the forward and the backward graph; what the caller sees keeps its own, and so does what a
view looks at, because a view is a statement about strides. A view that parts channels into groups to reduce them has some of both.

On the CPU that is so for every convolution. On a GPU it depends on the shape, and on the card: the convolutions of the graph
are measured both ways, and what copies cost is added.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.torch_private.result_layouts import CHANNELS_LAST

aten = torch.ops.aten

_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_SPATIAL = frozenset({
    "convolution", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_nearest2d", "upsample_bilinear2d",
    "upsample_nearest2d_backward", "upsample_bilinear2d_backward", "max_pool3d_with_indices",
    "max_pool3d_with_indices_backward", "avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool3d",
    "_adaptive_avg_pool3d_backward", "constant_pad_nd", "cat",
})  # fmt: skip
_POOLS = ("max_pool2d_with_indices", "max_pool3d_with_indices")
_COPIES = frozenset({"clone", "_to_copy", "full_like"})
_REDUCTIONS = frozenset(
    {"sum", "mean", "amax", "amin", "var", "var_mean", "prod", "any", "all", "convolution_backward"}
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FEW_TAPS = 25  # of a convolution of single channels that is loops, on a GPU
_LEAST_GAIN = 0.97  # part of the time of contiguous operands that channels-last ones must stay below


@dataclass(frozen=True, slots=True)
class Measured:
    """Convolutions on a GPU: ``seconds`` of one with contiguous and with channels-last operands (None: not known), and the
    bytes a second of a copy."""

    seconds: Callable[[fx.Node], tuple[float, float] | None]
    copied: float


def channels_last(
    graphs: Sequence[fx.Graph], same: Iterable[tuple[fx.Node, fx.Node]] = (), measured: Measured | None = None
) -> int:
    """Gives values of functional ATen graphs channels-last strides, in place; how many.

    ``same`` pairs a value of one graph with the placeholder of another that receives it, and that nobody else sees. Graphs on
    a GPU are ``measured``; 3-d convolutions are looked at there only.
    """
    if measured is None and not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return 0
    convolutions = [
        n for g in graphs for n in g.nodes if n.target in _CONVOLUTIONS and _profits(n) and not _is_loops(n)
    ]
    if not convolutions:
        return 0
    pairs = list(same)
    received = {b for _, b in pairs}
    passed = {a for a, _ in pairs}
    free = {n for g in graphs for n in g.nodes if _is_free(n, received, passed)}
    while (
        dropped := (
            {n for a, b in pairs if (a in free) != (b in free) for n in (a, b)}
            | {
                n for n in free if _is_loops(n) and n.args[0] not in free
            }  # which would read one layout and write the other
        )
        & free
    ):
        free -= dropped
    changed = _reached(convolutions, free, pairs)
    if measured is not None and not _pays(convolutions, set(changed), measured):
        return 0
    for node in changed:
        _restride(node)
    for convolution in convolutions:
        _convert_operands(convolution, set(changed))
    return len(changed)


def _pays(convolutions: Iterable[fx.Node], changed: set[fx.Node], measured: Measured) -> bool:
    """Whether the convolutions, and the copies that some then need, take less time than the same on contiguous memory."""
    before = after = 0.0
    for node in convolutions:
        if not _touches(node, changed):
            continue
        found = measured.seconds(node)
        if found is None:
            return False
        results = [node] if node.target is aten.convolution.default else [n for n in node.users if n.args[1] == 0]
        copied = [n for n in (*_converted(node, changed), *results) if n not in changed and _is_plane(n)]
        before += found[0]
        after += found[1] + 2 * sum(map(_bytes, copied)) / measured.copied
    crossed = {n for c in changed for n in c.users if n not in changed and _is_pointwise(n) and _is_plane(n)}
    after += sum(map(_bytes, crossed)) / measured.copied  # they read one layout and write the other, about half as fast
    return after < _LEAST_GAIN * before


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    size = value.numel()
    return ((torch_private.symint_hint(size) or 0) if isinstance(size, torch.SymInt) else size) * value.dtype.itemsize


def convolution_of(node: fx.Node) -> dict[str, Any] | None:
    """The fields of ``runtime.gpu.convolutions.Convolution`` for a convolution or its gradients; None where sizes are not
    known, or dtypes differ."""
    given: Any = node.args
    if node.target is aten.convolution_backward.default:
        result, x, w, bias, *how, mask = given
    else:
        result, x, w, bias, *how, mask = (node, *given, ())
    x, w, result = (n.meta["val"] for n in (x, w, result))
    shapes = [
        [torch_private.symint_hint(s) if isinstance(s, torch.SymInt) else s for s in t.shape] for t in (x, w, result)
    ]
    if x.dtype != w.dtype or any(s is None for shape in shapes for s in shape):
        return None
    names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    plain = {name: tuple(v) if isinstance(v, (list, tuple)) else v for name, v in zip(names, how, strict=True)}
    if not all(type(n) in (int, bool) for v in plain.values() for n in (v if isinstance(v, tuple) else (v,))):
        return None
    sizes = dict(zip(("input", "weight", "output"), map(tuple, shapes), strict=True))
    dtype = str(x.dtype).removeprefix("torch.")
    return {"dtype": dtype, **sizes, "bias": bias is not None, **plain, "mask": tuple(mask)}


def _is_loops(node: fx.Node) -> bool:
    """Whether a convolution on a GPU is to be loops of ours, which take either layout: of single channels, with few taps."""
    if node.target is not aten.convolution.default:
        return False
    x, w, b, *how = node.args
    given = [n.meta["val"] for n in (x, w, b) if isinstance(n, fx.Node)]
    if given[0].device.type != "cuda" or how[3] or any(t.dtype != given[0].dtype for t in given):
        return False
    channels, apart, *window = map(str, given[1].shape)
    known = apart == "1" and str(how[5]) == channels == str(given[0].shape[1]) != "1" and all(map(str.isdigit, window))
    return known and given[0].dtype in _DTYPES and 1 < math.prod(map(int, window)) <= FEW_TAPS


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
    """Whether the node's value is a contiguous (N, C, H, W) that channels-last memory would change; (N, C, D, H, W) on a GPU."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() not in (
        (4,) if value.device.type == "cpu" else CHANNELS_LAST
    ):
        return False
    sizes = [str(s) for s in value.shape]
    if sizes[1] == "1" or set(sizes[2:]) == {"1"}:
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
        pooled = _packet(source) in _POOLS
        return pooled or (source.target is aten.convolution_backward.default and type(position) is int and not position)
    return not node.meta.get("random") and (
        _is_pointwise(node) or _packet(node) in _SPATIAL | _COPIES or _takes_points(node)
    )


def _reads_freely(node: fx.Node) -> bool:
    return (
        not node.meta.get("random")
        and not _overruns(node)
        and (
            _is_pointwise(node)
            or _packet(node) in _SPATIAL | _COPIES | _REDUCTIONS
            or _looks_by_groups(node)
            or _takes_points(node)
        )
    )


def _takes_points(node: fx.Node) -> bool:
    """Whether it takes points of each plane by their places, as the nearest of an interpolation, in loops."""
    if node.target is not aten._unsafe_index.Tensor:
        return False
    places: Any = node.args[1]
    return len(places) > 2 and places[0] is None and places[1] is None


def _looks_by_groups(node: fx.Node) -> bool:
    """Whether it is a view, of which channels-last memory has one too, that reductions alone read: as those of group norms."""
    if node.target is not aten.view.default or not node.users:
        return False
    source = node.args[0]
    assert isinstance(source, fx.Node)
    value = source.meta["val"]
    if value.device.type == "cpu" or any(isinstance(n, torch.SymInt) for n in value.shape):
        return False
    if not all(_packet(u) in _REDUCTIONS and u.target not in _CONVOLUTIONS for u in node.users):
        return False
    try:
        _regrouped(node, _channels_last(value))
    except (RuntimeError, ValueError):  # its dimensions lie apart there
        return False
    return True


def _regrouped(view: fx.Node, value: torch.Tensor) -> torch.Tensor:
    mode = torch_private.fake_mode_of(value)
    assert mode is not None
    with mode:
        return value.view(view.meta["val"].shape)


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
    for view in node.users:
        if view.target is aten.view.default:
            view.meta["val"] = _regrouped(view, value)


def _channels_last(value: torch.Tensor) -> torch.Tensor:
    mode = torch_private.fake_mode_of(value)
    assert mode is not None
    with mode:
        return torch.empty_like(value, memory_format=CHANNELS_LAST[value.dim()])


def _touches(convolution: fx.Node, changed: set[fx.Node]) -> bool:
    return convolution in changed or any(n in changed for n in (*convolution.all_input_nodes, *convolution.users))


def _converted(convolution: fx.Node, changed: set[fx.Node]) -> list[fx.Node]:
    """Operands that must be copied: the convolution chooses its algorithm by their strides. On a GPU so must its weight, which
    ATen would do in every call with a slow kernel; on the CPU the library reorders it anyway."""
    value = convolution.args[0].meta["val"]  # type: ignore[union-attr]
    both = convolution.target is aten.convolution_backward.default or value.device.type != "cpu"
    operands = convolution.args[: 2 if both else 1]
    return [n for n in operands if isinstance(n, fx.Node) and n not in changed and _is_plane(n)]


def _convert_operands(convolution: fx.Node, changed: set[fx.Node]) -> None:
    if not _touches(convolution, changed):
        return
    for operand in _converted(convolution, changed):
        layout = CHANNELS_LAST[operand.meta["val"].dim()]
        with convolution.graph.inserting_before(convolution):
            copy = convolution.graph.call_function(aten.clone.default, (operand,), {"memory_format": layout})
        copy.meta.update(operand.meta, val=_channels_last(operand.meta["val"]))
        convolution.replace_input_with(operand, copy)
