"""Loops over points as a function that other Triton programs call: a block of values in for each input, one out for each result.

The operations are those of a kernel. A function does not know where a program is: what depends on that is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr

from ...ir.contracts.source import Unsupported
from ...ir.loops import Graph, Kernel, Op, element
from ..operands import Value
from .kernels import module_text
from .operations import Operations
from .place import Place, Slot
from .scalar_ops import TYPES

_EIGHT_BITS = {"f8e4m3": "tl.float8e4nv", "f8e5m2": "tl.float8e5"}  # which Triton has, and kernels take for their bits
_ANYWHERE = Place((), ())


def point_function(graph: Graph, name: str, parameters: Sequence[str]) -> str:
    """The text of a Triton module whose function ``name`` computes ``graph``, fused, for a block of each input.

    Its ``parameters`` are cast to the inputs' dtypes; several results are a tuple. Raises Unsupported for what is no function of
    points.
    """
    for node in graph.nodes:
        if not isinstance(node, Kernel):
            raise Unsupported(f"{getattr(node, 'target', node.name)} is no operation on single elements")
    if graph.constants:
        raise Unsupported("it reads a tensor that is not an argument")
    values = _Values(graph)
    for buffer, parameter in zip(graph.inputs, parameters, strict=True):
        values.take(buffer, parameter)
    for kernel in graph.kernels():
        values.compute(kernel)
    values.out.put(f"return {', '.join(map(values.result, graph.outputs))}")
    body = values.out.text().split("\n", 1)[1]
    text = f"\n\n@triton.jit\ndef {name}({', '.join(parameters)}):\n{body}"
    return module_text(f"The function {name} of a PyTorch program. Written by fuselens.", text, values.needs.functions)


class _Values(Operations):
    """Operations whose loads and stores are of values that the caller has and is given."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph, Kernel("", (), ()), wide=False)
        self._held: dict[str, str] = {}  # by storage, the variable with its values

    def take(self, buffer: str, parameter: str) -> None:
        dtype = element(self.graph.buffers[buffer].dtype)
        if dtype not in TYPES:
            raise Unsupported(f"it takes values of {dtype}")
        bits = (
            f"tl.cast(tl.cast({parameter}, {_EIGHT_BITS[dtype]}), tl.uint8, bitcast=True)"
            if dtype in _EIGHT_BITS
            else ""
        )
        self.out.put(f"{parameter} = {bits or f'tl.cast({parameter}, {TYPES[dtype]})'}")
        self.names[buffer] = self._held[buffer] = parameter

    def result(self, buffer: object) -> str:
        if not isinstance(buffer, str):
            raise Unsupported("it returns what is no tensor")
        value, dtype = self._held[self.graph.buffers[buffer].owner], element(self.graph.buffers[buffer].dtype)
        return f"tl.cast({value}, {_EIGHT_BITS[dtype]}, bitcast=True)" if dtype in _EIGHT_BITS else value

    def compute(self, kernel: Kernel) -> None:
        self.kernel = kernel
        if kernel.kind != "pointwise" or len(kernel.axes) != 1:
            self._refuse("computes one element of several")
        for op in kernel.ops():
            self.op(op, _ANYWHERE)

    def _refuse(self, why: str) -> None:
        raise Unsupported(f"{', '.join(self.kernel.origins)} {why}")

    def _require_own(self, op: Op) -> None:
        """Raises Unsupported where an element is not the point's own."""
        if getattr(op.args[1], "name", None) != self.kernel.axes[0].name:
            self._refuse("reads or writes other elements than the point's own")

    def _load(self, op: Op, place: Place, condition: str = "", other: str = "0") -> None:
        self._require_own(op)
        self.slots[op.name] = Slot(Value(self._held[op.args[0]], op.dtype), True)

    def _store(self, op: Op, place: Place) -> None:
        self._require_own(op)
        name = self.claim(op.args[0])
        self.out.put(f"{name} = {self.text(op.args[2])}")
        self._held[op.args[0]] = name

    def _bounds(self, op: Op, place: Place) -> None:
        self._refuse("reads elements at positions that are values")

    def _position(self, expression: Expr, place: Place, dtype: str = "i64") -> str:
        self._refuse("depends on where an element is")
        raise AssertionError
