"""Matrix products through the library that is faster on this machine, with what oneDNN computes on the way out.

The addition of a residual that would otherwise be a pass over the product alone goes into oneDNN's call. Its ReLU does not:
it turns NaN into 0. Other activations stay with our loops, whose exp, tanh and erf are faster than the library's, and so
does whatever fuses with more. A frozen weight is packed into oneDNN's own layout where that measured faster still: MKL's
own layout was never worth its memory (0.95 to 1.06 of the time).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.record.report import Decision
from fuselens.rewrite.constants import Constants

aten = torch.ops.aten
Product = tuple[str, int, int, int]  # form, rows, columns, summed
Compare = Callable[[Product, bool], Mapping[str, float] | None]
_VIEWS = (aten.view.default, aten._unsafe_view.default)
_OPAQUE = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)  # readers that do not fuse


def choose(module: fx.GraphModule, compare: Compare, gain: float, constants: Constants) -> list[Decision]:
    """Rewrites f32 products of ``module`` in place. ``compare`` gives the seconds of each implementation of a product, by a
    frozen weight or not. Another implementation than ATen's is chosen below ``gain`` of its
    time, and one that takes memory below ``gain`` of the other's."""
    decisions: list[Decision] = []
    packed: dict[Any, torch.Tensor] = {}  # by the weight's node and the number of rows
    for node in list(module.graph.nodes):
        product = _product(node)
        weight = None if product is None or product[0] == "transposed" else constants.value(node.args[-1])
        seconds = compare(product, weight is not None) if product is not None else None
        if product is None or seconds is None:
            continue
        taken = "onednn" if seconds["onednn"] < gain * seconds["aten"] else "aten"
        best = min(seconds["onednn"], seconds["aten"])
        if weight is not None and seconds.get("packed", best) < gain * best:
            taken = "packed"
        data = {**seconds}
        reason = f"oneDNN takes {seconds['onednn'] / seconds['aten']:.2f} of the time of ATen's library here"
        key = node.args[-1], product[1]
        if taken == "packed":
            assert weight is not None
            if key not in packed:
                packed[key] = torch_private.ONEDNN_PACK_LINEAR(weight.t(), product[1])
            data["bytes"] = weight.numel() * weight.dtype.itemsize
            reason += f", {seconds['packed'] / seconds['aten']:.2f} with the weight packed ({data['bytes']} bytes)"
        if taken != "aten" and _rewrite(node, packed[key] if taken == "packed" else None, constants):
            reason += ", with a residual"
        form, rows, columns, summed = product
        subject = f"{form} product {rows} x {columns} over {summed}"
        decisions.append(Decision("FL415", taken, subject, reason, node.meta.get("span"), data))
    if decisions:
        module.graph.eliminate_dead_code()
    return decisions


def _product(node: fx.Node) -> tuple[str, int, int, int] | None:
    """The node as a product of f32 matrices on the CPU, both of them contiguous but for a transposition."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
        return None
    a, b = (n.meta["val"] for n in node.args[-2:])  # type: ignore[union-attr]
    if node.target is aten.addmm.default:
        bias = node.args[0].meta["val"]  # type: ignore[union-attr]
        if bias.shape != b.shape[1:] or bias.dtype != torch.float32:
            return None
    if a.dtype != torch.float32 or b.dtype != torch.float32 or a.device.type != "cpu":
        return None
    rows, summed, columns = (_hint(s) for s in (*a.shape, b.shape[1]))
    if None in (rows, summed, columns):
        return None
    turned = [_is_transposed(t) for t in (a, b)]
    if None in turned or turned == [True, True]:
        return None
    form = "transposed" if turned[0] else "forward" if turned[1] else "plain"
    return form, rows, columns, summed  # type: ignore[return-value]


def _hint(size: Any) -> int | None:
    return torch_private.symint_hint(size) if isinstance(size, torch.SymInt) else size


def _is_transposed(value: torch.Tensor) -> bool | None:
    """Whether a matrix is one that is read by columns; None where its rows or columns are not next to each other."""
    shape, strides = [str(s) for s in value.shape], [str(s) for s in value.stride()]
    if strides == [shape[1], "1"]:
        return False
    return True if strides == ["1", shape[0]] else None


def _rewrite(node: fx.Node, packed: torch.Tensor | None, constants: Constants) -> bool:
    """Calls oneDNN instead; whether the addition of a residual went with it."""
    x, w = node.args[-2:]
    bias = node.args[0] if node.target is aten.addmm.default else None
    end, other = residual(node)
    graph = node.graph
    assert isinstance(w, fx.Node)
    with graph.inserting_before(end):
        weight = w.args[0] if w.target is aten.t.default else None
        if weight is None:
            turned = graph.call_function(aten.t.default, (w,))
            turned.meta.update({k: v for k, v in w.meta.items() if k in ("span", "stack")}, val=w.meta["val"].t())
            weight = turned
        if packed is not None:
            assert isinstance(weight, fx.Node)
            weight = constants.add(end, packed, weight)
        if other is not None:
            flat = other
            if other.meta["val"].dim() != 2:
                flat = graph.call_function(aten.view.default, (other, list(node.meta["val"].shape)))
                flat.meta.update({k: v for k, v in other.meta.items() if k in ("span", "stack")}, val=node.meta["val"])
            made = graph.call_function(torch_private.ONEDNN_LINEAR_ADD, (x, flat, weight, bias, "add"))
        else:
            made = graph.call_function(torch_private.ONEDNN_LINEAR, (x, weight, bias, "none", [], None))
        made.meta = dict(node.meta)
        result = made
        if end is not node and end.meta["val"].dim() != 2:
            result = graph.call_function(aten.view.default, (made, list(end.meta["val"].shape)))
            result.meta = dict(end.meta)
    end.replace_all_uses_with(result)
    return other is not None


def residual(node: fx.Node) -> tuple[fx.Node, fx.Node | None]:
    """The node that a product or convolution ends with, and what it adds: itself, or an addition that would be a loop of
    its own."""
    end = node
    while len(end.users) == 1 and next(iter(end.users)).target in _VIEWS:
        end = next(iter(end.users))
    (reader, *others) = end.users or (None,)
    if reader is None or others or reader.kwargs or reader.target is not aten.add.Tensor:
        return node, None
    whole = end.meta["val"]
    shape = reader.meta["val"].shape
    if any(isinstance(s, torch.SymInt) for s in shape) or shape != whole.shape or not _ends_loop(reader):
        return node, None
    other = next((n for n in reader.args if n is not end), None)
    value = other.meta.get("val") if isinstance(other, fx.Node) else None
    facts = (whole.shape, whole.dtype, whole.stride())
    if not isinstance(value, torch.Tensor) or (value.shape, value.dtype, value.stride()) != facts:
        return node, None
    return reader, other  # type: ignore[return-value]


def _ends_loop(node: fx.Node) -> bool:
    """Whether nothing that reads the node would be computed in one loop with it."""
    readers = list(node.users)
    while readers:
        reader = readers.pop()
        if reader.target in (*_VIEWS, aten.t.default, aten.transpose.int, aten.permute.default):
            readers += reader.users
        elif reader.op != "output" and reader.target not in _OPAQUE:
            return False
    return True
