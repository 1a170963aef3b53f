"""What fusion knows about one loop: what it reads and writes, at which indexes, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sympy import Expr

from fuselens.ir.affine import Affine, integer_value, linear
from fuselens.ir.loops import ITEMSIZE, Buffer, Graph, Loop, Op, phases_of

# Rough cycles of one scalar operation in vector code; what is not named costs 1. A scan is never computed again: its
# value at one point takes all those before.
COSTS: dict[str, int] = {
    "div": 4, "sqrt": 5, "rsqrt": 5, "reciprocal": 4, "floordiv": 6, "truncdiv": 6, "mod": 8, "fmod": 8,
    "exp": 10, "exp2": 9, "expm1": 12, "log": 10, "log2": 10, "log10": 10, "log1p": 12, "sigmoid": 13,
    "tanh": 14, "erf": 14, "erfc": 16, "sin": 16, "cos": 16, "tan": 20, "asin": 18, "acos": 18, "atan": 18,
    "atan2": 22, "sinh": 14, "cosh": 14, "asinh": 18, "acosh": 18, "atanh": 18, "pow": 26, "lgamma": 40, "hypot": 8,
    "load": 1, "store": 0, "const": 0, "index": 1, "random": 20, "bounds": 3, "scan": 1000,
}  # fmt: skip


@dataclass(slots=True, eq=False)
class Item:
    """A loop, analysed. ``position`` is its place in the graph's order; ``storage`` what it writes."""

    loop: Loop
    position: int
    storage: str
    store: Op
    before: tuple[Op, ...]  # what runs per point of all axes
    after: tuple[Op, ...]  # what runs per point of the outer axes, behind the reduces
    loads: tuple[Op, ...]
    cost: int
    bytes: int  # of what it writes
    sizes: Mapping[str, Expr] = field(default_factory=dict)  # of all its axes, outer first
    scan: bool = False  # its reduction axes are those that scans run along

    @property
    def reduction(self) -> bool:
        """Whether it has one value per point of the outer axes."""
        return bool(self.loop.reduction) and not self.scan

    @property
    def update(self) -> str:
        """The kind of update, of a loop that changes elements at positions of its choice instead of writing all."""
        return self.store.update

    @property
    def limits(self) -> dict[str, Expr]:
        """Its positions that come from data, with the sizes that they are below."""
        return {o.name: o.args[1] for o in self.loop.body if o.op == "bounds"}

    @property
    def value(self) -> str:
        return self.store.args[2]

    @property
    def rounds(self) -> bool:
        """Whether the last cast must be kept when a value is forwarded: it is the user's own, or the value is a running
        logarithm, whose gradient subtracts one that was stored and exists by both being rounded."""
        return is_conversion(self.loop) or "logcumsumexp" in self.loop.origin

    def form(self, index: Expr) -> Affine | None:
        return linear(index, frozenset(self.sizes))


def is_conversion(loop: Loop) -> bool:
    """Whether the loop is a change of dtype that stands in the program: the roundings on both sides of it are eager's."""
    return "_to_copy" in loop.origin or "convert_element_type" in loop.origin


def repetitions(loop: Loop, storage: str) -> int:
    """How often a loop would compute an element of ``storage`` for each point of its own: a product with its sum written out
    reads many points of its operands, which other points of it read too. A few reads count as one."""
    reads = sum(o.op == "load" and o.args[0] == storage for o in loop.body)
    return reads if reads > 3 else 1


def cost_of(ops: Iterable[Op]) -> int:
    return sum(COSTS.get(o.op, 1) for o in ops)


def analyse(graph: Graph, loop: Loop, position: int) -> Item:
    phases = phases_of(loop)
    stores = [o for o in loop.body if o.op == "store"]
    if len(stores) != 1:
        raise ValueError(f"loop {loop.name} stores {len(stores)} times")
    before, after = (phases[0].body, phases[1].body) if len(phases) > 1 else (phases[0].body, ())  # pyright: ignore
    target = graph.buffers[loop.name]
    sizes = {a.name: a.size for a in (*loop.axes, *loop.reduction)}
    return Item(
        loop, position, target.owner, stores[0], before, after, tuple(o for o in loop.body if o.op == "load"),
        cost_of(loop.body), bytes_of(graph, target), sizes, loop.kind == "scan",
    )  # fmt: skip


def bytes_of(graph: Graph, buffer: Buffer) -> int:
    """Bytes of a buffer's elements at the example sizes."""
    total = ITEMSIZE[buffer.dtype]
    for size in buffer.sizes:
        total *= integer_value(size, graph.hints)
    return total


def points(graph: Graph, sizes: Iterable[Expr]) -> int:
    """Points of an iteration space at the example sizes."""
    total = 1
    for size in sizes:
        total *= integer_value(size, graph.hints)
    return total
