"""One trace: what it knows of the program's objects, and the calls of tensor operations that become a graph.

One :class:`Tracer` serves one frame and everything inlined into it. Its parts are objects of their own: ``graphs`` (what
is computed), ``effects`` (what is written), ``objects`` (what stands for what), ``torch_state`` (modes and contexts),
``exceptions``, and ``guards``. The tracer itself turns objects into values (:meth:`Tracer.use`) and torch calls into
nodes (:meth:`Tracer.call`), running each once on fake tensors to learn dtypes and shapes.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ... import torch_private
from ...config import Config
from ...ir.dtypes import short_name
from ...record.report import Shape, Span, Tensor
from .. import classify
from ..breaks import Break
from ..hook import _hook
from ..program import torch_settings
from ..program.overlays import Overlay
from ..values.algebra import (
    Constant,
    DictValue,
    GeneratorValue,
    Known,
    LaterText,
    Lazy,
    ObjectValue,
    OpaqueValue,
    SequenceValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from . import contents, fake_calls, graph_inputs, wrappers
from .effects import Effects, Exceptions
from .graphs import Graphs
from .sources import GuardProgram, Source
from .symbols import INTEGER, FloatCompared, Sizes, Variation
from .torch_state import TorchState
from .wrapping import CONSTANT_TYPES, Objects, shown, weakly, wrap

if TYPE_CHECKING:
    from ..machine import Machine


Place = Span | tuple[Any, Any] | None


class Tracer:
    """State of one capture. ``place`` is the line of the program that what happens now is recorded for: a span, or the instruction
    of which it is made when it is asked for."""

    def __init__(
        self,
        config: Config,
        globals_: dict[str, Any],
        variation: Variation | None = None,
        function_state: int = torch_private.ENABLED,
    ) -> None:
        self.config = config
        self.globals = globals_
        self.guards = GuardProgram()
        self.graphs = Graphs(self.guards)
        self.effects = Effects(self.graphs)
        self.exceptions = Exceptions()
        self.objects = Objects()
        self.contents = contents.Contents()
        self.logging_functions = torch_settings.logging_functions()
        self.random: Any = None  # the state of Python's random numbers, once the program has seeded them
        # (class, name, class after which) by ids → the classes, that which has the member, and where: guarded
        self.members: dict[tuple[int, str, int], tuple[type, type | None, Any, Source | None]] = {}
        self.torch_state = TorchState(config, self.guards, self.graphs, function_state)
        self.sizes: Sizes | None = None
        self.variation = variation  # None: every size and integer stays what it is
        self.fake_mode = torch_private.fake_mode()
        self.shapes: list[Shape] = []  # what assignments bound
        self.generators: list[GeneratorValue] = []
        self.root: Machine | None = None  # the outermost frame's
        self.steps = 0  # instructions run so far, in all frames
        self.told_line: tuple[str, int] | None = None  # the last that the log was told of
        self.takes_scalars = False  # a number taken from a tensor may stay in the graph
        self.guards_numbers = True  # else those of small tensors may be guarded
        self.takes_changes = False  # though they were others before
        self.overlay = Overlay()
        self.inlined: dict[int, types.CodeType] = {}  # code that was run, but for libraries', by id
        # what was read of modules and classes without a guard, by id of that and name: nothing changes it in a process
        self.taken: dict[tuple[int, str], tuple[Any, Any]] = {}
        self.constants: dict[int, tuple[Any, Value]] = {}  # tuples that are constants of code, held, by id
        self.imported: set[str] = set()  # modules that import statements found
        self.differs = ""  # what of the trace is another in each process, though all that is guarded be the same
        self.restored: set[int] = set()  # inputs that the graph writes to before it checks values
        self.place: Place = None  # of the instruction being executed, in user code

    def allow_symbols(self, axes: Mapping[str, Mapping[int, str]], *, keeps_data: bool = False) -> None:
        """From now on sizes and integers may be symbolic; ``axes`` as in :class:`Variation`. Those that only data decides stay
        in the graph where the configuration says so, and with ``keeps_data``."""
        self.takes_scalars = keeps_data or self.config.capture_scalar_outputs
        takes_shapes = keeps_data or self.config.capture_dynamic_output_shape_ops
        self.sizes = Sizes(axes, lambda: self.span, self.takes_scalars, takes_shapes)
        self.fake_mode = torch_private.fake_mode(self.sizes.env)

    def check(self, condition: Value, error: str, message: str) -> None:
        """A check in the graph: a condition that is false makes it raise, and the frame runs as it was written."""
        self.restore_written()
        if isinstance(condition, TensorValue) and condition.fake.device.type != "cpu":  # where it would end the process
            condition = self.call("call_method", "cpu", (condition,), {}, "a check of values")
        given = (condition, Constant(error), Constant(message))
        self.call("call_function", torch_private.check_values, given, {}, "a check of values", keep=True)

    def restore_written(self) -> None:
        """Where a check that is made now fails, what the graph has written so far is undone."""
        self.restored.update(self.graphs.written())

    def remember(self, variation: Variation) -> None:
        """Notes the sizes and integers of this compilation: those that differ at the next one become symbolic."""
        for source, given in self.graphs.inputs:
            if isinstance(given, int):
                variation.integers.setdefault(source.text, set()).add(given)
            elif isinstance(given, torch.Tensor) and not isinstance(given, torch.nn.Parameter):
                variation.sizes.setdefault(source.text, set()).add(tuple(given.shape))
        for text, value in self.objects.integers.items():
            variation.integers.setdefault(text, set()).add(value)
        for text, value in self.objects.floats.items():
            variation.floats.setdefault(text, set()).add(value)
        for text, numbers in self.contents.read.items():
            variation.contents.setdefault(text, set()).add(numbers)

    def is_needed_again(self, value: SymbolValue) -> bool:
        """Whether traces depended on a number of which this one is computed, each time on another: one more would, again. Graphs that
        must be whole are compiled for each."""
        if self.variation is None or not self.variation.needed or self.config.fullgraph:
            return False
        of = torch_private.symbols_of(value.node.meta["val"])
        return any(
            torch_private.raw_expression(symbol.node.meta["val"]) in of
            and len(needed := self.variation.needed.get(source.text, set())) > 1
            and torch_private.size_hint(symbol.node.meta["val"]) not in needed
            for source, symbol in self.objects.symbols.items()
        )

    def symbolic(self) -> dict[str, dict[int, Any]]:
        """The sizes and numbers of inputs that began as symbols, by source text and dimension."""
        if self.sizes is None:
            return {}
        found = {
            source.text: {d: size for d, size in enumerate(fake.shape) if torch_private.is_symbolic_number(size)}
            for source, fake, _ in self.sizes.tensors
        }
        numbers = {source.text: {INTEGER: value.node.meta["val"]} for source, value in self.objects.symbols.items()}
        return {text: dims for text, dims in (found | numbers).items() if dims}

    def varied(self, variation: Variation) -> dict[str, set[int]]:
        """Those that are symbols because they had other values before, and that still are."""
        found = {}
        for text, symbols in self.symbolic().items():
            values = {d: torch_private.number_hint(number) for d, number in symbols.items()}
            free = {d for d, number in symbols.items() if self.sizes is not None and self.sizes.is_free(number)}
            found[text] = free & variation.changed(text, values)
        return {text: dims for text, dims in found.items() if dims}

    def take(self, owner: Any, name: str, found: Any) -> Any:
        """``found``, which ``owner`` has under a name, and which is not guarded."""
        self.taken[id(owner), name] = owner, found
        return found

    def release(self) -> None:
        """Drops what refers back to the tracer, so that a capture leaves no reference cycles."""
        if self.sizes is not None:
            torch_private.stop_observing(self.sizes.env)  # graphs keep the environment, which must not keep the trace
        self.root = None
        self.generators.clear()
        self.exceptions.raised_at.clear()

    @property
    def now(self) -> int:
        """The step of the outermost frame that is being executed."""
        return self.root.steps - 1 if self.root is not None else 0

    @property
    def span(self) -> Span | None:
        """The line of the program that what happens now is recorded for."""
        place = self.place
        if type(place) is tuple:
            place = self.place = place[0].span(place[1])
        return place  # type: ignore[return-value]

    def remember_shape(self, name: str, span: Span | None, value: Value) -> None:
        """Records what an assignment to ``name`` bound, for inlay hints."""
        if span is not None and isinstance(value, TensorValue) and not name.startswith("__"):
            self.shapes.append(Shape(name, span, describe_tensor(value.fake, self.sizes)))

    # --- objects and guards --------------------------------------------------------------------------------

    def use(self, value: Value) -> Value:
        """The value itself, with the guards that looking at it needs."""
        if isinstance(value, Lazy):
            if value.realised is None:
                assert value.source is not None
                value.realised = wrap(self, value.value, value.source)
            return value.realised
        if isinstance(value, LaterText):
            raise value.refused
        return value

    def lazy(self, obj: Any, source: Source) -> Value:
        return Lazy(obj, source, self.span)

    def guard(self, source: Source, kind: int, *operands: Any, name: str, text: str) -> None:
        self.guards.check(source, kind, *operands, name=name, text=text, span=self.span)

    def guard_identity(self, source: Source, obj: Any) -> None:
        self.guard(source, _hook.IS, weakly(obj), name="IS", text=f"{source} is {shown(obj)}")

    def guard_type(self, source: Source, kind: type) -> None:
        self.guard(source, _hook.TYPE_IS, kind, name="TYPE", text=f"type({source}) is {kind.__qualname__}")

    def guard_same(self, source: Source, known: Value) -> None:
        """What is at ``source`` is the object that was found elsewhere."""
        if known.source is not None and known.source != source:
            node = self.guards.node(known.source)
            self.guard(source, _hook.SAME, node, name="SAME", text=f"{source} is {known.source}")

    def guard_different(self, *sources: Source) -> None:
        """The objects at ``sources`` are different ones."""
        if len(sources) > 1:
            text = f"{', '.join(map(str, sources))} are different objects"
            nodes = tuple(self.guards.node(s) for s in sources)
            self.guards.check_state(_hook.DISTINCT, nodes, name="DISTINCT", text=text, span=self.span)

    def guard_distinct(self) -> None:
        """What was written under one name was not read under another: written objects differ from those like them."""
        known, keys = self.objects.known.values(), self.objects.keys.values()
        assigned = (owner for owner, _ in self.effects.attributes.values())
        written = [*self.effects.mutated.values(), *(owner for owner in assigned if not isinstance(owner, Known))]
        for kind in dict.fromkeys(v.python_type for v in written):
            self.guard_different(*(v.source for v in known if v.source is not None and v.python_type is kind))
        for kind in dict.fromkeys(v.python_type for v in keys):
            alike = (v for v in keys if v.python_type is kind)
            self.guard_different(*(v.source for v in alike if v.source is not None))

    # --- tensor operations ---------------------------------------------------------------------------------

    def call(
        self,
        kind: str,
        target: Any,
        args: tuple[Value, ...],
        kwargs: dict[str, Value],
        what: str,
        *,
        keep: bool = False,
    ) -> Value:
        """Runs a torch callable on fake tensors and records it as a node; ``kind`` is fx's opcode.

        ``keep`` records the node even when it returns no tensor. Raises :class:`Break` where fake execution cannot go.
        """
        node_args, node_kwargs = self._arguments(kind, target, args, kwargs)
        if node_kwargs.get("requires_grad") is True and torch.is_grad_enabled() and self.graphs.nested:
            raise Break("FL104", what=what, why="a graph cannot return a new leaf that requires grad")
        changes = torch_private.mutates(kind, target, node_kwargs)
        tensors = _tensor_values(args, kwargs)
        if target in _OF_PAIRS and tensors:
            graph_inputs.guard_pairs(self, tensors[0], what)
        inputs = [v.fake for v in tensors if v.source is not None]
        before = [fake_calls.geometry(t) for t in inputs] if changes else []
        try:
            result = self._fake_result(kind, target, node_args, node_kwargs, what, changes=bool(before))
        except Break as found:
            known = contents.called(self, kind, target, args, kwargs, what) if found.code in _NEED_NUMBERS else None
            if known is None:
                raise
            return known
        after = [fake_calls.geometry(t) for t in inputs] if changes else []
        if (self.graphs.nested or not fake_calls.reshapes(kind, target)) and before != after:
            raise Break("FL110", what=what, why="it changes the shape or strides of an input")
        if target in _COMPARISONS and any(map(torch_private.is_ragged, fake_calls.fakes_of(node_args))):
            return Constant(bool(result))  # guards say which lengths are the same, and which are not
        if not keep and not changes and not fake_calls.holds_tensor(result):
            return _plain_result(result, what)
        node = self.graphs.add(kind, target, node_args, node_kwargs, result, self.span)
        self.graphs.operations += not isinstance(result, fake_calls.NUMBERS)
        same = (
            v for v in tensors if self.graphs.now(v).meta["val"] is result
        )  # in-place operators and identities return the very object
        found = next(same, None) if isinstance(result, torch.Tensor) else None
        return self.wrap_result(node, result, what) if found is None else found

    def _arguments(
        self, kind: str, target: Any, args: tuple[Value, ...], kwargs: dict[str, Value]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the node for a call."""
        node_args = tuple(self.to_argument(a) for a in args)
        node_kwargs = {k: self.to_argument(v) for k, v in kwargs.items()}
        if kind == "call_method" or classify.is_graph_callable(target):
            node_args = tuple(_dtype(a, target) for a in node_args)
            node_kwargs = {k: _dtype(v, target) for k, v in node_kwargs.items()}
        return node_args, node_kwargs

    def _fake_result(
        self, kind: str, target: Any, node_args: tuple[Any, ...], node_kwargs: dict[str, Any], what: str, changes: bool
    ) -> Any:
        """The result on fake tensors; ``changes`` says that inputs are written."""
        args, kwargs = fake_calls.fakes_of(node_args), fake_calls.fakes_of(node_kwargs)
        # an assignment to items writes to a part of its operand
        to_part = target is operator.setitem or (
            isinstance(target, torch_private.Operation) and target.name in _TO_ITEMS
        )
        whole = (changes or torch_private.augments(target)) and not to_part
        if whole and fake_calls.overlap_in_part(args):
            raise Break("FL107", what=what, why="it writes to memory of which another operand is a part")
        if fake_calls.leaves_memory(target, args, kwargs):
            raise Break("FL107", what=what, why="the view reaches beyond the memory of its operand")
        run = fake_calls.run if kwargs.get("out") is None else fake_calls.run_with_out
        return run(self.fake_mode, kind, target, args, kwargs, what)

    def run_fake(self, kind: str, target: Any, args: Any, kwargs: Any, what: str) -> Any:
        """The result of a call on fake tensors, which no graph records."""
        return fake_calls.run(self.fake_mode, kind, target, args, kwargs, what)

    def record(self, target: Any, args: tuple[Value, ...], what: str) -> tuple[fx.Node, Any]:
        """A node that calls ``target``, whatever it returns, and its result on fake tensors."""
        node_args = tuple(self.to_argument(a) for a in args)
        result = self.run_fake("call_function", target, fake_calls.fakes_of(node_args), {}, what)
        self.graphs.operations += 1
        return self.graphs.add("call_function", target, node_args, {}, result, self.span), result

    def wrap_result(self, node: fx.Node, result: Any, what: str) -> Value:
        """The value of what ``node`` returns."""
        if isinstance(result, torch.Tensor):
            if wrappers.is_made_of_plain_fakes(result):
                return wrappers.made(self, node)
            if not isinstance(result, torch_private.FakeTensor):
                raise Break("FL104", what=what, why="it returned a tensor that is not traced")
            return TensorValue(node)
        if isinstance(result, fake_calls.NUMBERS):
            return wrappers.number(self, node)
        if isinstance(result, (tuple, list)):
            items = [self._wrap_item(node, i, r, what) for i, r in enumerate(result)]
            return SequenceValue(items, type(result))
        return _plain_result(result, what)

    def _wrap_item(self, node: fx.Node, index: int, result: Any, what: str) -> Value:
        if not fake_calls.holds_tensor(result):
            return _plain_result(result, what)
        child = self.graphs.add("call_function", operator.getitem, (node, index), {}, result, self.span)
        return self.wrap_result(child, result, what)

    def are_arguments(self, values: list[Value]) -> bool:
        """Whether all the values may be arguments of a node; functions and objects may not."""
        for value in values:
            try:
                self.to_argument(value)
            except Break:
                return False
        return True

    def to_argument(self, value: Value) -> Any:
        """What stands for ``value`` in an fx node's arguments."""
        value = self.use(value)
        if isinstance(value, ObjectValue) and type(value.value) is torch.Generator:
            return graph_inputs.generator(self, value)
        if isinstance(value, (TensorValue, SymbolValue, OpaqueValue)):
            return self.graphs.local(self.graphs.now(value))
        if isinstance(value, Constant):
            return _number(value.value)
        if isinstance(value, SequenceValue):
            items = [self.to_argument(v) for v in value.items]
            return items if value.kind is list else tuple(items)
        if isinstance(value, SliceValue):
            return slice(*(self.to_argument(v) for v in value.parts))
        if isinstance(value, DictValue):
            return {k: self.to_argument(v) for k, v in value.items.items()}
        if isinstance(value, Known) and isinstance(value.value, (type, torch.dtype)):
            return value.value
        raise Break("FL104", what=f"a torch operation with {value.describe()}", why="the argument is not traced")


def specialise(value: SymbolValue) -> Any:
    """The number that ``value`` is now: the trace is valid for that one only from here on."""
    if torch_private.varying_floats(value.node.meta["val"]):
        raise FloatCompared("the trace depends on the value of a float")
    try:
        return torch_private.specialised(value.node.meta["val"])
    except Exception as e:
        if torch_private.needs_data(e):
            raise Break("FL102", what=value.describe()) from None
        raise


def describe_tensor(fake: torch.Tensor, sizes: Sizes | None = None) -> Tensor:
    """The plain record of a tensor's metadata; symbols by the names that the user gave them."""

    def show(size: Any) -> str:
        return str(size) if sizes is None else sizes.rename(str(size))

    return Tensor(
        dtype=short_name(fake.dtype),
        shape=tuple(show(s) for s in fake.shape),
        stride=tuple(show(s) for s in fake.stride()) if fake.layout is torch.strided else (),
        device=str(fake.device),
        requires_grad=fake.requires_grad,
    )


def _plain_result(result: Any, what: str) -> Value:
    """The value of a result that holds no tensors and no symbols."""
    if isinstance(result, torch.Size) or type(result) in (tuple, list):
        return SequenceValue([_plain_result(r, what) for r in result], type(result))
    if type(result) in CONSTANT_TYPES:
        return Constant(result)
    if isinstance(result, (torch.finfo, torch.iinfo)):
        return Known(result)
    raise Break("FL104", what=what, why=f"it returns a {type(result).__name__}")


def _tensor_values(args: tuple[Value, ...], kwargs: dict[str, Value]) -> list[TensorValue]:
    found: list[TensorValue] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Lazy) and value.realised is not None:
            value = value.realised
        if isinstance(value, TensorValue):
            found.append(value)
        elif isinstance(value, SequenceValue):
            found += _tensor_values(tuple(value.items), {})
    return found


_NEED_NUMBERS = ("FL102", "FL108")
_OF_PAIRS = (torch.view_as_complex, torch.ops.aten.view_as_complex.default)
_COMPARISONS = (operator.eq, operator.ne)
_TO_ITEMS = ("setitem", "__setitem__")
_DTYPES: dict[Any, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128,
}  # fmt: skip


def _dtype(value: Any, target: Any) -> Any:
    """The dtype that torch takes a class of Python's numbers for. ``Tensor.type`` takes classes of tensors."""
    return _DTYPES.get(value, value) if isinstance(value, type) and target != "type" else value


def _number(value: Any) -> Any:
    """A constant as an argument of a node: torch takes a number of numpy for one of Python."""
    if type(value) is slice:
        return slice(_number(value.start), _number(value.stop), _number(value.step))
    if type(value) not in classify.NUMPY_SCALARS:
        return value
    if isinstance(value.item(), (bool, complex)):
        raise Break(
            "FL104", what=f"a torch operation with {value!r}", why="such numbers of numpy are not what they seem"
        )
    return value.item()
