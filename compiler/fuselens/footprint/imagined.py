"""The program of a compiled graph as a callable that allocates and computes nothing: a ledger hears what it would allocate.

It goes through the ordered nodes as the host program does: memory is there before the first node that writes it, those that take
it over included, and is freed after the last node that uses it. Inputs that the caller gives up die when they were read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..inputs.weightless import memory_of
from ..ir.affine import integer_value
from ..ir.dtypes import DTYPES
from ..ir.loops import ITEMSIZE, Extern, Graph, Node, extern_reads
from ..schedule.order import Lifetimes, storage_bytes
from . import costs
from .ledger import Ledger


class Imagined:
    """A tuple of inputs, or a list that is given up → outputs. ``ledger`` gives the one that hears now. ``floats`` are the positions of
    outputs that are Python's numbers; ``updates`` says whether the graph writes to parameters."""

    def __init__(
        self,
        graph: Graph,
        ledger: Callable[[], Ledger],
        phase: str,
        *,
        floats: frozenset[int],
        updates: bool,
        title: str,
    ) -> None:
        self.graph, self._ledger, self.phase = graph, ledger, phase
        self.floats, self.updates, self.title = floats, updates, title
        self.lifetimes = Lifetimes.of(graph)
        self.places = {name: position for position, name in enumerate(graph.inputs)}
        self._seconds: dict[tuple[int, ...], float] = {}

    @property
    def ledger(self) -> Ledger:
        return self._ledger()

    def __call__(self, inputs: Any) -> tuple[Any, ...]:
        with self.ledger.quiet():
            return self._run(inputs)

    def _run(self, inputs: Any) -> tuple[Any, ...]:
        graph, ledger, values = self.graph, self.ledger, list(inputs)
        given_up = type(inputs) is list
        if given_up:
            inputs.clear()
        numbers = {name: _number(values[position], dimension) for name, (position, dimension) in graph.symbols.items()}
        size = functools.partial(_size, numbers)
        phase = ledger.phase_of(self.phase, self.updates)
        held: dict[str, int] = {}
        for node, made, dead in self.lifetimes.steps:
            for root in made:
                count = storage_bytes(graph.buffers[root], numbers)
                held[root] = ledger.allocate(count, _title(node), node.spans, phase)
            if isinstance(node, Extern):
                self._scratch(node, size, phase)
            for root in dead:
                if root in held:
                    ledger.release(held.pop(root))
                elif given_up and root in self.places:
                    values[self.places[root]] = None
        ledger.seconds += self._time(numbers)
        ledger.graphs.append(self.title)
        storages: dict[str, Any] = {}
        outputs = tuple(self._output(k, o, values, held, storages, size) for k, o in enumerate(graph.outputs))
        for number in held.values():  # of what lives until the end, and is no output
            ledger.release(number)
        return outputs

    def _scratch(self, node: Extern, size: Callable[[Any], int], phase: str) -> None:
        def tensors(names: Iterable[str]) -> list[Any]:
            found = (self.graph.buffers[name] for name in names if name)
            return [(tuple(map(size, b.sizes)), tuple(map(size, b.strides)), ITEMSIZE[b.dtype]) for b in found]

        packet = (*node.target.split("."), "")[1]
        given, made = tensors(extern_reads(node)), tensors(node.outputs)
        self.ledger.scratch(packet, given, made, node.spans, phase, settles=True)

    def _time(self, numbers: Mapping[str, int]) -> float:
        key = tuple(numbers.values())
        if key not in self._seconds:
            self._seconds[key] = sum(
                costs.of_node(self.graph, node, numbers, self.ledger.machine) for node in self.graph.nodes
            )
        return self._seconds[key]

    def _output(
        self,
        k: int,
        output: Any,
        values: list[Any],
        held: dict[str, int],
        made: dict[str, Any],
        size: Callable[[Any], int],
    ) -> Any:
        graph = self.graph
        if k in self.floats:
            return 0.5
        if output is None:
            return None
        if not isinstance(output, str):
            return size(output)
        if output not in graph.buffers:
            return size(output)
        buffer, root = graph.buffers[output], self.lifetimes.roots[output]
        sizes, strides = tuple(map(size, buffer.sizes)), tuple(map(size, buffer.strides))
        base = values[self.places[root]] if root in self.places else graph.constants.get(root)
        dtype = DTYPES[buffer.dtype]
        if isinstance(base, torch.Tensor):
            if base.dtype == dtype:
                return base.as_strided(sizes, strides, int(base.storage_offset()) + size(buffer.offset))
            start = int(base.storage_offset()) * base.element_size() // dtype.itemsize + size(buffer.offset)
            return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), start, sizes, strides)  # type: ignore[call-overload]
        storage = self._storage(root, held, made, dtype)
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, size(buffer.offset), sizes, strides)  # type: ignore[call-overload]

    def _storage(self, root: str, held: dict[str, int], made: dict[str, Any], dtype: torch.dtype) -> Any:
        """The memory of a result: one for all that lie in it."""
        if root not in made:
            number = held.pop(root)
            made[root] = memory_of(self.ledger.blocks[number - 1].bytes, dtype)
            self.ledger.adopt(number, made[root])
        return made[root]


def _title(node: Node) -> str:
    """What readers know it by: an operator, or a kernel."""
    return "::".join(node.target.split(".")[:2]) if isinstance(node, Extern) else node.name


def _number(value: Any, dimension: int) -> Any:
    if dimension < 0:
        return value
    return value.shape[dimension] if dimension < value.dim() else value.stride(dimension - value.dim())


def _size(numbers: Mapping[str, int], expression: Any) -> int:
    if isinstance(expression, str):
        return numbers[expression]
    return expression if isinstance(expression, int) else integer_value(expression, numbers)
