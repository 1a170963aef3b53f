"""About how long a step takes, from the bytes that it moves and the operations that it does: to say what a change costs."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import torch_private
from ..codegen.traffic import bytes_moved
from ..inputs.structures import tensors_in
from ..ir.affine import integer_value
from ..ir.card import KERNEL_SECONDS, OPERATIONS, Card
from ..ir.loops import ITEMSIZE, Extern, Graph, Kernel, Node, Ref, extern_reads


@dataclass(frozen=True, slots=True)
class Machine:
    """``operations`` a second by bytes of a number, of products and convolutions; ``start`` is what a kernel takes at least."""

    bandwidth: float
    operations: Mapping[int, float]
    start: float

    def seconds(self, moved: float, done: float, itemsize: int) -> float:
        speed = self.operations[2 if itemsize <= 2 else 4]
        return max(moved / self.bandwidth, done / speed, self.start)


PROCESSOR = Machine(20e9, {2: 100e9, 4: 100e9}, 2e-6)  # a core: only ratios matter


def of_card(card: Card) -> Machine:
    return Machine(card.bandwidth, {size: n * card.processors for size, n in OPERATIONS.items()}, KERNEL_SECONDS)


def of_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, machine: Machine) -> float:
    """Of an operator that runs by itself; a view takes none."""
    if torch_private.is_view(func):
        return 0.0
    tensors = {id(t): t for t in tensors_in((args, kwargs, result))}
    moved = sum(t.numel() * t.element_size() for t in tensors.values())
    itemsize = next((t.element_size() for t in tensors.values()), 4)
    return machine.seconds(moved, _operations(func.overloadpacket, args, kwargs, result), itemsize)


def of_node(graph: Graph, node: Node, numbers: Mapping[str, int], machine: Machine) -> float:
    """Of a node of a graph, for the sizes in ``numbers``."""
    if isinstance(node, Kernel):
        moved = sum(max(0, integer_value(n, numbers)) for n in bytes_moved(node, graph))
        return machine.seconds(moved, 0, 4)
    if not isinstance(node, Extern):
        return machine.start

    def sizes(name: str) -> tuple[int, ...]:
        return tuple(integer_value(n, numbers) for n in graph.buffers[name].sizes)

    names = {*extern_reads(node), *(o for o in node.outputs if o)}
    moved = sum(functools.reduce(int.__mul__, sizes(n), ITEMSIZE[graph.buffers[n].dtype]) for n in names)
    itemsize = min((ITEMSIZE[graph.buffers[n].dtype] for n in names), default=4)
    packet: Any = functools.reduce(
        lambda found, part: getattr(found, part, None), node.target.split(".")[:2], torch.ops
    )

    def given(value: Any) -> Any:
        if isinstance(value, Ref):
            return sizes(value.name)
        if isinstance(value, (tuple, list)):
            return [given(v) for v in value]
        return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

    outputs = [sizes(o) if o else None for o in node.outputs]
    args = tuple(given(a) for a in node.args)
    done = _operations(packet, args, {}, outputs[0] if len(outputs) == 1 else outputs)
    return machine.seconds(moved, done, itemsize)


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
