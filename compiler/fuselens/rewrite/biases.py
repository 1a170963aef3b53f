"""Biases of convolutions, and of products in single precision, on a GPU as additions of their own.

The vendor's convolutions there add no bias: ATen adds it with one more kernel, which reads and writes the whole result. As an
addition of the graph it is done by whatever reads the result next. A gradient of a bias is a sum of the graph for the same reason.
ATen's own kernel for depthwise convolutions does add it, before it rounds; channels-last ones are the vendor's, too.

A product can add its bias, but then the vendor's library has other kernels to choose from: none that parts what is summed, for one.
Where one without a bias is faster on this card, the bias goes to whatever reads the product point by point.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable

import torch
from torch import fx

from fuselens import torch_private

from .alignment import Compare, product_of

aten = torch.ops.aten
_GAIN = 0.95  # part of the time with the bias that the product alone must stay below


def apart(graphs: Iterable[fx.Graph], compare: Compare) -> int:
    """Rewrites functional ATen graphs in place; how many nodes had a bias. ``compare`` gives the seconds of a product with its
    bias and without; None where that is not known."""
    return sum(_changed(node, compare) for graph in graphs for node in list(graph.nodes) if _is_on_gpu(node))


def _is_on_gpu(node: fx.Node) -> bool:
    operand = node.args[0] if node.args else None
    value = operand.meta.get("val") if isinstance(operand, fx.Node) else None
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _changed(node: fx.Node, compare: Compare) -> bool:
    if node.target is aten.convolution.default and node.args[2] is not None and not _adds_bias(node):
        return _added(node)
    if node.target is aten.addmm.default and _is_read_by_points(node) and _is_faster_without(node, compare):
        return _added_to_product(node)
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


def _is_read_by_points(node: fx.Node) -> bool:
    """Whether the node adds a vector to a product in single precision, and loops read the sum, or views of it, and nobody else."""
    bias, value = node.args[0], node.meta["val"]
    assert isinstance(bias, fx.Node)
    if (
        node.kwargs
        or value.dtype is not torch.float32
        or bias.meta["val"].dim() != 1
        or bias.meta["val"].dtype != value.dtype
    ):
        return False
    readers = list(node.users)
    while readers:
        reader = readers.pop()
        if reader.target in (aten.view.default, aten._unsafe_view.default):
            readers += reader.users
        elif not isinstance(reader.target, torch_private.OpOverload) or torch.Tag.pointwise not in reader.target.tags:
            return False
    return bool(node.users)


def _is_faster_without(node: fx.Node, compare: Compare) -> bool:
    product = product_of(node)
    seconds = None if product is None else compare(product, node.meta["val"].device)
    return seconds is not None and seconds[1] < _GAIN * seconds[0]


def _added_to_product(node: fx.Node) -> bool:
    bias, *factors = node.args
    with node.graph.inserting_before(node):
        product = node.graph.call_function(aten.mm.default, tuple(factors))
        total = node.graph.call_function(aten.add.Tensor, (product, bias))
    product.meta, total.meta = dict(node.meta), dict(node.meta)
    node.replace_all_uses_with(total)
    node.graph.erase_node(node)
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
