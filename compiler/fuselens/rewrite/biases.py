"""Biases of convolutions on a GPU as additions of their own.

The vendor's convolutions there add no bias: ATen adds it with one more kernel, which reads and writes the whole result. As an
addition of the graph it is done by whatever reads the result next. A gradient of a bias is a sum of the graph for the same reason.
ATen's own kernel for depthwise convolutions does add it, before it rounds; channels-last ones are the vendor's, too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import fx

aten = torch.ops.aten


def apart(graphs: Iterable[fx.Graph]) -> int:
    """Rewrites functional ATen graphs in place; how many convolutions had a bias."""
    return sum(_changed(node) for graph in graphs for node in list(graph.nodes) if _is_on_gpu(node))


def _is_on_gpu(node: fx.Node) -> bool:
    operand = node.args[0] if node.args else None
    value = operand.meta.get("val") if isinstance(operand, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _changed(node: fx.Node) -> bool:
    if node.target is aten.convolution.default and node.args[2] is not None and not _adds_bias(node):
        return _added(node)
    asked = node.target is aten.convolution_backward.default and node.args[-1][2]  # type: ignore[index]
    return bool(asked) and _summed(node)


def _adds_bias(node: fx.Node) -> bool:
    x, weight, groups = node.args[0], node.args[1], node.args[8]
    assert isinstance(x, fx.Node) and isinstance(weight, fx.Node)
    depthwise = bool(groups != 1) and str(weight.meta["val"].shape[1]) == "1"
    step = x.meta["val"].stride(1)
    return depthwise and not (type(step) is int and step == 1)


def _added(node: fx.Node) -> bool:
    bias, value = node.args[2], node.meta["val"]
    assert isinstance(bias, fx.Node)
    shape = [bias.meta["val"].shape[0], *[1] * (value.dim() - 2)]
    with node.graph.inserting_after(node):
        wide = node.graph.call_function(aten.view.default, (bias, shape))
    with node.graph.inserting_after(wide):
        total = node.graph.call_function(aten.add.Tensor, (node, wide))
    node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)
    node.args = (*node.args[:2], None, *node.args[3:])
    wide.meta = {**node.meta, "val": bias.meta["val"].view(shape)}
    total.meta = dict(node.meta)
    return True


def _summed(node: fx.Node) -> bool:
    gradient, value = node.args[0], node.meta["val"][2]
    assert isinstance(gradient, fx.Node)
    dims = [0, *range(2, gradient.meta["val"].dim())]
    for user in [u for u in node.users if u.target is operator.getitem and u.args[1] == 2]:
        with node.graph.inserting_before(node):
            total = node.graph.call_function(aten.sum.dim_IntList, (gradient, dims))
        total.meta = {**user.meta, "val": value}
        user.replace_all_uses_with(total)
        node.graph.erase_node(user)
    *others, mask = node.args
    node.args = (*others[:3], None, *others[4:], [*mask[:2], False])  # type: ignore[index, misc]
    node.meta["val"] = (*node.meta["val"][:2], None)
    return True
