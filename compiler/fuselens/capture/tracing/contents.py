"""Small tensors whose numbers the program reads: sizes of pictures, lengths of texts, flags, tables of a schedule.

They hold integers or flags. Floats count where an object holds them, as tables; those that are given are data.

What such an input holds is guarded, and what is computed of it alone is computed here, once, on the tensors themselves. So
``grid.tolist()``, ``lengths.max().item()`` and ``repeat_interleave(x, counts)`` have numbers and sizes that are known, and the
graph goes on. When an input holds other numbers in a later call, the program is compiled once more, and what reads that input
breaks the graph from then on.

Nothing is known of an input whose numbers may have changed since the frame was entered: after a write to an argument. What the
graph makes and writes to itself is written to again.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import torch_private
from ..hook import _hook
from ..values.algebra import Constant, SequenceValue, SliceValue, TensorValue, Value

if TYPE_CHECKING:
    from .sources import Source
    from .tracer import Tracer

MOST_GUARDED = 64
"""Elements of an input whose numbers are guarded: a comparison of them takes about a microsecond."""
MOST_COMPUTED = 2**18
"""Elements of what is computed of them."""
MOST_WRITTEN = 2**12
"""Elements of a result that stands in the graph as numbers."""
_MOST_NODES = 1000
_BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_WHOLE = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


class _Holds:
    """A guard on the numbers of a tensor."""

    __slots__ = ("numbers",)
    otherwise = "it holds other numbers"

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __call__(self, tensor: torch.Tensor) -> bool:
        return numbers_of(tensor) == self.numbers


def numbers_of(tensor: torch.Tensor) -> Any:
    """The numbers of a tensor, floats as their bits, as a tuple of tuples; one number for a tensor without dimensions."""
    with torch_private.without_torch_function():
        bits = _BITS.get(tensor.dtype)
        return _frozen((tensor if bits is None else tensor.view(bits)).tolist())


def _frozen(numbers: Any) -> Any:
    return tuple(map(_frozen, numbers)) if type(numbers) is list else numbers


class Contents:
    """What one trace knows of the numbers in tensors. ``read`` are those of inputs, by source text."""

    def __init__(self) -> None:
        self.read: dict[str, Any] = {}
        self._values: dict[fx.Node, Any] = {}
        self._seen: fx.Node | None = None  # the last node that was looked at for writes
        self._writes = False  # a node up to there writes to memory
        self._writes_unseen = False  # so that nothing counts it

    def of(self, tracer: Tracer, value: Value) -> torch.Tensor | None:
        """What a tensor holds, where numbers of inputs that are guarded here decide it; else None."""
        if not isinstance(value, TensorValue) or not _may_be_known(tracer, value.node):
            return None
        found_needed = _needed(value.node)
        needed = self._with_writes(tracer, found_needed) if found_needed is not None else None
        if needed is None:
            return None
        given: dict[fx.Node, tuple[Source, torch.Tensor]] = {}
        for node in needed:
            if node.op == "placeholder":
                found = _given(tracer, node)
                if found is None or not self._is_steady(tracer, *found):
                    return None
                given[node] = found
        # what was written to since is made anew, and written to again
        values = {n: self._values[n] for n in needed if n in self._values and not _written(n)}
        for node in needed:
            if node not in values:
                values[node] = given[node][1] if node in given else _computed(node, values)
                if not _is_like(values[node], node.meta["val"]):
                    return None
        self._values |= {n: held for n, held in values.items() if not (_written(n) or torch_private.writes(n))}
        for source, tensor in given.values():
            self._guard(tracer, source, tensor)
        return values[value.node]

    def _with_writes(self, tracer: Tracer, needed: list[fx.Node]) -> list[fx.Node] | None:
        """The nodes, and those that have written to what these give, in order: they are run, too. None where an input may have been
        written to, or something of which no write is counted."""
        self._look_for_writes(tracer.graphs.current)
        inputs = tracer.graphs.inputs
        if self._writes_unseen or any(_may_alias(*inputs[i]) for i in tracer.graphs.written()):
            return None
        if self._writes and any(_written(n) < 0 for n in needed):
            return None
        found, new = dict.fromkeys(needed), needed
        while written := {key for n in new if _written(n) > 0 for key in _memory(n)}:
            new = []
            for node in tracer.graphs.current.nodes:
                writes = node not in found and torch_private.writes(node)
                if writes and any(not written.isdisjoint(_memory(n)) for n in node.all_input_nodes):
                    more = _needed(node)
                    if more is None:
                        return None
                    new += [n for n in more if n not in found]
                    found |= dict.fromkeys(more)
        if any(_written(n) > 0 for n in found if n.op == "placeholder"):
            return None
        return [n for n in tracer.graphs.current.nodes if n in found] if len(found) > len(needed) else needed

    def _look_for_writes(self, graph: fx.Graph) -> None:
        node = self._seen.next if self._seen is not None else next(iter(graph.nodes), None)
        while node is not None and node.op != "root":
            self._writes = self._writes or torch_private.writes(node)
            self._writes_unseen = self._writes_unseen or _writes_unseen(node)
            self._seen, node = node, node.next

    def _is_steady(self, tracer: Tracer, source: Source, tensor: torch.Tensor) -> bool:
        """Whether the input held the same numbers in earlier compilations, if there were any."""
        steady = tracer.variation is not None and tracer.variation.is_steady(source.text, numbers_of(tensor))
        return steady or tracer.takes_changes

    def _guard(self, tracer: Tracer, source: Source, tensor: torch.Tensor) -> None:
        if source.text not in self.read:
            numbers = self.read[source.text] = numbers_of(tensor)
            tracer.guard(source, _hook.CALL, _Holds(numbers), name="CONTENTS", text=f"{source} holds {tensor.tolist()}")


def number(tracer: Tracer, value: Value) -> Constant | None:
    """The number in a tensor with one element, where it is known."""
    held = tracer.contents.of(tracer, tracer.use(value))
    return Constant(held.item()) if held is not None and held.numel() == 1 else None


def index(tracer: Tracer, value: Value) -> Constant | None:
    """The index that a tensor stands for, where it is known."""
    value = tracer.use(value)
    known = number(tracer, value) if isinstance(value, TensorValue) and value.fake.dtype in _WHOLE else None
    return None if known is None else Constant(int(known.value))


def listed(tracer: Tracer, value: Value) -> Value | None:
    """What ``tolist`` gives for a tensor, where it is known."""
    held = tracer.contents.of(tracer, value)
    return _listed(held.tolist()) if held is not None and held.numel() <= MOST_WRITTEN else None


def _listed(numbers: Any) -> Value:
    return SequenceValue([_listed(n) for n in numbers], list) if type(numbers) is list else Constant(numbers)


def called(
    tracer: Tracer, kind: str, target: Any, args: tuple[Value, ...], kwargs: dict[str, Value], what: str
) -> Value | None:
    """The result of a call that needs numbers of its operands, where those are known; ``kind`` is fx's opcode."""
    changes = torch_private.mutates(kind, target, kwargs)
    whole = None if changes else _whole_result(tracer, kind, target, args, kwargs)
    if whole is not None:
        return whole
    settled = _settled(tracer, kind, target, args, kwargs, changes)
    return tracer.call(kind, target, *settled, what) if settled is not None else None


def _whole_result(
    tracer: Tracer, kind: str, target: Any, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> Value | None:
    """The result of a call all of whose operands are known, as numbers in the graph."""
    given = tuple(tracer.to_argument(a) for a in args), {k: tracer.to_argument(v) for k, v in kwargs.items()}
    nodes = list(dict.fromkeys(_nodes_in(given)))
    held = {n: tracer.contents.of(tracer, TensorValue(n)) for n in nodes}
    if not held or any(value is None for value in held.values()):
        return None
    result = _run(kind, target, *given, held)
    operands = {t.untyped_storage().data_ptr() for t in held.values() if t is not None}
    tensors = [t for t in _flat(result) if isinstance(t, torch.Tensor)]
    if sum(t.numel() for t in tensors) > MOST_WRITTEN or any(
        t.untyped_storage().data_ptr() in operands for t in tensors
    ):
        return None
    return _as_value(tracer, result)


def _as_value(tracer: Tracer, result: Any) -> Value | None:
    if type(result) in (bool, int, float):
        return Constant(result)
    if isinstance(result, (tuple, list)):
        items = [_as_value(tracer, r) for r in result]
        return None if any(i is None for i in items) else SequenceValue([i for i in items if i], type(result))
    if not isinstance(result, torch.Tensor) or result.dtype not in _WHOLE or result.device.type != "cpu":
        return None
    return _written_out(tracer, result)


def _written_out(tracer: Tracer, held: torch.Tensor) -> Value:
    """A tensor of these numbers, made in the graph."""
    options: dict[str, Value] = {"dtype": Constant(held.dtype), "device": Constant(torch.device("cpu"))}
    flat = _listed(held.flatten().tolist())
    made = tracer.call("call_function", torch.tensor, (flat,), options, "torch.tensor")
    if held.dim() == 1:
        return made
    return tracer.call("call_method", "reshape", (made, Constant(tuple(held.shape))), {}, "Tensor.reshape")


def _settled(
    tracer: Tracer, kind: str, target: Any, args: tuple[Value, ...], kwargs: dict[str, Value], changes: bool
) -> tuple[tuple[Value, ...], dict[str, Value]] | None:
    """The operands of a call with known numbers in place of tensors that hold them; None where there are none."""
    name = target if kind == "call_method" else getattr(target, "__name__", "")
    if name == "repeat_interleave":
        return _with_output_size(tracer, args, kwargs)
    found = _Settled(tracer, masks=not changes)
    if name.strip("_") in ("getitem", "setitem") and len(args) > 1:
        settled = args[0], found.index(args[1]), *args[2:]
        return (settled, kwargs) if found.changed else None
    if changes:
        return None
    settled = tuple(map(found, args)), {k: found(v) for k, v in kwargs.items()}
    return settled if found.changed else None


def _with_output_size(
    tracer: Tracer, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> tuple[tuple[Value, ...], dict[str, Value]] | None:
    """``repeat_interleave`` with the number of elements that there will be."""
    given = {**dict(zip(("input", "repeats", "dim"), args, strict=False)), **kwargs}
    repeats = tracer.use(given["repeats"] if "repeats" in given else given["input"])
    held = tracer.contents.of(tracer, repeats)
    if held is None or "output_size" in kwargs or held.dim() > 1 or (held < 0).any():
        return None
    total = int(held.sum())
    if "repeats" in given and held.numel() == 1:  # it stands for all
        repeated, dim = tracer.use(given["input"]), tracer.use(given.get("dim", Constant(None)))
        if not isinstance(repeated, TensorValue) or not isinstance(dim, Constant):
            return None
        size = repeated.fake.numel() if dim.value is None else repeated.fake.shape[dim.value]
        if type(size) is not int:
            return None
        total *= size
    return args, {**kwargs, "output_size": Constant(total)}


class _Settled:
    """Puts known numbers in place of tensors that hold one, and the places of true elements in that of known ``masks``."""

    def __init__(self, tracer: Tracer, *, masks: bool) -> None:
        self._tracer = tracer
        self._masks = masks
        self.changed = False

    def __call__(self, value: Value) -> Value:
        value = self._tracer.use(value)
        if isinstance(value, TensorValue):
            held = number(self._tracer, value) if value.fake.dtype in _WHOLE - {torch.bool} else None
            self.changed = self.changed or held is not None
            return held or value
        if isinstance(value, SequenceValue):
            return SequenceValue([self(v) for v in value.items], value.kind)
        if isinstance(value, SliceValue):
            return SliceValue([self(v) for v in value.parts])
        return value

    def index(self, value: Value) -> Value:
        """What stands between the brackets of a subscript."""
        value = self._tracer.use(value)
        items = [self._tracer.use(v) for v in value.items] if isinstance(value, SequenceValue) else [value]
        if isinstance(value, SequenceValue) and value.kind is not tuple:
            return value
        out: list[Value] = []
        for item in items:
            if isinstance(item, TensorValue) and item.fake.dim():
                out += self._places(item) if self._masks else [item]
            else:
                out.append(self(item) if isinstance(item, (TensorValue, SliceValue)) else item)
        return SequenceValue(out, tuple) if self.changed else value

    def _places(self, mask: TensorValue) -> list[Value]:
        held = self._tracer.contents.of(self._tracer, mask) if mask.fake.dtype in (torch.bool, torch.uint8) else None
        if held is None:
            return [mask]
        places = held.nonzero(as_tuple=True)
        if sum(p.numel() for p in places) > MOST_WRITTEN:
            return [mask]
        self.changed = True
        return [_written_out(self._tracer, p) for p in places]


# --- what is computed, and of what ---------------------------------------------------------------------------------


def _may_be_known(tracer: Tracer, node: fx.Node) -> bool:
    """Whether this trace guards numbers: not where they stay in the graph, or are read inside of another graph."""
    guards = tracer.guards_numbers and not tracer.takes_scalars
    return guards and not tracer.graphs.nested and node.graph is tracer.graphs.current


def _needed(node: fx.Node) -> list[fx.Node] | None:
    """The node and those that it is computed of, in order; None where they are too many, or of other kinds."""
    order: dict[fx.Node, None] = {}
    waiting: list[tuple[fx.Node, Iterator[fx.Node]]] = [(node, iter(node.all_input_nodes))]
    entered = {node}
    while waiting:
        at, operands = waiting[-1]
        if not _is_small(at) or len(entered) > _MOST_NODES:
            return None
        for operand in operands:
            if operand not in entered:
                entered.add(operand)
                waiting.append((operand, iter(operand.all_input_nodes)))
                break
        else:
            order[at] = None
            waiting.pop()
    return list(order)


def _is_small(node: fx.Node) -> bool:
    if node.op not in ("placeholder", "call_function", "call_method"):
        return False
    tensors = [t for t in _flat(node.meta["val"]) if t is not None]
    return all(
        isinstance(t, torch_private.FakeTensor)
        and t.device.type == "cpu"
        and all(type(n) is int for n in t.shape)
        and t.numel() <= MOST_COMPUTED
        for t in tensors
    )


def _given(tracer: Tracer, node: fx.Node) -> tuple[Source, torch.Tensor] | None:
    """An input and where it is found; None where its numbers are not guarded: those of numpy's arrays are data."""
    placeholders = (n for n in node.graph.nodes if n.op == "placeholder")
    position = next(i for i, n in enumerate(placeholders) if n is node)
    source, tensor = tracer.graphs.inputs[position]
    if type(tensor) is not torch.Tensor or not torch_private.is_plain(tensor) or source.kind == _hook.APPLIED:
        return None
    if source in tracer.graphs.drawn:
        return None
    held = tensor.dtype in _BITS and not (source.is_argument or tensor.requires_grad)
    small = tensor.numel() <= MOST_GUARDED and tensor.device.type == "cpu"
    return (source, tensor) if small and (held or tensor.dtype in _WHOLE) else None


def _written(node: fx.Node) -> int:
    """How often what the node gives was written to; -1 where that is not counted."""
    counts = [torch_private.times_written(t) for t in _flat(node.meta["val"]) if t is not None]
    return max(counts) if counts and max(counts) > 0 else min(counts, default=0)


def _memory(node: fx.Node) -> set[Any]:
    """What tells the memory of what the node gives from other memory."""
    return {torch_private.storage_key(t) for t in _flat(node.meta["val"]) if isinstance(t, torch.Tensor)}


def _may_alias(source: Source, tensor: Any) -> bool:
    """Whether a written input may be the memory of another in some call: guards do not tell. What holds other kinds of numbers,
    and is no argument, is a module's own."""
    return isinstance(tensor, torch.Tensor) and (tensor.dtype in _WHOLE or source.is_argument)


def _writes_unseen(node: fx.Node) -> bool:
    """Whether a node may write to an operand of which the fake tensor does not count it."""
    target = node.target
    if node.op != "call_function" or isinstance(target, _COUNTED) or torch_private.is_torch_operator(target):
        return False
    return torch_private.writes_operands(target) or not torch_private.has_schema(target)


_COUNTED = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, type)


def _computed(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    return _run(node.op, node.target, node.args, node.kwargs, values, torch_private.writes(node))


def _run(kind: str, target: Any, args: Any, kwargs: Any, values: dict[Any, Any], writes: bool = False) -> Any:
    """The result on real tensors, to which it may write; :data:`_REFUSED` where an operator does more than that, or fails."""
    args, kwargs = fx.map_arg((args, kwargs), values.__getitem__)
    try:
        with torch.no_grad(), torch_private.only_computes(writes):
            return getattr(args[0], target)(*args[1:], **kwargs) if kind == "call_method" else target(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the program meets it where it runs this itself
        return _REFUSED


_REFUSED = object()


def _is_like(found: Any, fake: Any) -> bool:
    """Whether a result is what tracing took it for."""
    made, thought = list(_flat(found)), list(_flat(fake))
    return bool(made) and len(made) == len(thought) and all(map(_alike, made, thought))


def _alike(found: Any, fake: Any) -> bool:
    if not isinstance(found, torch.Tensor) or not isinstance(fake, torch.Tensor):
        return found is fake is None  # of an assignment
    return (found.dtype, found.shape, found.device) == (fake.dtype, fake.shape, fake.device)


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _nodes_in(given: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(given, lambda n: found.append(n) or n)
    return found
