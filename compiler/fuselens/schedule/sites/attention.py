"""Calls of the vendor's attention that a kernel of ours could do as well: those of which only the result is wanted."""

from __future__ import annotations

import math
from typing import Any

import sympy

from fuselens.ir.loops import Attention, Axis, Buffer, Extern, Graph, Op, Ref

_FUSED = ("query", "key", "value", "attn_bias", "compute_log_sumexp", "dropout_p", "is_causal", "return_debug_mask")
_PARAMETERS = {
    "aten._scaled_dot_product_flash_attention.default": (*_FUSED[:3], *_FUSED[5:]),
    "aten._scaled_dot_product_efficient_attention.default": _FUSED[:7],
    "aten._scaled_dot_product_cudnn_attention.default": _FUSED,
}
_DTYPES = ("f32", "f16", "bf16")
WIDTH = 256


def attentions(graph: Graph) -> dict[str, Attention]:
    """By the name of the call, the node that computes the same."""
    return {n.name: made for n in graph.externs() if (made := _attention(graph, n)) is not None}


def attended(graph: Graph, instead: dict[str, Attention]) -> Graph:
    """``graph`` with these nodes in the place of calls."""
    return graph.replace(nodes=tuple(instead.get(n.name, n) if isinstance(n, Extern) else n for n in graph.nodes))


def _attention(graph: Graph, call: Extern) -> Attention | None:
    parameters = _PARAMETERS.get(call.target)
    if parameters is None or not call.outputs or not call.outputs[0] or any(call.outputs[1:]):
        return None
    given: dict[str, Any] = dict(zip(parameters, call.args, strict=False)) | dict(call.kwargs)
    if given.get("dropout_p", 0.0) or given.get("return_debug_mask") or any(
        not isinstance(given[n], Ref) for n in _FUSED[:3]
    ):  # fmt: skip
        return None
    query, key, value = operands = tuple(graph.buffers[given[n].name] for n in _FUSED[:3])
    out, bias = graph.buffers[call.outputs[0]], given.get("attn_bias")
    held = graph.buffers[bias.name] if isinstance(bias, Ref) else None
    read = (*operands, *(() if held is None else (held,)))
    if out.storage or any(b.dtype not in _DTYPES or len(b.sizes) != 4 for b in (out, *read)):
        return None
    if any(b.dtype != query.dtype for b in (out, *operands)) or not all(
        e.is_Integer for b in (out, *read) for e in (*b.sizes, *b.strides, b.offset)
    ):
        return None
    batch, heads, rows, width = map(int, query.sizes)
    _, groups, keys, across = map(int, value.sizes)
    if tuple(map(int, key.sizes)) != (batch, groups, keys, width) or value.sizes[0] != batch or not groups:
        return None
    if heads % groups or not all((batch, rows, keys)) or not all(0 < n <= WIDTH for n in (width, across)):
        return None
    causal = bool(given.get("is_causal"))
    if causal and (rows != keys or held is not None):  # where causes end elsewhere is said by no argument
        return None
    scale = given.get("scale")
    scale = 1 / math.sqrt(width) if scale is None else scale
    if not isinstance(scale, (int, float)):
        return None
    axes = tuple(Axis(f"i{k}", sympy.Integer(n)) for k, n in enumerate((batch, heads, rows, keys)))
    body, result = _scores(axes, float(scale), causal, held)
    node = Attention(
        f"attention_{call.outputs[0]}", "fuselens.attention.default", tuple(Ref(given[n].name) for n in _FUSED[:3]), (),
        call.outputs[:1], (), "", call.origin, call.spans, axes,
    )  # fmt: skip
    return node.with_body(body, result)


def _scores(axes: tuple[Axis, ...], scale: float, causal: bool, bias: Buffer | None) -> tuple[tuple[Op, ...], str]:
    """What becomes of ``score``, and its name."""
    ops: list[Op] = []

    def op(kind: str, *args: Any, dtype: str = "f32") -> str:
        ops.append(Op(f"t{len(ops)}", kind, args, dtype))
        return ops[-1].name

    result = "score" if scale == 1 else op("mul", "score", op("const", scale))
    row, key = (a.symbol for a in axes[2:])
    if causal:
        seen = op("le", op("index", key, dtype="i64"), op("index", row, dtype="i64"), dtype="bool")
        result = op("where", seen, result, op("const", -math.inf))
    if bias is not None:
        point = tuple(sympy.S.Zero if size == 1 else axis.symbol for axis, size in zip(axes, bias.sizes, strict=True))
        held = op("load", bias.owner, sympy.expand(bias.index(point)), dtype=bias.dtype)
        result = op("add", result, held if bias.dtype == "f32" else op("cast", held))
    return tuple(ops), result
