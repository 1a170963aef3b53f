"""About how long a step takes, from the bytes that it moves and the operations that it does: to say what a change costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import torch_private
from ..ir.card import KERNEL_SECONDS, OPERATIONS, OPERATIONS_TF32, PROCESSOR_OPERATIONS, Card
from ..ir.loops import Graph, Node
from ..record import limits
from ..record.report import Machine
from ..schedule.items import COSTS
from . import work


def _machine(name: str, bandwidth: float, products: Mapping[str, float], plain: float, start: float) -> Machine:
    line = ((1, bandwidth),)
    operations = {work.PLAIN: plain} | {op: plain / cost for op, cost in COSTS.items() if cost > 1}
    return Machine(name, line, line, line, operations | {f"product {d}": n for d, n in products.items()}, start)


PROCESSOR = _machine("a core", 20e9, dict.fromkeys(("float32", "float16", "bfloat16"), 100e9), 20e9, 2e-6)


def of_card(card: Card, name: str = "") -> Machine:
    """By what the maker says, and what was measured on cards of the kind."""
    one = {"float32": OPERATIONS[4], "tf32": OPERATIONS_TF32, "float16": OPERATIONS[2], "bfloat16": OPERATIONS[2]}
    products = {dtype: speed * card.processors for dtype, speed in one.items()}
    plain = PROCESSOR_OPERATIONS * card.processors
    return _machine(name or f"sm_{card.architecture}", card.bandwidth, products, plain, KERNEL_SECONDS)


def of_operator(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, machine: Machine) -> float:
    """Of an operator that runs by itself; a view takes none."""
    if torch_private.is_view(func):
        return 0.0
    return _seconds(work.of_operator(func, args, kwargs, result), machine)


def of_node(graph: Graph, node: Node, numbers: Mapping[str, int], machine: Machine) -> float:
    """Of a node of a graph, for the sizes in ``numbers``."""
    return _seconds(work.of_node(graph, node, numbers), machine)


def _seconds(amount: work.Amount, machine: Machine) -> float:
    return max(limits.seconds(amount.read, amount.written, amount.operations, machine).values())
