"""Computing once what depends on frozen tensors alone: parameters and buffers that stay as they are.

Operators whose operands are all frozen run here, and their results become constants of the graph; views stay, as they
cost nothing, and so do frozen tensors that are only read: they remain inputs, and nothing keeps them alive. A scale and
a shift per channel after a convolution or a matmul (a batch norm in evaluation) go into its weight and bias.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.record.report import Decision
from fuselens.rewrite.constants import constant

aten = torch.ops.aten
_SMALL = 1 << 16  # bytes that a constant may have however small its operands are
_AFFINE = {
    aten.mul.Tensor: operator.mul, aten.div.Tensor: operator.truediv, aten.add.Tensor: operator.add,
    aten.sub.Tensor: operator.sub,
}  # fmt: skip
_PRODUCTS = (aten.convolution.default, aten.addmm.default, aten.mm.default)


def freeze(module: fx.GraphModule, frozen: Mapping[int, torch.Tensor]) -> list[Decision]:
    """Folds what depends on the inputs ``frozen`` (by position) alone into constants of ``module``, in place."""
    with torch.no_grad():
        return _Freeze(module, frozen).run()


class _Freeze:
    def __init__(self, module: fx.GraphModule, frozen: Mapping[int, torch.Tensor]) -> None:
        self.module = module
        self.graph = module.graph
        placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self.values: dict[fx.Node, Any] = {placeholders[i]: t for i, t in frozen.items()}
        self.decisions: list[Decision] = []
        self.originals: dict[fx.Node, fx.Node] = {}  # what a product with other weights was at first
        output = next(n for n in reversed(self.graph.nodes) if n.op == "output")
        self.escaping: set[fx.Node] = set()
        for node in output.all_input_nodes:  # the caller may write to results, and to what they are views of
            self.escaping.add(node)
            while _is_view(node) and node.all_input_nodes:
                node = node.all_input_nodes[0]
                self.escaping.add(node)

    def run(self) -> list[Decision]:
        for node in list(self.graph.nodes):
            if self._folds(node):
                args, kwargs = fx.map_arg((node.args, node.kwargs), self.values.__getitem__)
                self.values[node] = node.target(*args, **kwargs)
            elif node.target in _AFFINE:
                self._into_product(node)
        self._drop_unused()
        for node in list(self.graph.nodes):
            if node in self.values and node.op == "call_function" and not _is_view(node):
                if any(user not in self.values or _is_view(user) for user in node.users):
                    value = self.values[node]
                    node.replace_all_uses_with(self._constant(node, value))
                    self._decide(node, value, "its operands are frozen: computed once")
        self._drop_unused()
        return self.decisions

    def _drop_unused(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            if not node.users and node in self.values and node.op in ("call_function", "get_attr"):
                if node.op == "get_attr":
                    delattr(self.module, str(node.target))
                self.graph.erase_node(node)

    def _folds(self, node: fx.Node) -> bool:
        if node.op != "call_function" or node in self.escaping or not node.all_input_nodes:
            return False
        if not torch_private.is_pure(node.target) or not all(n in self.values for n in node.all_input_nodes):
            return False
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or any(isinstance(s, torch.SymInt) for s in value.shape):
            return False
        operands = sum(_bytes(self.values[n]) for n in node.all_input_nodes)
        return _is_view(node) or value.numel() * value.dtype.itemsize <= max(operands, _SMALL)

    # --- affine maps after products

    def _into_product(self, node: fx.Node) -> None:
        """``conv(x, w, b) * c`` becomes ``conv(x, w * c, b * c)``, where ``c`` is one frozen number per channel."""
        product, other = self._factors(node)
        if product is None or not self._may_change(product):
            return
        made, result = product.meta["val"], node.meta["val"]
        convolution, value = product.target is aten.convolution.default, self.values[other]
        if not _is_per_channel(value, made, 1 if convolution else made.dim() - 1):
            return
        if len({made.dtype, value.dtype, result.dtype}) != 1 or not made.dtype.is_floating_point:
            return
        weight, bias = (self.values.get(n) for n in _weight_and_bias(product))  # type: ignore[arg-type]
        assert weight is not None
        channels = weight.shape[0 if convolution else 1]
        scale = value.reshape(-1).expand(channels)
        apply = _AFFINE[node.target]  # type: ignore[index]
        if node.target in (aten.mul.Tensor, aten.div.Tensor):
            weight = apply(weight, scale.view(-1, *[1] * (made.dim() - 1)) if convolution else scale)
            bias = None if bias is None else apply(bias, scale)
        else:
            bias = apply(torch.zeros_like(scale) if bias is None else bias.expand(channels), scale)
        self._replace(node, product, weight, bias)

    def _factors(self, node: fx.Node) -> tuple[fx.Node | None, Any]:
        """The product that ``node`` takes, and what is frozen beside it; no product where it takes something else."""
        if len(node.args) != 2 or node.kwargs:
            return None, None
        product, other = node.args
        if node.target in (aten.mul.Tensor, aten.add.Tensor) and other not in self.values:
            product, other = other, product
        if not isinstance(product, fx.Node) or not isinstance(other, fx.Node) or other not in self.values:
            return None, None
        return (product if product.target in _PRODUCTS else None), other

    def _may_change(self, product: fx.Node) -> bool:
        """Whether nothing but one map reads a product of a frozen weight and bias."""
        weight, bias = _weight_and_bias(product)
        if product.kwargs or len(product.users) != 1 or product in self.escaping or weight not in self.values:
            return False
        turned = product.target is aten.convolution.default and product.args[6]
        return not turned and (bias is None or bias in self.values)

    def _replace(self, node: fx.Node, product: fx.Node, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        old = _weight_and_bias(product)[0]
        assert isinstance(old, fx.Node)
        w = old if weight is self.values[old] else self._made(product, weight)
        b = None if bias is None else self._made(product, bias)
        if product.target is aten.convolution.default:
            target, args = product.target, (product.args[0], w, b, *product.args[3:])
        else:
            x = product.args[-2]
            target, args = (aten.mm.default, (x, w)) if b is None else (aten.addmm.default, (b, x, w))
        with self.graph.inserting_before(node):
            made = self.graph.call_function(target, args)  # type: ignore[arg-type]
        made.meta = {**product.meta, "val": node.meta["val"]}
        self.originals[made] = self.originals.get(product, product)
        node.replace_all_uses_with(made)
        if node in self.escaping:
            self.escaping.add(made)
        self._decide(node, weight, f"goes into the weight and bias of {self.originals[made].name}")
        self.graph.erase_node(node)
        self.graph.erase_node(product)

    # --- constants

    def _made(self, at: fx.Node, value: torch.Tensor) -> fx.Node:
        """A constant that is known here, so that a later map can change it again."""
        node = self._constant(at, value)
        self.values[node] = value
        return node

    def _constant(self, at: fx.Node, value: torch.Tensor) -> fx.Node:
        node = constant(self.module, at, value)
        node.meta = {k: v for k, v in at.meta.items() if k in ("span", "stack", "captured")}
        node.meta["val"] = at.meta["val"].new_empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return node

    def _decide(self, node: fx.Node, value: torch.Tensor, reason: str) -> None:
        self.decisions.append(
            Decision("FL414", "folded", node.name, reason, node.meta.get("span"), {"bytes": _bytes(value)})
        )


def _weight_and_bias(product: fx.Node) -> tuple[Any, Any]:
    """Those arguments of a product; None for a bias that there is not."""
    if product.target is aten.convolution.default:
        return product.args[1], product.args[2]
    if product.target is aten.addmm.default:
        return product.args[2], product.args[0]
    return product.args[1], None


def _is_per_channel(scale: torch.Tensor, made: torch.Tensor, channel: int) -> bool:
    """Whether ``scale`` has one number for all of ``made``, or one for each index of its dimension ``channel``."""
    across = [1] * (made.dim() - scale.dim()) + list(scale.shape)
    return scale.dim() <= made.dim() and all(n == 1 for d, n in enumerate(across) if d != channel)


def _bytes(value: torch.Tensor) -> int:
    return value.numel() * value.dtype.itemsize


def _is_view(node: fx.Node) -> bool:
    """Not ``_unsafe_view``: what it gives is a constant of its own, since nothing else has its operand."""
    return torch_private.shares_memory(node.target)
