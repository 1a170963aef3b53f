"""A program for a GPU that is not here, run on the CPU: its kernels by Triton's interpreter, all else by the interpreter of loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...codegen.triton.tools.interpret import Job, interpret
from ...ir.contracts.source import Source
from ...ir.evaluate import Memory, evaluate
from ...ir.loops import Graph, Node, symbol
from .guards import Guarded

_SECONDS = 3600  # for one kernel; whoever supervises the check ends it before

_ZONE = 1 << 16  # bytes around memory: a store without a mask writes what is left of a block


class OutOfBounds(Exception):
    """A kernel wrote to memory that is not its own."""


def call_of(graph: Graph, source: Source) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """The callable of a graph, as programs for the CPU have it: what it writes in place is no result."""

    def run_node(node: Node, memory: Memory) -> bool:
        info = source.kernel(node.name)
        if info is None:
            return False
        programs = info.launch["grid"]
        if not isinstance(programs, int):
            programs = int(programs.subs({symbol(name): size for name, size in memory.sizes.items()}))
        guarded = {a: Guarded.of(memory.storage(a), _ZONE) for a in info.arguments[: info.pointers]}
        sizes = {s: memory.sizes[s] for s in info.sizes}
        (after,) = interpret(
            [Job(source, node.name, {a: g.values for a, g in guarded.items()}, sizes, programs)], _SECONDS
        )
        for name, before in guarded.items():
            if where := before.damage(after[name]):
                raise OutOfBounds(f"`{node.name}` writes {where} the memory of `{name}`")
            memory.storage(name).copy_(after[name])
        return True

    return lambda inputs: tuple(evaluate(graph, list(inputs), run_node))
