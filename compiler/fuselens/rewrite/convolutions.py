"""Convolutions whose frozen weight is packed into the layout that oneDNN computes with, once instead of in every call.

That is the primitive that ATen calls, less the reordering of the weight: it took 0.43 to 1.0 of the time on channels-last
operands (Zen 3), and up to twice the time where the layout asked for is not the one that the primitive wants; so each is
measured. The layout depends on the input's height and width but not on its batch: planes of varying size are left alone,
because reordering a packed weight in every call took seven times the time of the convolution.

The addition of a residual goes into the call. Without a packed weight that gained nothing; oneDNN's ReLU and clamp turn NaN
into numbers, and its exp, tanh and erf are slower than our loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

from fuselens import torch_private
from fuselens.record.report import Decision
from fuselens.rewrite.constants import Constants
from fuselens.rewrite.libraries import residual

aten = torch.ops.aten
LEAST_WORK = 1 << 20  # multiplications below which calling oneDNN costs more than packing saves
GAIN = 0.95  # part of the time of ATen's call below which a weight is packed


class Convolution(NamedTuple):
    """What the time of a convolution depends on."""

    dtype: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    bias: bool
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    input_last: bool  # its operand and its result are channels-last
    output_last: bool


Compare = Callable[[Convolution, Callable[[torch.Tensor, Convolution], torch.Tensor]], Mapping[str, float]]


def pack(module: fx.GraphModule, compare: Compare, constants: Constants) -> list[Decision]:
    """Rewrites convolutions with frozen weights in place where that is faster. ``compare`` gives the seconds of a call of
    "aten", and of "packed" with what its second argument makes of the weight."""
    decisions: list[Decision] = []
    made: dict[Any, torch.Tensor] = {}  # by the weight's node, and what it is packed for
    for node in list(module.graph.nodes):
        weight = constants.value(node.args[1]) if node.target is aten.convolution.default else None
        question = None if weight is None else _question(node, weight)
        if weight is None or question is None:
            continue
        seconds = compare(question, packed)
        taken = seconds["packed"] < GAIN * seconds["aten"]
        reason = f"with a packed weight it takes {seconds['packed'] / seconds['aten']:.2f} of the time here"
        data = dict(seconds)
        if taken:
            data["bytes"] = weight.numel() * weight.dtype.itemsize
            reason += f" ({data['bytes']} bytes)"
            key = (node.args[1], question._replace(bias=True, input_last=True, output_last=True))
            if key not in made:
                made[key] = packed(weight, question)
            if _rewrite(node, made[key], constants):
                reason += ", with a residual"
        verdict = "packed" if taken else "aten"
        decisions.append(Decision("FL415", verdict, node.name, reason, node.meta.get("span"), data))
    if decisions:
        module.graph.eliminate_dead_code()
    return decisions


def _question(node: fx.Node, weight: torch.Tensor) -> Convolution | None:
    x, out = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    if x.dim() != 4 or x.device.type != "cpu" or weight.dtype != x.dtype or node.kwargs:
        return None
    if not (torch.backends.mkldnn.enabled and torch_private.onednn_computes(x.dtype)):
        return None
    sizes = [s if type(s) is int else torch_private.symint_hint(s) for s in x.shape]
    points = [s if type(s) is int else torch_private.symint_hint(s) for s in out.shape]
    if any(isinstance(s, torch.SymInt) for s in x.shape[1:]) or None in (*sizes, *points):
        return None
    if math.prod(n or 0 for n in points) * weight[0].numel() < LEAST_WORK:
        return None
    x_last, out_last = (t.is_contiguous(memory_format=torch.channels_last) for t in (x, out))
    bias, *others = node.args[2:]
    plain = (tuple(v) if isinstance(v, (list, tuple)) else v for v in others)
    return Convolution(
        str(x.dtype).removeprefix("torch."), tuple(sizes), tuple(weight.shape), bias is not None, *plain, x_last, out_last  # type: ignore[arg-type]
    )  # fmt: skip


def packed(weight: torch.Tensor, c: Convolution) -> torch.Tensor:
    """The weight in oneDNN's layout."""
    if c.transposed:
        return torch_private.ONEDNN_PACK_TRANSPOSED_CONVOLUTION(
            weight, c.padding, c.output_padding, c.stride, c.dilation, c.groups, c.input
        )
    return torch_private.ONEDNN_PACK_CONVOLUTION(weight, c.padding, c.stride, c.dilation, c.groups, c.input)


def _rewrite(node: fx.Node, made: torch.Tensor, constants: Constants) -> bool:
    """Calls oneDNN instead; whether the addition of a residual went with it."""
    x, w, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    end, other = (node, None) if transposed else residual(node)
    assert isinstance(w, fx.Node)
    weight = constants.add(end, made, w)
    call: Any = torch_private.ONEDNN_CONVOLUTION
    args = (x, weight, bias, padding, stride, dilation, groups, "none", [], None)
    if transposed:
        call = torch_private.ONEDNN_TRANSPOSED_CONVOLUTION
        args = (x, weight, bias, padding, output_padding, stride, dilation, groups, "none", [], None)
    elif other is not None:
        call = torch_private.ONEDNN_CONVOLUTION_ADD
        args = (x, other, weight, bias, padding, stride, dilation, groups, "add", None, None, [], None)
    with node.graph.inserting_before(end):
        result = node.graph.call_function(call, args)
    result.meta = {**node.meta, "val": end.meta["val"]}
    end.replace_all_uses_with(result)
    return other is not None
