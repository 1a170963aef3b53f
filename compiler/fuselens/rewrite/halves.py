"""Products and convolutions in half precision, computed in single precision where that is faster.

A processor without instructions for bfloat16 or float16 runs them in plain loops: at 10 GFLOP/s on Zen 3, convolutions at 3,
where its products of f32 matrices reach 80. Converting the operands takes a pass over each, which fuses with what made
them; the result is rounded once, as a value that kernels compute is. Frozen weights are converted once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.record.report import Decision
from fuselens.rewrite.constants import Constants

aten = torch.ops.aten
Product = tuple[str, int, int, int]  # form, rows, columns, summed
Compare = Callable[[Product, torch.dtype], Mapping[str, float] | None]
IsLoop = Callable[[int, int, int, tuple[bool, bool, bool]], Any]  # ``lowering.products.form``
_MATRICES = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_LEAST_ROWS = 8  # with fewer, converting a matrix costs as much as multiplying by it
_LEAST_ROWS_FROZEN = 4  # with fewer, reading a matrix of twice the bytes does


def multiply_in_single(
    module: fx.GraphModule, compare: Compare, gain: float, constants: Constants, is_loop: IsLoop
) -> list[Decision]:
    """Rewrites products of ``module`` in place that take less than ``gain`` of ATen's time with converted operands.
    ``compare`` gives the seconds of "aten" and "single"; small products that are loops of ours are left alone."""
    decisions: list[Decision] = []
    converted: dict[fx.Node, fx.Node] = {}
    for node in list(module.graph.nodes):
        found = _product(node, constants, is_loop)
        seconds = compare(*found) if found is not None else None
        if found is None or seconds is None or seconds["single"] >= gain * seconds["aten"]:
            continue
        (_, rows, columns, summed), dtype = found
        held = _rewrite(node, converted, constants)
        reason = f"computing in f32 takes {seconds['single'] / seconds['aten']:.2f} of the time here"
        reason += f"; its frozen weight is kept in f32 ({held} bytes)" if held else ""
        subject = f"{str(dtype).removeprefix('torch.')} product {rows} x {columns} over {summed}"
        decisions.append(
            Decision("FL415", "single", subject, reason, node.meta.get("span"), {**seconds, "bytes": held})
        )
    if decisions:
        module.graph.eliminate_dead_code()
    return decisions


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)


def _product(node: fx.Node, constants: Constants, is_loop: IsLoop) -> tuple[Product, torch.dtype] | None:
    """The node as a product of matrices in half precision on the CPU; a convolution as the one that it amounts to."""
    if node.target in _MATRICES:
        a, b = (n.meta["val"] for n in node.args[-2:])  # type: ignore[union-attr]
        batch, sizes = a.shape[:-2], (*a.shape[-2:], b.shape[-1])
    elif node.target in _CONVOLUTIONS:
        backward = node.target is aten.convolution_backward.default
        a, b = (n.meta["val"] for n in (node.args[0], node.args[2 if backward else 1]))  # type: ignore[union-attr]
        points = a if backward else node.meta["val"]
        batch, sizes = (), (points.shape[0] * math.prod(points.shape[2:]), math.prod(b.shape[1:]), points.shape[1])
    else:
        return None
    if not (_is_half(a) and a.dtype == b.dtype and a.device.type == "cpu"):
        return None
    rows, summed, columns, count = (_hint(s) for s in (*sizes, math.prod(batch)))
    if not rows or not summed or not columns or not count:
        return None
    if node.target in _MATRICES:
        frozen = constants.value(node.args[-1]) is not None
        fewest = rows if frozen else min(rows, columns)
        runs = (_is_one(a.stride(-1)), _is_one(b.stride(-2)), _is_one(b.stride(-1)))
        if fewest < (_LEAST_ROWS_FROZEN if frozen else _LEAST_ROWS) or is_loop(rows, summed, columns, runs):
            return None
    return ("forward", rows, columns, summed * count), a.dtype


def _is_one(stride: Any) -> bool:
    return type(stride) is int and stride == 1


def _hint(size: Any) -> int | None:
    return torch_private.symint_hint(size) if isinstance(size, torch.SymInt) else size


def _rewrite(node: fx.Node, converted: dict[fx.Node, fx.Node], constants: Constants) -> int:
    """Computes the node on converted operands; the bytes of constants that were made for it."""
    graph, held = node.graph, 0

    def convert(operand: fx.Node) -> fx.Node:
        nonlocal held
        value = operand.meta.get("val")
        if not _is_half(value):
            return operand
        if operand not in converted:
            known = constants.value(operand)
            if known is not None:
                made = constants.add(node, known.float(), operand)
                held += 4 * known.numel()
            else:
                with graph.inserting_before(node):
                    made = graph.call_function(aten._to_copy.default, (operand,), {"dtype": torch.float32})
                made.meta = {k: v for k, v in operand.meta.items() if k in ("span", "stack")}
            made.meta["val"] = aten._to_copy.default(value, dtype=torch.float32)
            converted[operand] = made
        return converted[operand]

    args, kwargs = fx.map_arg((node.args, node.kwargs), convert)
    whole = node.meta["val"]
    with graph.inserting_before(node):
        made = graph.create_node("call_function", node.target, args, kwargs)
    made.meta = dict(node.meta)
    if isinstance(whole, torch.Tensor):
        made.meta["val"] = aten._to_copy.default(whole, dtype=torch.float32)
        _replace(node, made)
        return held
    made.meta["val"] = tuple(v if v is None else aten._to_copy.default(v, dtype=torch.float32) for v in whole)
    for part in list(node.users):
        position = part.args[1]
        assert part.target is operator.getitem and isinstance(position, int)
        with graph.inserting_before(part):
            taken = graph.call_function(operator.getitem, (made, position))
        taken.meta = {**part.meta, "val": made.meta["val"][position]}
        _replace(part, taken)
    return held


def _replace(node: fx.Node, made: fx.Node) -> None:
    """Puts ``made``, rounded, in the place of ``node``."""
    dtype = node.meta["val"].dtype
    with node.graph.inserting_after(made):
        rounded = node.graph.call_function(aten._to_copy.default, (made,), {"dtype": dtype})
    rounded.meta = dict(node.meta)
    node.replace_all_uses_with(rounded)
