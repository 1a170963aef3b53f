"""Runs a loop-IR graph on real tensors: the oracle of lowering, fusion and code generation. Correct first, then fast.

A body is evaluated for all points at once: every value is a tensor that broadcasts to the axes of its phase. Loads and
stores go through flat views of storages, every index is checked against the storage's extent, and fresh memory is
filled with rubbish so that a read before a write shows. Phases run in order, all points of one before any of the next,
which equals the per-point order of the real kernels exactly when no point reads what another one writes: a program
that breaks that rule is refused by ``ir.verify``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch
from sympy import Expr
from torch import Tensor

from fuselens.ir import philox
from fuselens.ir.affine import INTEGER_FUNCTIONS
from fuselens.ir.loops import ITEMSIZE, Attention, Buffer, Extern, Graph, Kernel, Loop, Node, Op, Ref, phases_of
from fuselens.ir.ops import torch_meaning
from fuselens.ir.text import show_expression

TORCH_DTYPE: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64,
    "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool,
    "c64": torch.complex64, "c128": torch.complex128, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64,
    "f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "c32": torch.complex32,
}  # fmt: skip
_MEANING: dict[str, Callable[..., Any]] = torch_meaning()


class EvaluationError(RuntimeError):
    """The program did something the IR forbids on these inputs: node, op and rule are in the message."""


def _minimum(*values: Any) -> Any:
    return _fold(torch.minimum, min, values)


def _maximum(*values: Any) -> Any:
    return _fold(torch.maximum, max, values)


def _fold(tensors: Callable[..., Any], numbers: Callable[..., Any], values: tuple[Any, ...]) -> Any:
    out = values[0]
    for v in values[1:]:
        if isinstance(out, Tensor) or isinstance(v, Tensor):
            out = tensors(torch.as_tensor(out), torch.as_tensor(v))
        else:
            out = numbers(out, v)
    return out


_FUNCTIONS: dict[str, Callable[..., Any]] = {**INTEGER_FUNCTIONS, "Max": _maximum, "Min": _minimum}


def expression_value(e: Expr | int, values: dict[str, Any]) -> Any:
    """The value of an index or size expression; ``values`` maps symbol names to integers or int64 tensors."""
    if isinstance(e, int):
        return e
    if isinstance(e, sympy.Integer):
        return int(e)
    if isinstance(e, sympy.Symbol):
        return values[e.name]
    parts = [expression_value(a, values) for a in e.args]  # pyright: ignore[reportArgumentType]
    if isinstance(e, sympy.Add):
        return sum(parts[1:], parts[0])
    if isinstance(e, sympy.Mul):
        return math.prod(parts[1:], start=parts[0])
    if isinstance(e, sympy.Pow):
        return parts[0] ** parts[1]
    if isinstance(e, (sympy.Rational, sympy.Float)):
        return float(e)
    return _FUNCTIONS[type(e).__name__](*parts)


def resolve(target: str) -> Callable[..., Any]:
    """The operator overload that an extern call names, e.g. ``aten.mm.default``."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    return found


class Memory:
    """The storages of a run, as flat tensors, and the size symbols' values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.flat: dict[str, Tensor] = {}
        self.sizes: dict[str, int] = {}
        self.packed: dict[str, Tensor] = {}  # constants that only a library can read

    def bind(self, inputs: list[Any]) -> None:
        graph = self.graph
        if len(inputs) != len(graph.inputs):
            raise EvaluationError(f"{graph.name} takes {len(graph.inputs)} inputs, got {len(inputs)}")
        for name, (position, dimension) in graph.symbols.items():
            value = inputs[position]
            if dimension < 0:
                self.sizes[name] = int(value)
            else:
                self.sizes[name] = (*value.shape, *value.stride())[dimension]
        for name, value in (*zip(graph.inputs, inputs, strict=True), *graph.constants.items()):
            if name in graph.buffers:
                self._adopt(graph.buffers[name], value)
        for name in graph.overwritten():
            self.flat[name] = self.flat[name].clone()

    def _adopt(self, buffer: Buffer, tensor: Tensor) -> None:
        if tensor.layout != torch.strided:
            self.packed[buffer.name] = tensor
            return
        sizes, strides = self.geometry(buffer)
        actual = tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
        declared = tuple(s for s, n in zip(strides, sizes, strict=True) if n > 1)
        if tuple(tensor.shape) != sizes or (tensor.numel() and actual != declared):
            raise EvaluationError(f"input {buffer.name} is {tuple(tensor.shape)} with strides {tensor.stride()}, "
                                  f"the graph says {sizes} with {strides}")  # fmt: skip
        if tensor.dtype != TORCH_DTYPE[buffer.dtype]:
            raise EvaluationError(f"input {buffer.name} is {tensor.dtype}, the graph says {buffer.dtype}")
        self.flat[buffer.name] = tensor.as_strided((extent(sizes, strides),), (1,), tensor.storage_offset())

    def geometry(self, buffer: Buffer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self.value(s) for s in buffer.sizes), tuple(self.value(s) for s in buffer.strides)

    def value(self, e: Expr | int) -> int:
        return expression_value(e, self.sizes)

    def storage(self, owner: str) -> Tensor:
        """The flat elements of a storage; made on first use, from another's memory when the graph says so."""
        found = self.flat.get(owner)
        if found is not None:
            return found
        buffer = self.graph.buffers[owner]
        dtype = TORCH_DTYPE[buffer.dtype]
        sizes, strides = self.geometry(buffer)
        count = extent(sizes, strides) + self.value(buffer.offset)
        previous = self.graph.reuse.get(owner)
        if previous is None:
            flat = torch.empty(count, dtype=dtype)
            flat.fill_(math.nan if dtype.is_floating_point or dtype.is_complex else dtype == torch.bool or 77)
        else:
            size = count * ITEMSIZE[buffer.dtype]
            flat = self.storage(previous).view(torch.uint8)
            if flat.numel() < size:
                raise EvaluationError(f"{owner} takes over {previous}, which is {flat.numel()} bytes, needs {size}")
            flat = flat[:size].view(dtype)
        self.flat[owner] = flat
        return flat

    def elements(self, owner: str) -> Tensor:
        """The storage as loops see it: complex numbers are pairs of reals."""
        flat = self.storage(owner)
        return torch.view_as_real(flat).flatten() if flat.is_complex() else flat

    def tensor(self, name: str) -> Tensor:
        if name in self.packed:
            return self.packed[name]
        buffer = self.graph.buffers[name]
        sizes, strides = self.geometry(buffer)
        flat = self.storage(buffer.owner)
        return flat.as_strided(sizes, strides, flat.storage_offset() + self.value(buffer.offset))


def extent(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last of a strided region, both included; 0 when it is empty."""
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def _signed(tensor: Tensor) -> Tensor:
    """Wide unsigned integers by their bits: torch knows little of themselves."""
    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


class _Points:
    """Computes one phase for all points at once. ``values`` are those of its ops, by name."""

    def __init__(self, memory: Memory, where: str, outer: list[tuple[str, int]], inner: list[tuple[str, int]]) -> None:
        self.memory = memory
        self.where = where
        axes = outer + inner
        self.shape = tuple(n for _, n in axes)
        self.outer = len(outer)
        self.names: dict[str, Any] = dict(memory.sizes)
        for position, (name, size) in enumerate(axes):
            grid = [1] * len(axes)
            grid[position] = size
            self.names[name] = torch.arange(size).reshape(grid)
        self.values: dict[str, Any] = {}

    def run(self, body: Iterable[Op]) -> None:
        for op in body:
            self.values[op.name] = self._value(op)

    def _value(self, op: Op) -> Tensor | None:
        args, values = op.args, self.values
        match op.op:
            case "load":
                return self._load(op, args[0], args[1])
            case "store":
                return self._store(op, args[0], args[1], values[args[2]])
            case "reduce":
                return self._reduce(op, args[0], values[args[1]])
            case "scan":
                return self._scan(op, args[0], values[args[1]])
            case "const":
                return torch.tensor(args[0], dtype=TORCH_DTYPE[op.dtype])
            case "index":
                return self._position(args[0]).to(TORCH_DTYPE[op.dtype])
            case "random":
                return self._checked(
                    op, philox.words(values[args[0]], values[args[1]], args[2], self._position(args[3]))
                )
            case "bounds":
                return self._bounds(op, values[args[0]], args[1], args[2])
            case _:
                return self._apply(op, [values[a] for a in args])

    def _index(self, op: Op, index: Expr, storage: Tensor) -> Tensor:
        for name in (s.name for s in index.free_symbols):  # pyright: ignore[reportAttributeAccessIssue]
            if name.startswith("%"):
                self.names[name] = self.values[name[1:]]
        point = torch.as_tensor(expression_value(index, self.names), dtype=torch.int64)
        if point.numel() and (int(point.min()) < 0 or int(point.max()) >= storage.numel()) and 0 not in self.shape:
            raise EvaluationError(f"{self.where}: {op.name}: index {show_expression(index)} reaches "
                                  f"{int(point.min())}..{int(point.max())} of {storage.numel()} elements")  # fmt: skip
        return point

    def _load(self, op: Op, storage: str, index: Expr) -> Tensor:
        flat = self.memory.elements(storage)
        if 0 in self.shape:
            return torch.zeros(self.shape, dtype=TORCH_DTYPE[op.dtype])
        return self._checked(op, _signed(flat).take(self._index(op, index, flat)).view(flat.dtype))

    def _store(self, op: Op, storage: str, index: Expr, value: Tensor) -> None:
        flat = self.memory.elements(storage)
        if 0 in self.shape:
            return
        point = self._index(op, index, flat).expand(self.shape)
        if op.update:
            _update(flat, point.flatten(), value.expand(self.shape).flatten(), op.update)
        else:
            _signed(flat)[point] = _signed(value).expand(self.shape)

    def _reduce(self, op: Op, kind: str, value: Tensor) -> Tensor:
        full = value.expand(self.shape)
        kept = full.shape[: self.outer]
        count = math.prod(full.shape[self.outer :])
        return self._checked(op, _REDUCE[kind](full.reshape(*kept, count)))

    def _scan(self, op: Op, kind: str, value: Tensor) -> Tensor:
        full = value.expand(self.shape)
        kept = full.shape[: self.outer]
        flat = full.reshape(*kept, math.prod(full.shape[self.outer :]))
        return self._checked(op, _SCAN[kind](flat).reshape(self.shape))

    def _bounds(self, op: Op, value: Tensor, size: Expr, wrap: bool) -> Tensor:
        n = self.memory.value(size)
        position = torch.where(value < 0, value + n, value) if wrap else value
        if bool(((position < 0) | (position >= n)).any()) and 0 not in self.shape:
            raise IndexError(f"{self.where}: {op.name}: a position is not below {n}")
        return position

    def _position(self, expression: Expr) -> Tensor:
        for name in (s.name for s in expression.free_symbols):  # pyright: ignore[reportAttributeAccessIssue]
            if name.startswith("%"):
                self.names[name] = self.values[name[1:]]
        return torch.as_tensor(expression_value(expression, self.names), dtype=torch.int64)

    def _apply(self, op: Op, values: list[Tensor]) -> Tensor:
        if op.op == "cast":
            return values[0].to(TORCH_DTYPE[op.dtype])
        if op.op == "bitcast":
            return values[0].view(TORCH_DTYPE[op.dtype])
        if op.op == "where":  # of wide unsigned integers torch 2.11 has none
            return self._checked(op, torch.where(values[0], *map(_signed, values[1:])).view(values[1].dtype))
        return self._checked(op, _MEANING[op.op](*values))

    def _checked(self, op: Op, value: Tensor) -> Tensor:
        if value.dtype != TORCH_DTYPE[op.dtype]:
            raise EvaluationError(f"{self.where}: {op.name} ({op.op}) gives {value.dtype}, declared {op.dtype}")
        return value


def _update(flat: Tensor, point: Tensor, value: Tensor, kind: str) -> None:
    """Changes elements by values, in order."""
    if kind == "last":
        order = torch.full((flat.numel(),), -1).scatter_reduce_(0, point, torch.arange(point.numel()), "amax")
        changed = order >= 0
        flat[changed] = value[order[changed]]
        return
    wide = flat.float() if flat.dtype in (torch.float16, torch.bfloat16) else flat.to(
        torch.uint8 if flat.dtype == torch.bool else flat.dtype)  # fmt: skip
    name = {"max": "amax", "min": "amin"}.get(kind, kind)
    flat.copy_(wide.scatter_reduce(0, point, value.to(wide.dtype), name))


_REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda v: v.sum(-1, dtype=v.dtype),
    "prod": lambda v: v.prod(-1, dtype=v.dtype),
    "max": lambda v: v.amax(-1),
    "min": lambda v: v.amin(-1),
    "any": lambda v: v.any(-1),
    "all": lambda v: v.all(-1),
    "argmax": lambda v: v.argmax(-1),
    "argmin": lambda v: v.argmin(-1),
    "sumexp": lambda v: (v - v.amax(-1, keepdim=True)).exp().sum(-1),
}
_SCAN: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda v: v.cumsum(-1, dtype=v.dtype),
    "prod": lambda v: v.cumprod(-1, dtype=v.dtype),
    "max": lambda v: v.cummax(-1).values,
    "min": lambda v: v.cummin(-1).values,
    "logsumexp": lambda v: v.logcumsumexp(-1),
}


def _run_loops(node: Loop | Kernel, memory: Memory) -> None:
    outer = [(a.name, memory.value(a.size)) for a in node.axes]
    crossing: dict[str, Any] = {}
    for phase in phases_of(node):
        inner = [(a.name, memory.value(a.size)) for a in phase.axes]
        points = _Points(memory, node.name, outer, inner)
        # What crosses phases has one value per point of the outer axes: make it broadcast over this phase's own.
        for name, value in crossing.items():
            points.values[name] = value[(..., *(None,) * len(inner))] if value.ndim else value
        before = set(points.values)
        points.run(phase.body)
        reduced = {o.name for o in phase.body if o.op == "reduce"}
        crossing |= {
            name: value
            for name, value in points.values.items()
            if name not in before and value is not None and (name in reduced or not inner)
        }


def _run_extern(node: Extern, memory: Memory) -> None:
    def argument(value: Any) -> Any:
        if isinstance(value, Ref):
            return memory.tensor(value.name)
        if isinstance(value, Expr):
            return memory.value(value)
        if isinstance(value, tuple):
            return [argument(v) for v in value]
        return value

    results = resolve(node.target)(*map(argument, node.args), **{k: argument(v) for k, v in node.kwargs})
    made = list(results) if isinstance(results, (tuple, list)) else [results]
    for name, result in zip(node.outputs, made, strict=True):
        if name:
            declared = memory.graph.buffers[name]
            if result.dtype != TORCH_DTYPE[declared.dtype]:
                raise EvaluationError(f"{node.name}: {node.target} gives {result.dtype}, declared {declared.dtype}")
            memory.tensor(name).copy_(result)


def _run_attention(node: Attention, memory: Memory) -> None:
    query, key, value = (memory.tensor(n) for n in node.operands())
    group = query.shape[1] // key.shape[1]
    points = _Points(memory, node.name, [(a.name, memory.value(a.size)) for a in node.axes], [])
    wide = torch.float64  # what the kernel computes up to the order of its sums
    key, value = (t.to(wide).repeat_interleave(group, 1) for t in (key, value))
    points.values["score"] = (query.to(wide) @ key.mT).float()
    points.run(node.body)
    scores = points.values[node.result].to(wide).expand(points.shape)
    sink = points.values[node.sink].to(wide).expand(points.shape)[..., :1] if node.sink else None
    span = memory.value(node.span)
    made = [memory.tensor(o) for o in node.outputs]
    for k in range(node.splits):
        part = slice(k * span, min((k + 1) * span, scores.shape[3]))
        some = scores[..., part]
        top = some.amax(-1, keepdim=True) if some.shape[3] else some.new_full((*some.shape[:3], 1), -math.inf)
        if sink is not None and k == 0:
            top = torch.maximum(top, sink)
        level = torch.where(top == -math.inf, 0, top)
        weights = torch.exp(some - level)
        total = weights.sum(-1, keepdim=True)
        if sink is not None and k == 0:
            total = total + torch.exp(sink - level)
        mean = weights @ value[:, :, part]
        if node.splits == 1:
            made[0].copy_(mean / total if node.nan else torch.where(total == 0, 0, mean / total))
        else:
            for out, found in zip(made, (mean, top[..., 0], total[..., 0]), strict=True):
                out.select(3, k).copy_(found)


def evaluate(
    graph: Graph, inputs: list[Any], run: Callable[[Node, Memory], bool] = lambda node, memory: False
) -> list[Any]:
    """The outputs of ``graph`` on ``inputs`` (tensors, and integers where the graph takes them), in order.

    An output that is an input or a view of one shares its memory, as in the program. Inputs that the graph gives new
    values are written to. ``run`` may run nodes in another way: then it returns True. Raises :class:`EvaluationError`.
    """
    memory = Memory(graph)
    memory.bind(inputs)
    for node in graph.nodes:
        if run(node, memory):
            continue
        if isinstance(node, Attention):
            _run_attention(node, memory)
        elif isinstance(node, Extern):
            _run_extern(node, memory)
        else:
            _run_loops(node, memory)
    pending = [(w, v) for w, v in graph.writes.items() if graph.reuse.get(v) != w]
    values = [memory.tensor(v).clone() for _, v in pending]
    for (written, _), value in zip(pending, values, strict=True):
        memory.tensor(written).copy_(value)
    return [o if o is None else memory.tensor(o) if isinstance(o, str) else memory.value(o) for o in graph.outputs]
