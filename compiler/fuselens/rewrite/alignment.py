"""Products of matrices on a GPU whose rows do not begin where memory is aligned, on padded operands where that is faster.

The vendor's kernels for tensor cores load 16 bytes at a time. Of a matrix with 4093 columns they can not, and take several times as
long as for 4096. A pad is a copy, as is taking the part of the result that counts; loops do both where they make and read the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.ir.contracts.padding import ALIGNED, Product, lacking
from fuselens.record.report import Decision

from .find_attention import Maker

aten = torch.ops.aten
_DEVICE = "cuda"
_LEAST_WORK = 1 << 22  # multiplications
_GAIN = 0.9  # part of the time of the product as it is that the padded one must stay below


Compare = Callable[[Product, torch.device], tuple[float, float] | None]


def pad_products(module: fx.GraphModule, compare: Compare) -> list[Decision]:
    """Rewrites products of a functional ATen graph in place. ``compare`` gives the seconds of one as it is, and on padded operands,
    with the copies."""
    decisions: list[Decision] = []
    for node in list(module.graph.nodes):
        product = _product(node)
        seconds = None if product is None else compare(product, node.meta["val"].device)
        if product is None or seconds is None or seconds[1] >= _GAIN * seconds[0]:
            continue
        _pad(node, product)
        reason = f"on operands padded to {ALIGNED} bytes it takes {seconds[1] / seconds[0]:.2f} of the time here, with the copies"
        subject = f"{product.dtype} product {product.rows} x {product.columns} over {product.summed}"
        data = {"aten": seconds[0], "padded": seconds[1]}
        decisions.append(Decision("FL415", "padded", subject, reason, node.meta.get("span"), data))
    if decisions:
        module.graph.eliminate_dead_code()
    return decisions


def _product(node: fx.Node) -> Product | None:
    """The product of matrices on a GPU that a node is, where rows of one begin anywhere; None for others."""
    product = product_of(node)
    if product is None or not _on_tensor_cores(a := node.args[-2].meta["val"]):  # type: ignore[union-attr]
        return None
    high, summed, columns = product.rows, product.summed, product.columns
    wide = [high if product.turned[0] else summed, summed if product.turned[1] else columns, columns]
    if not any(lacking(n, a.dtype) for n in wide) or product.batch * high * summed * columns < _LEAST_WORK:
        return None
    return product


def product_of(node: fx.Node) -> Product | None:
    """The product of matrices that a node is; None for others, and where operands have gaps, or sizes that vary but for rows."""
    if node.target not in (aten.mm.default, aten.addmm.default, aten.bmm.default) or node.kwargs:
        return None
    operands: Any = node.args
    a, b = (n.meta["val"] for n in operands[-2:])
    bias = node.target is aten.addmm.default
    (*batch, rows, summed), columns = a.shape, b.shape[-1]
    if bias and list(map(str, operands[0].meta["val"].shape)) != [str(columns)]:
        return None
    turned = [_is_turned(t) for t in (a, b)]
    padded = [summed, columns, rows if turned[0] else 0]
    if None in turned or not all(type(n) is int for n in padded):
        return None
    many, high = (
        (torch_private.symint_hint(n) if isinstance(n, torch.SymInt) else n) or 0 for n in (*(batch or [1]), rows)
    )
    return Product(str(a.dtype).removeprefix("torch."), many, high, columns, summed, tuple(turned), bias)  # type: ignore[arg-type]


def _on_tensor_cores(value: torch.Tensor) -> bool:
    tf32 = value.dtype == torch.float32 and torch_private.float32_precision("cuda", "matmul") == "tf32"
    return bool(value.device.type == _DEVICE) and (tf32 or value.dtype in (torch.bfloat16, torch.float16))


def _is_turned(value: torch.Tensor) -> bool | None:
    """Whether matrices lie by columns; None where neither their rows nor their columns do without gaps."""
    (rows, columns), (step, stride) = value.shape[-2:], value.stride()[-2:]
    if (str(step), str(stride)) == (str(columns), "1"):
        return False
    return True if (str(step), str(stride)) == ("1", str(rows)) else None


def _pad(node: fx.Node, product: Product) -> None:
    """Each operand is padded as it lies, so that its rows are aligned there."""
    make, operands = Maker(node), list(node.args)
    dtype = node.meta["val"].dtype
    more = {"rows": lacking(product.rows, dtype) if product.turned[0] else 0}
    more |= {"columns": lacking(product.columns, dtype), "summed": lacking(product.summed, dtype)}
    sides = (("rows", "summed"), ("summed", "columns"))
    for k, (turned, (high, wide)) in enumerate(zip(product.turned, sides, strict=True), len(operands) - 2):
        operand: Any = operands[k]
        if not more[high] and not more[wide]:
            continue
        if turned:
            lying = make(aten.transpose.int, operand, -2, -1)
            padded = make(aten.constant_pad_nd.default, lying, [0, more[high], 0, more[wide]])
            operands[k] = make(aten.transpose.int, padded, -2, -1)
        else:
            operands[k] = make(aten.constant_pad_nd.default, operand, [0, more[wide], 0, more[high]])
    if product.bias and more["columns"]:
        operands[0] = make(aten.constant_pad_nd.default, operands[0], [0, more["columns"]])
    result = make(node.target, *operands)
    for dim, name in ((-2, "rows"), (-1, "columns")):
        if more[name]:
            result = make(aten.slice.Tensor, result, dim, 0, getattr(product, name))
    if result.target is aten.slice.Tensor:
        result = make(aten.clone.default, result, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(result)
