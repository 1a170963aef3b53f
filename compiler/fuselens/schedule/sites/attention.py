"""Calls of the vendor's attention that a kernel of ours could do as well: those of which only the result is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _Call:
    """The buffers of a call that attends, and what else it is told. Without a ``scale`` it is that of the width."""

    query: Buffer
    key: Buffer
    value: Buffer
    bias: Buffer | None
    out: Buffer
    causal: bool
    scale: Any

    @property
    def operands(self) -> tuple[Buffer, ...]:
        return self.query, self.key, self.value

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.out, *self.operands, *(() if self.bias is None else (self.bias,)))


def _attention(graph: Graph, call: Extern) -> Attention | None:
    read = _read(graph, call)
    if read is None or not _is_plain(read):
        return None
    points = _points(read)
    # where causes end if rows and keys differ, or beside a bias, is said by no argument
    if points is None or (read.causal and (points[2] != points[3] or read.bias is not None)):
        return None
    scale = 1 / math.sqrt(int(read.query.sizes[3])) if read.scale is None else read.scale
    if not isinstance(scale, (int, float)):
        return None
    axes = tuple(Axis(f"i{k}", sympy.Integer(n)) for k, n in enumerate(points))
    body, result = _scores(axes, float(scale), read.causal, read.bias)
    node = Attention(
        f"attention_{call.outputs[0]}", "fuselens.attention.default", tuple(Ref(b.name) for b in read.operands), (),
        call.outputs[:1], (), "", call.origin, call.spans, axes,
    )  # fmt: skip
    return node.with_body(body, result)


def _read(graph: Graph, call: Extern) -> _Call | None:
    """``call`` if it attends, without dropout, and only its first result is wanted."""
    parameters = _PARAMETERS.get(call.target)
    if parameters is None or not call.outputs or not call.outputs[0] or any(call.outputs[1:]):
        return None
    given: dict[str, Any] = dict(zip(parameters, call.args, strict=False)) | dict(call.kwargs)
    operands = [given[n] for n in _FUSED[:3]]
    if given.get("dropout_p", 0.0) or given.get("return_debug_mask") or not all(isinstance(o, Ref) for o in operands):
        return None
    query, key, value = (graph.buffers[o.name] for o in operands)
    bias = given.get("attn_bias")
    held = graph.buffers[bias.name] if isinstance(bias, Ref) else None
    out = graph.buffers[call.outputs[0]]
    return _Call(query, key, value, held, out, bool(given.get("is_causal")), given.get("scale"))


def _is_plain(call: _Call) -> bool:
    """Whether the operands and the result have one dtype that our kernel has, and all buffers four dimensions of known sizes."""
    if call.out.storage or any(b.dtype != call.query.dtype for b in (call.out, *call.operands)):
        return False
    if any(b.dtype not in _DTYPES or len(b.sizes) != 4 for b in call.buffers):
        return False
    return all(e.is_Integer for b in call.buffers for e in (*b.sizes, *b.strides, b.offset))


def _points(call: _Call) -> tuple[int, int, int, int] | None:
    """Batches, heads, rows and keys, where the sizes of the operands fit together and the kernel takes them."""
    batch, heads, rows, width = map(int, call.query.sizes)
    batches, groups, keys, across = map(int, call.value.sizes)
    if tuple(map(int, call.key.sizes)) != (batch, groups, keys, width) or batches != batch:
        return None
    if not groups or heads % groups or not all((batch, rows, keys)) or not all(0 < n <= WIDTH for n in (width, across)):
        return None
    return batch, heads, rows, keys


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
