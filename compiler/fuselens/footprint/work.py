"""What kernels and operators move and do: bytes, and operations by their kind, as :class:`fuselens.record.report.Work` names them."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import torch_private
from ..codegen.traffic import bytes_moved
from ..inputs.structures import tensors_in
from ..ir.affine import integer_value
from ..ir.dtypes import DTYPES
from ..ir.loops import ITEMSIZE, Attention, Extern, Graph, Kernel, Node, Ref, extern_reads
from ..record.report import Work
from ..schedule.items import COSTS

PLAIN = "plain"  # an addition, and what takes as long
_FREE = frozenset(("load", "store", "const", "index", "cast", "bitcast"))  # beside what they move, and in a vector


@dataclass(frozen=True, slots=True)
class Amount:
    read: float = 0.0
    written: float = 0.0
    operations: Mapping[str, float] = field(default_factory=dict)


def of_graph(graph: Graph, phase: str) -> list[Work]:
    """Of the kernels and operators of an ordered graph, for its example sizes."""
    found = []
    for node in graph.nodes:
        if isinstance(node, (Kernel, Extern)):
            amount = of_node(graph, node, graph.hints)
            library = isinstance(node, Extern) and not isinstance(node, Attention)
            name = node.target.split(".")[1] if isinstance(node, Extern) and library else node.name
            found.append(
                Work(name, phase, int(amount.read), int(amount.written), dict(amount.operations), node.spans, library)
            )
    return found


def of_node(graph: Graph, node: Node, numbers: Mapping[str, int]) -> Amount:
    """Of a node of a graph, for the sizes in ``numbers``."""
    if isinstance(node, Kernel):
        read, written = (max(0, integer_value(n, numbers)) for n in bytes_moved(node, graph))
        return Amount(read, written, _of_kernel(node, numbers))
    if not isinstance(node, Extern):
        return Amount()

    def sizes(name: str) -> tuple[int, ...]:
        return tuple(integer_value(n, numbers) for n in graph.buffers[name].sizes)

    def moved(names: set[str]) -> float:
        return sum(functools.reduce(int.__mul__, sizes(n), ITEMSIZE[graph.buffers[n].dtype]) for n in names)

    def given(value: Any) -> Any:
        if isinstance(value, Ref):
            return sizes(value.name)
        if isinstance(value, (tuple, list)):
            return [given(v) for v in value]
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    read, written = set(extern_reads(node)), {*node.mutates, *(o for o in node.outputs if o)}
    packet: Any = functools.reduce(
        lambda found, part: getattr(found, part, None), node.target.split(".")[:2], torch.ops
    )
    outputs = [sizes(o) if o else None for o in node.outputs]
    args = tuple(given(a) for a in node.args)
    done = _operations(packet, args, {}, outputs[0] if len(outputs) == 1 else outputs)
    dtype = min((graph.buffers[n].dtype for n in read | written), key=lambda d: ITEMSIZE[d], default="f32")
    on_gpu = any(graph.buffers[n].device.startswith("cuda") for n in written)
    return Amount(moved(read), moved(written), _products(done, _precision(DTYPES[dtype], node.target, on_gpu)))


def of_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Amount:
    """Of an operator that runs by itself."""
    given = {id(t): t for t in tensors_in((args, kwargs))}
    made = {id(t): t for t in tensors_in(result) if id(t) not in given}
    read, written = (sum(t.numel() * t.element_size() for t in ts.values()) for ts in (given, made))
    first = next(iter((*given.values(), *made.values())), None)
    dtype, on_gpu = (torch.float32, False) if first is None else (first.dtype, first.is_cuda)
    done = _operations(func.overloadpacket, args, kwargs, result)
    return Amount(read, written, _products(done, _precision(dtype, str(func), on_gpu)))


def _of_kernel(kernel: Kernel, numbers: Mapping[str, int]) -> dict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for phase in kernel.phases:
        points = math.prod(max(0, integer_value(a.size, numbers)) for a in (*kernel.axes, *phase.axes))
        for op in phase.body:
            if op.op not in _FREE:
                found[op.op if COSTS.get(op.op, 1) > 1 else PLAIN] += points
    return dict(found)


def _products(done: float, precision: str) -> dict[str, float]:
    return {f"product {precision}": done} if done else {}


def _precision(dtype: torch.dtype, operator: str, on_gpu: bool) -> str:
    """What a product computes with: a dtype's name, or "tf32", by which GPUs may multiply numbers of float32."""
    name = str(dtype).removeprefix("torch.")
    if name != "float32" or not on_gpu:
        return name
    kind = "conv" if "conv" in operator else "matmul"
    return "tf32" if torch_private.float32_precision("cuda", kind) == "tf32" else name


def _operations(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float:
    """Of products, convolutions and attention, as torch counts them; 0 of others."""
    from torch.utils.flop_counter import flop_registry  # imports Triton, where there is one

    count = flop_registry.get(packet)
    name = getattr(packet, "__name__", "")
    try:
        if count is not None:
            return float(count(*args, **kwargs, out_val=result))
        if name == "_linear_pointwise":  # of oneDNN: x, weight, bias; or x, what is added, weight
            adds = args[2] is not None and len(_shape(args[2])) > 1
            return 2.0 * math.prod(_shape(args[0])) * _shape(args[2 if adds else 1])[0]
        if "attention" in name:
            query, key = (_shape(a) for a in args[:2])
            return 4.0 * math.prod(query) * key[-2] * (2.5 if "backward" in name else 1)
    except Exception:  # noqa: BLE001  a count is a convenience: arguments may be what it does not expect
        return 0.0
    return 0.0


def _shape(value: Any) -> Sequence[int]:
    return value.shape if isinstance(value, torch.Tensor) else value
