"""The graph under construction: inputs, guards, and calls of tensor operations on fake tensors.

One :class:`Tracer` serves one frame and everything inlined into it. It turns objects into tracked values
(:meth:`Tracer.wrap`), recording the guards that this relies on, and turns torch calls into graph nodes
(:meth:`Tracer.call`), running each once on fake tensors to learn dtypes and shapes.
"""

from __future__ import annotations

import enum
import inspect
import math
import operator
import re
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from ... import torch_private
from ...config import Config
from ...ir.dtypes import short_name
from ...record.report import Shape, Span, Tensor
from .. import classify
from ..breaks import Break, Raised
from ..frame.resuming import Place
from ..hook import _hook, tensor_layout
from ..rules import templates
from ..values.algebra import (
    CellValue,
    Constant,
    DequeValue,
    DictValue,
    FunctionSwitch,
    FunctionValue,
    GeneratorValue,
    IdentityKey,
    Known,
    Lazy,
    MethodValue,
    ObjectValue,
    OpaqueValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    TorchContext,
    Value,
    serials,
)
from . import sources as src
from .sources import GuardProgram, Source
from .symbols import LARGEST, FloatCompared, Sizes, SizesChanged, Variation

if TYPE_CHECKING:
    from ..machine import Machine

CONSTANT_TYPES: tuple[type, ...] = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range,
    torch.dtype, torch.device, torch.layout, torch.memory_format, *classify.NUMPY_SCALARS,
)  # fmt: skip
IMMUTABLE = (inspect.Signature, inspect.Parameter, re.Pattern, re.Match)
"""Library classes whose instances do not change."""
EQUALITY_GUARDED: tuple[type, ...] = (
    bool, int, float, complex, str, bytes, type(None), *classify.NUMPY_SCALARS,
)  # fmt: skip


class Scope:
    """A graph of its own inside the captured one: what a function transform, a branch or a loop's body runs.

    ``captured`` maps the nodes of the enclosing graph that it reads to the placeholders that stand for them.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.serial = next(serials)
        self.captured: dict[fx.Node, fx.Node] = {}
        self.transform = False  # torch.func runs it
        self.grad_mode_known = True  # False in a backward, which may be differentiated itself
        self._last: fx.Node | None = None

    def placeholder(self, name: str, fake: Any, span: Span | None) -> fx.Node:
        last = self._last
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before(_first(self.graph)):
            node = self.graph.placeholder(name)
        node.target = node.name  # the parameter's name in the generated code, which must not be another node's
        node.meta.update(val=fake, span=span)
        self._last = node
        return node


class Tracer:
    """State of one capture: ``graph`` grows, ``guards`` collect, ``shapes`` remember what assignments bound."""

    def __init__(
        self,
        config: Config,
        globals_: dict[str, Any],
        variation: Variation | None = None,
        function_state: int = torch_private.ENABLED,
    ) -> None:
        self.config = config
        self.globals = globals_
        self.graph = fx.Graph()  # the one that grows now; `scopes` has those around it
        self.scopes = [Scope(self.graph)]
        self.guards = GuardProgram()
        self.sizes: Sizes | None = None
        self.variation = variation  # None: every size and integer stays what it is
        self.fake_mode = torch_private.fake_mode()
        self.inputs: list[tuple[Source, Any]] = []  # tensors and symbolic integers
        self.layouts: dict[int, tuple[Any, Any]] = {}  # by id of an input's fake: its sizes and strides at first
        self.integers: dict[str, int] = {}  # those that were specialised from the start, by source text
        self.floats: dict[str, float] = {}
        self.symbols: dict[Source, SymbolValue] = {}
        self.modules: set[Source] = set()
        self.shapes: list[Shape] = []
        self.spans: dict[fx.Node, Span | None] = {}
        self.operations = 0
        self.mutated: dict[
            int, SequenceValue | DictValue | SetValue
        ] = {}  # existing containers whose contents changed, by value id
        self.attributes: dict[
            tuple[int, str], tuple[ObjectValue | TensorValue, Value]
        ] = {}  # assigned on objects, in order
        self.dressed: set[int] = set()  # ids of the tensors among those
        self.written_globals: dict[tuple[int, str], tuple[dict[str, Any], Value]] = {}  # by id of the globals, and name
        self.mutations = 0
        self.written_cells: dict[int, CellValue] = {}  # existing cells that were assigned, by value id
        self.raised_at: dict[
            int, tuple[int, Raised]
        ] = {}  # by id of the exception: the step at which it was raised first
        self.tracebacks: dict[
            int, tuple[ObjectValue, list[Place]]
        ] = {}  # by id of the exception, outermost frame first
        self.holders: dict[int, ObjectValue] = {}  # of what instances of subclasses of containers hold, by value id
        self.initialised: dict[int, tuple[Any, list[Value], dict[str, Value]]] = {}
        """By id of the exception: which C code was given which arguments, ``__new__`` (None) or an ``__init__``."""
        self.generators: list[GeneratorValue] = []
        self.root: Machine | None = None  # the outermost frame's
        self.steps = 0  # instructions run so far, in all frames
        self.generator_inputs: dict[int, fx.Node] = {}  # by id of an existing generator of random numbers
        self.arrays: dict[int, Value] = {}  # by id of a value that is an array: the tensor that shares its memory
        self.keys: dict[int, Value] = {}  # what was used as a key by identity, by id of its token
        self._objects: dict[int, Value] = {}
        self._keep: list[Any] = []  # ids above stay valid while these live
        self.span: Span | None = None  # of the instruction being executed, in user code
        self.autocast, self.autocast_active = torch_private.AutocastState(), torch_private.autocast_active()
        self.contexts: list[TorchContext] = []  # those entered now, from the outermost
        self.grad_enabled = torch.is_grad_enabled()  # where the trace ended
        self.function_state = function_state  # who handles torch functions: see torch_private.ENABLED
        self._function_state = torch_private.function_state_flags(function_state)
        nothing, count = src.constant(None, "torch"), torch_private.NUMBER_OF_MODES()
        at = [torch_private.mode_at(i) for i in range(count)]
        self.outer_modes: list[Value] = [self.lazy(mode(None), src.applied(mode, nothing)) for mode in at]
        self.function_modes = list(self.outer_modes)  # those that handle torch functions now, the innermost last
        self.ambient = _read(torch_private.AMBIENT)
        self.ambient_on_gpu = _read(torch_private.AMBIENT_ON_GPU)
        self.attention = _read(torch_private.ATTENTION)
        self.precision = torch_private.Float32Precision()

    def allow_symbols(self, axes: Mapping[str, Mapping[int, str]]) -> None:
        """From now on sizes and integers may be symbolic; ``axes`` as in :class:`Variation`."""
        self.sizes = Sizes(
            axes, lambda: self.span, self.config.capture_scalar_outputs, self.config.capture_dynamic_output_shape_ops
        )
        self.fake_mode = torch_private.fake_mode(self.sizes.env)

    @property
    def takes_scalars(self) -> bool:
        """Whether a number taken from a tensor may stay in the graph."""
        return self.sizes is not None and self.config.capture_scalar_outputs

    def remember(self, variation: Variation) -> None:
        """Notes the sizes and integers of this compilation: those that differ at the next one become symbolic."""
        for source, given in self.inputs:
            if isinstance(given, int):
                variation.integers.setdefault(source.text, set()).add(given)
            elif isinstance(given, torch.Tensor) and not isinstance(given, torch.nn.Parameter):
                variation.sizes.setdefault(source.text, set()).add(tuple(given.shape))
        for text, value in self.integers.items():
            variation.integers.setdefault(text, set()).add(value)
        for text, value in self.floats.items():
            variation.floats.setdefault(text, set()).add(value)

    # --- objects to values --------------------------------------------------------------------------------

    def release(self) -> None:
        """Drops what refers back to the tracer, so that a capture leaves no reference cycles."""
        if self.sizes is not None:
            torch_private.stop_observing(self.sizes.env)  # graphs keep the environment, which must not keep the trace
        self.root = None
        self.generators.clear()
        self.raised_at.clear()

    @property
    def now(self) -> int:
        """The step of the outermost frame that is being executed."""
        return self.root.steps - 1 if self.root is not None else 0

    def made(self, obj: Any, content: Value | None = None) -> ObjectValue:
        """The tracked value of an object made while tracing, for which ``obj`` stands."""
        value = ObjectValue(obj, None, content)
        self._keep.append(obj)
        if content is not None:
            self.holders[id(content)] = value
        return value

    def writes(self) -> bool:
        """Whether the graph writes to its inputs."""
        fakes = [n.meta["val"] for n in self.graph.nodes if n.op == "placeholder"]
        return any(torch_private.times_written(f) for f in fakes if isinstance(f, torch.Tensor))

    def attributes_of(self, owner: ObjectValue | TensorValue) -> list[tuple[str, Value]]:
        """What was assigned on an object while tracing, in order."""
        if isinstance(owner, TensorValue) and id(owner) not in self.dressed:
            return []
        return [(name, value) for (i, name), (_, value) in self.attributes.items() if i == id(owner.value)]

    def use(self, value: Value) -> Value:
        """The value itself, with the guards that looking at it needs."""
        if isinstance(value, Lazy):
            if value.realised is None:
                assert value.source is not None
                value.realised = self.wrap(value.value, value.source)
            return value.realised
        return value

    def lazy(self, obj: Any, source: Source) -> Value:
        return Lazy(obj, source, self.span)

    def guard(self, source: Source, kind: int, *operands: Any, name: str, text: str) -> None:
        self.guards.check(source, kind, *operands, name=name, text=text, span=self.span)

    def wrap(self, obj: Any, source: Source) -> Value:
        """The tracked value of an existing object that the frame can reach at ``source``; guards what it relies on."""
        kind = type(obj)
        if kind is int and self._varies(obj, source):
            return self._symbol(obj, source)
        if kind is float and self._float_varies(obj, source):
            return self._symbol(obj, source)
        if kind in EQUALITY_GUARDED:
            shown = hex(obj)[:40] if kind is int and obj.bit_length() > 64 else repr(obj)
            self.guard(source, _hook.EQUALS, obj, name="EQUALS", text=f"{source} == {shown}")
            return Constant(obj, source)
        if kind in CONSTANT_TYPES or issubclass(kind, enum.Enum):
            self.guard_identity(source, obj)
            return Constant(obj, source)
        known = self._objects.get(id(obj))
        if known is not None:
            if known.source is not None and known.source != source:
                self._same(source, known.source)
            return known
        value = self._wrap_new(obj, kind, source)
        self._objects[id(obj)] = value
        self._keep.append(obj)
        return value

    def _varies(self, value: int, source: Source) -> bool:
        """Whether the integer at ``source`` is a symbol. What hangs on an nn.Module is configuration, and is not."""
        if self.variation is None or self.config.dynamic is False or abs(value) > LARGEST:
            return False
        if not self.config.symbolic_module_integers and self.hangs_on_module(source):
            return False
        self.integers[source.text] = value
        return self.variation.integer(source, value, self.config.dynamic)

    def _float_varies(self, value: float, source: Source) -> bool:
        """As :meth:`_varies`, for a float: a learning rate under a scheduler."""
        if self.variation is None or self.config.dynamic is False or not math.isfinite(value):
            return False
        if self.hangs_on_module(source):
            return False
        self.floats[source.text] = value
        return self.variation.float(source, value)

    def hangs_on_module(self, source: Source) -> bool:
        """Whether what is at ``source`` is found through an nn.Module."""
        step: Source | None = source
        while step is not None:
            if step in self.modules:
                return True
            step = step.base
        return False

    def _symbol(self, value: float, source: Source) -> SymbolValue:
        """A placeholder for the integer or float at ``source``."""
        known = self.symbols.get(source)
        if known is not None:
            return known
        if self.sizes is None:
            raise SizesChanged
        self.guard_type(source, type(value))
        symbol = (
            self.sizes.integer(value, source, self.span) if isinstance(value, int) else self.sizes.float(value, source)
        )
        node = self._placeholder(value, source, symbol)
        made = self.symbols[source] = SymbolValue(node, source)
        return made

    def cell(self, cell: types.CellType, name: str, source: Source) -> CellValue:
        """The tracked value of an existing closure cell: one for each cell, however it is reached."""
        known = self._objects.get(id(cell))
        if isinstance(known, CellValue):
            if known.source is not None and known.source != source:
                self._same(source, known.source)
            return known
        made = CellValue(name, None, source, cell)
        self._objects[id(cell)] = made
        self._keep.append(cell)
        return made

    def _same(self, source: Source, other: Source) -> None:
        node = self.guards.node(other)
        self.guard(source, _hook.SAME, node, name="SAME", text=f"{source} is {other}")

    def guard_identity(self, source: Source, obj: Any) -> None:
        self.guard(source, _hook.IS, _weakly(obj), name="IS", text=f"{source} is {_shown(obj)}")

    def guard_type(self, source: Source, kind: type) -> None:
        self.guard(source, _hook.TYPE_IS, kind, name="TYPE", text=f"type({source}) is {kind.__qualname__}")

    def _wrap_new(self, obj: Any, kind: type, source: Source) -> Value:
        if issubclass(kind, torch.Tensor):  # not isinstance, which may run code of the class
            return self._wrap_tensor(obj, source)
        if kind in (tuple, list, torch.Size) or (kind.__bases__ == (tuple,) and hasattr(kind, "_fields")):
            self.guard_type(source, kind)
            return self.wrap_sequence(obj, kind, source)
        if kind in _DICTS:
            self.guard_type(source, kind)
            return self.wrap_dict(obj, kind, source) or ObjectValue(obj, source)
        if kind in (set, frozenset):
            self.guard_type(source, kind)
            return self.wrap_set(obj, kind, source) or ObjectValue(obj, source)
        if kind is deque:
            self.guard_type(source, kind)
            return self.wrap_deque(obj, source)
        if kind is types.FunctionType:
            self.guard_function(source, obj)
            return FunctionValue(obj, source)
        if kind is types.MethodType and type(obj.__func__) is types.FunctionType:
            self.guard_type(source, kind)
            function = self.wrap(obj.__func__, src.part(source, _hook.METHOD_FUNC, "__func__"))
            receiver = self.lazy(obj.__self__, src.part(source, _hook.METHOD_SELF, "__self__"))
            return MethodValue(function, receiver, source)
        if (
            issubclass(kind, (type, types.ModuleType))
            or kind in IMMUTABLE
            or classify.is_numpy_description(kind)
            or (classify.is_library_kind(kind))
        ):
            self.guard_identity(source, obj)
            return Known(obj, source)
        if kind in templates.KINDS:
            return templates.existing(self, obj, source)
        if kind is slice:
            self.guard_type(source, kind)
            parts = [self.wrap(getattr(obj, n), src.generic_attribute(source, n)) for n in ("start", "stop", "step")]
            known = all(isinstance(p, Constant) for p in parts)
            return Constant(obj, source) if known else SliceValue(parts, source)
        self.guard_type(source, kind)
        if issubclass(kind, torch.nn.Module):
            self.modules.add(source)
        return ObjectValue(obj, source)

    def wrap_sequence(self, obj: Any, kind: type, source: Source) -> SequenceValue:
        """The items of a list or tuple (or an instance of a subclass), as one of ``kind``."""
        self.guard(source, _hook.LENGTH_IS, len(obj), name="LENGTH", text=f"len({source}) == {len(obj)}")
        return SequenceValue([self.lazy(v, src.item(source, i)) for i, v in enumerate(obj)], kind, source)

    def wrap_deque(self, obj: Any, source: Source) -> DequeValue:
        self.guard(source, _hook.LENGTH_IS, len(obj), name="LENGTH", text=f"len({source}) == {len(obj)}")
        limit = src.generic_attribute(source, "maxlen")
        self.guard(limit, _hook.EQUALS, obj.maxlen, name="EQUALS", text=f"{limit} == {obj.maxlen}")
        held = src.applied(tuple, source)
        return DequeValue([self.lazy(v, src.item(held, i)) for i, v in enumerate(obj)], obj.maxlen, source)

    def wrap_dict(self, obj: Any, kind: type, source: Source) -> DictValue | None:
        """The items of a dictionary (or an instance of a subclass), as one of ``kind``; None if a key is not trackable.

        A dictionary whose keys are not all constants is read by position.
        """
        keys = tuple(kind.keys(obj))
        if not all(map(_is_trackable_key, keys)):
            return None
        if all(map(_is_constant_key, keys)):
            self.guard(source, _hook.DICT_KEYS_ARE, keys, name="KEYS", text=_text_of_keys(source, keys))
            items = {k: self.lazy(dict.__getitem__(obj, k), src.dict_item(source, k)) for k in keys}
        else:
            held = src.applied(_values_of, source)
            items = {
                k: self.lazy(v, src.item(held, i))
                for i, (k, v) in enumerate(zip(self._wrap_keys(keys, source), kind.values(obj), strict=True))
            }
        factory = None
        if kind is defaultdict:
            factory = self.wrap(obj.default_factory, src.generic_attribute(source, "default_factory"))
        return DictValue(items, kind, source, factory)

    def wrap_set(self, obj: Any, kind: type, source: Source) -> SetValue | None:
        """The elements of a set (or an instance of a subclass), as one of ``kind``; None if one is not trackable."""
        elements = tuple(obj)
        if not all(map(_is_trackable_key, elements)):
            return None
        if all(map(_is_constant_key, elements)):
            held = src.applied(tuple, source)
            self.guard(held, _hook.EQUALS, elements, name="EQUALS", text=f"{held} == {elements!r}"[:500])
            return SetValue(elements, kind, source)
        return SetValue(self._wrap_keys(elements, source), kind, source)

    def _wrap_keys(self, keys: tuple[Any, ...], source: Source) -> list[Any]:
        """What stands for the keys of an existing dictionary or the elements of a set, in its order."""
        self.guard(source, _hook.LENGTH_IS, len(keys), name="LENGTH", text=f"len({source}) == {len(keys)}")
        held = src.applied(tuple, source)
        return [self._wrap_key(k, src.item(held, i)) for i, k in enumerate(keys)]

    def _wrap_key(self, key: Any, source: Source) -> Any:
        value = self.wrap(key, source)
        if isinstance(value, (Constant, Known)):
            return value.value
        if isinstance(value, SequenceValue):
            return tuple(self._wrap_key(k, src.item(source, i)) for i, k in enumerate(key))
        if isinstance(value, FunctionValue):
            return self.identity_key(value.function, value)
        return self.identity_key(value.value if isinstance(value, ObjectValue) else value, value)

    def guard_function(self, source: Source, function: types.FunctionType) -> None:
        code = src.part(source, _hook.FUNC_CODE, "__code__")
        self.guard_type(source, types.FunctionType)
        name = function.__qualname__
        self.guard(code, _hook.IS, function.__code__, name="CODE", text=f"{source}.__code__ is that of {name}")

    def guard_autocast(self) -> None:
        """Autocast is on and off, and casts to what it casts to, as when the frame began."""
        text = str(self.autocast)
        self.guards.check_state(_hook.GLOBAL_CALL, self.autocast, name="AUTOCAST", text=text, span=None)

    def leave_contexts(self) -> None:
        """Ends what the program is in the middle of, in the trace and in the graph; code after the graph goes back in."""
        self.grad_enabled = torch.is_grad_enabled()
        for context in reversed(self.contexts):
            if isinstance(context, FunctionSwitch):
                continue
            self.exit_context(context)

    def exit_context(self, context: TorchContext) -> None:
        """Leaves ``context`` in the trace and in the graph."""
        torch_private.exit_context(context.real)
        node = self.graph.call_function(torch_private.exit_context, (context.node,))
        node.meta.update(val=None, span=self.span)

    def guard_ambient(self) -> None:
        """Default dtype, inference mode, autocast and modes are as they are now."""
        if self.autocast_active:
            self.guard_autocast()
        if self.config.mode.startswith("max-autotune"):
            self.guards.check_state(
                _hook.GLOBAL_CALL, self.precision, name="PRECISION", text=str(self.precision), span=None
            )
        with torch_private.without_torch_function():
            on_gpu = any(isinstance(given, torch.Tensor) and given.is_cuda for _, given in self.inputs)
        attends = any(n.target in torch_private.ATTENDS for n in self.graph.nodes)
        states = self.ambient | (self.ambient_on_gpu if on_gpu else {}) | (self.attention if attends else {})
        for what, state in states.items():
            self.guards.check_state(_hook.STATE, state, name="STATE", text=f"{what} is {state[1]}", span=None)
        holder, key = torch_private.DUAL_LEVEL
        level = src.dict_item(src.constant(holder, "torch.autograd.forward_ad"), key, "the level of forward-mode AD")
        self.guard(level, _hook.EQUALS, holder[key], name="EQUALS", text=f"{level} is {holder[key]}")

    def guard_function_state(self) -> None:
        """Who handles torch functions is as it was when the frame began."""
        text = "whether __torch_function__ is asked is as it was"
        for flag in self._function_state:
            self.guards.check_state(_hook.STATE, flag, name="STATE", text=text, span=None)

    def guard_different(self, *sources: Source) -> None:
        """The objects at ``sources`` are different ones."""
        if len(sources) > 1:
            text = f"{', '.join(map(str, sources))} are different objects"
            nodes = tuple(self.guards.node(s) for s in sources)
            self.guards.check_state(_hook.DISTINCT, nodes, name="DISTINCT", text=text, span=self.span)

    def guard_distinct(self) -> None:
        """What was written under one name was not read under another: written objects differ from those like them."""
        written = [*self.mutated.values(), *(owner for owner, _ in self.attributes.values())]
        for kind in dict.fromkeys(v.python_type for v in written):
            alike = [v.source for v in self._objects.values() if v.source is not None and v.python_type is kind]
            self.guard_different(*alike)
        for kind in dict.fromkeys(v.python_type for v in self.keys.values()):
            keys = (v for v in self.keys.values() if v.python_type is kind)
            self.guard_different(*(v.source for v in keys if v.source is not None))

    def identity_key(self, token: Any, value: Value) -> IdentityKey:
        """What stands for an object as a dictionary key; objects that were looked up so are guarded to be different."""
        self.keys[id(token)] = value
        self._keep.append(token)
        return IdentityKey(token, value)

    def _wrap_tensor(self, obj: torch.Tensor, source: Source) -> Value:
        if not torch_private.is_plain(obj):
            raise Break(
                "FL105", what=f"`{source}` is a {type(obj).__name__} that is not a plain strided tensor",
                why="tensor subclasses and special layouts are not traced",
            )  # fmt: skip
        dims = {} if self.variation is None else self.variation.dims(source, obj, self.config.dynamic)
        promised = self.variation is not None and torch_private.size_marks(obj) is not None
        if self.sizes is None and (dims or promised):
            raise SizesChanged
        self._guard_marks(obj, source)
        spec = tensor_layout.spec(obj, frozenset(dims))
        shape = ", ".join("*" if d in dims else str(s) for d, s in enumerate(obj.shape))
        dtype = str(obj.dtype).removeprefix("torch.")
        text = f"{source}: {dtype}[{shape}] on {obj.device}"
        text += "" if dims else f", strides {tuple(obj.stride())}"
        text += ", requires grad" if obj.requires_grad else ""
        self.guard(source, _hook.TENSOR, spec, name="TENSOR", text=text)
        return self.add_input(obj, source, dims)

    def _guard_marks(self, tensor: torch.Tensor, source: Source) -> None:
        """What the program says about an argument's sizes is what it said when this was traced."""
        if not source.is_argument:
            return
        marks = torch_private.size_marks(tensor)
        if marks is None:
            text = f"the sizes of {source} are not marked"
            for mark in torch_private.MARKS:
                self.guard(src.instance_dict(source), _hook.MISSING, mark, name="MISSING", text=text)
        else:
            text = f"the sizes of {source} are marked as they were, or not at all"
            self.guard(source, _hook.CALL, _SameMarks(marks), name="MARKS", text=text)

    def add_input(self, obj: torch.Tensor, source: Source, dims: Mapping[int, bool]) -> TensorValue:
        """A placeholder for ``obj``, its sizes ``dims`` symbolic."""
        if self.sizes is not None and (dims or torch_private.size_marks(obj) is not None):
            fake = self.sizes.fake(self.fake_mode, obj, dims, source, self.span)
        else:
            fake = torch_private.fake_static(self.fake_mode, obj)
        self.layouts[id(fake)] = fake.shape, fake.stride()
        return TensorValue(self._placeholder(obj, source, fake), source, type(obj))

    def initial_fakes(self) -> list[Any]:
        """What stands for the graph's inputs as they are before it runs: tracing writes to fake tensors, too."""
        fakes = [n.meta["val"] for n in self.graph.nodes if n.op == "placeholder"]
        for i, (fake, (_, given)) in enumerate(zip(fakes, self.inputs, strict=True)):
            if id(fake) in self.layouts and torch_private.differs(fake, given):
                fakes[i] = torch_private.fake_of_layout(self.fake_mode, given, *self.layouts[id(fake)])
        return fakes

    def _placeholder(self, given: Any, source: Source, value: Any) -> fx.Node:
        """A new graph input: ``given`` is what the frame has at ``source``, ``value`` what stands for it while tracing."""
        node = self.scopes[0].placeholder(_placeholder_name(source, len(self.inputs)), value, self.span)
        node.meta["source"] = source.text
        self.inputs.append((source, given))
        position = self.guards.gather(source)
        assert position == len(self.inputs) - 1, "graph inputs are gathered first"
        return node

    def real(self, value: TensorValue) -> torch.Tensor:
        """The tensor that an input of the graph stands for."""
        assert value.source is not None
        return self.given(value.source)

    def owns_storage(self, value: TensorValue) -> bool:
        """Whether the tensor's memory is no input's, whose offsets fake tensors do not know."""
        fakes = [n.meta["val"] for n in self.scopes[0].graph.nodes if n.op == "placeholder"]
        key = torch_private.storage_key
        return len(self.scopes) == 1 and all(key(f) != key(value.fake) for f in fakes if isinstance(f, torch.Tensor))

    def given(self, source: Source) -> Any:
        """The object that the graph's input at ``source`` stands for."""
        return next(t for s, t in self.inputs if s == source)

    # --- subgraphs -----------------------------------------------------------------------------------------

    @contextmanager
    def scope(self) -> Iterator[Scope]:
        """Inside, operations go into a graph of their own; what they read of the graphs around it is captured."""
        scope = Scope(fx.Graph())
        scope.grad_mode_known = self.scopes[-1].grad_mode_known
        self.scopes.append(scope)
        self.graph = scope.graph
        try:
            yield scope
        finally:
            self.scopes.pop()
            self.graph = self.scopes[-1].graph

    def local(self, node: fx.Node) -> fx.Node:
        """What stands for ``node`` in the graph that grows now."""
        return node if node.graph is self.graph else self._captured(node, len(self.scopes) - 1)

    def _captured(self, node: fx.Node, depth: int) -> fx.Node:
        scope = self.scopes[depth]
        if node.graph is scope.graph:
            return node
        if depth == 0:
            raise Break("FL110", what="a tensor of a transformed function", why="it is used after that function ended")
        outer = self._captured(node, depth - 1)
        found = scope.captured.get(outer)
        if found is None:
            found = scope.captured[outer] = scope.placeholder(node.name, node.meta["val"], node.meta.get("span"))
        return found

    def touch(self, value: Value | None, what: str) -> None:
        """A subgraph may change only objects that it made itself (None is none): it may run any number of times."""
        if len(self.scopes) > 1 and (
            value is None or value.source is not None or value.serial < self.scopes[-1].serial
        ):
            raise Break("FL110", what=what, why="it is made outside of the function that is transformed here")

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
        node_args = tuple(self.to_argument(a) for a in args)
        node_kwargs = {k: self.to_argument(v) for k, v in kwargs.items()}
        if kind == "call_method" or classify.is_graph_callable(target):
            node_args = tuple(_dtype(a, target) for a in node_args)
            node_kwargs = {k: _dtype(v, target) for k, v in node_kwargs.items()}
        if node_kwargs.get("requires_grad") is True and torch.is_grad_enabled() and len(self.scopes) > 1:
            raise Break("FL104", what=what, why="a graph cannot return a new leaf that requires grad")
        fake_args = _map_nodes(node_args)
        fake_kwargs = _map_nodes(node_kwargs)
        inputs = [v.fake for v in _tensor_values(args, kwargs) if v.source is not None]
        changes = mutates(kind, target, node_kwargs)
        before = [_geometry(t) for t in inputs] if changes else []
        # operator.setitem writes to a part of its operand
        whole = (before or _augments(target)) and target is not operator.setitem
        if whole and _overlap_in_part(fake_args):
            raise Break("FL107", what=what, why="it writes to memory of which another operand is a part")
        if _leaves_memory(target, fake_args, fake_kwargs):
            raise Break("FL107", what=what, why="the view reaches beyond the memory of its operand")
        if fake_kwargs.get("out") is None:
            result = self.run_fake(kind, target, fake_args, fake_kwargs, what)
        else:
            result = self._run_out(kind, target, fake_args, fake_kwargs, what)
        reshapes = kind == "call_method" and target in _RESHAPING and len(self.scopes) == 1
        if not reshapes and any(b != _geometry(t) for b, t in zip(before, inputs, strict=False)):
            raise Break("FL110", what=what, why="it changes the shape or strides of an input")
        if not keep and not _holds_tensor(result) and not changes:
            return self._plain_result(result, what)
        node = self.graph.create_node(kind, target, node_args, node_kwargs)
        node.meta["val"] = result
        node.meta["span"] = self.span
        self.operations += not isinstance(result, _NUMBERS)
        if isinstance(result, torch.Tensor):
            for value in _tensor_values(args, kwargs):
                if value.fake is result:
                    return value  # in-place operators and identities return the very object
        return self.wrap_result(node, result, what)

    def record(self, target: Any, args: tuple[Value, ...], what: str) -> tuple[fx.Node, Any]:
        """A node that calls ``target``, whatever it returns, and its result on fake tensors."""
        node_args = tuple(self.to_argument(a) for a in args)
        result = self.run_fake("call_function", target, _map_nodes(node_args), {}, what)
        node = self.graph.call_function(target, node_args)
        node.meta.update(val=result, span=self.span)
        self.operations += 1
        return node, result

    def _run_out(self, kind: str, target: Any, args: Any, kwargs: Any, what: str) -> Any:
        """Runs a callable with ``out=`` on fake tensors, which convert and resize less or more than some operators do."""
        plain = self.run_fake(kind, target, args, {k: v for k, v in kwargs.items() if k != "out"}, what)
        result = self.run_fake(kind, target, args, kwargs, what)
        found, made = (list(r) if isinstance(r, (tuple, list)) else [r] for r in (result, plain))
        for f, m in zip(found, made, strict=False):
            if isinstance(f, torch.Tensor) and isinstance(m, torch.Tensor) and (f.dtype, f.shape) != (m.dtype, m.shape):
                raise Break("FL107", what=what, why="`out` has not the dtype or the shape of the result")
        return result

    def run_fake(self, kind: str, target: Any, args: Any, kwargs: Any, what: str) -> Any:
        function = getattr(args[0], target) if kind == "call_method" else target
        rest = args[1:] if kind == "call_method" else args
        try:
            with self.fake_mode, torch_private.quietly():
                if target in (operator.getitem, operator.setitem) and _mask_misfits(*args[:2]):
                    raise Break("FL107", what=what, why="the mask does not have the shape of what it selects from")
                if _subtracts_booleans(target, args, kwargs):
                    raise Break("FL107", what=what, why="booleans are not subtracted")
                if target not in _FIX_SIZES and not (target in _MATMULS and any(map(_is_symbolic, args))):
                    try:
                        return function(*rest, **kwargs)
                    except RuntimeError as e:
                        if not torch_private.needs_python_rules(e):
                            raise
                with torch_private.python_rules():
                    return function(*rest, **kwargs)
        except torch_private.FAKE_DATA_ERRORS:
            raise Break("FL102", what=what) from None
        except torch_private.FAKE_SHAPE_ERRORS:
            raise Break("FL108", what=what) from None
        except torch_private.FAKE_OPERATOR_ERRORS as e:
            raise Break("FL123", what=what, why=_first_line(e)) from None
        except Break:
            raise
        except Exception as e:  # noqa: BLE001 - an operator may raise anything; eager raises it again
            if torch_private.needs_data(e):
                raise Break("FL102", what=what) from None
            if "no fake impl" in str(e):
                raise Break("FL123", what=what, why="it is a custom operator without a fake implementation") from None
            raise Break("FL107", what=what, why=f"{type(e).__name__}: {_first_line(e)}") from None

    def wrap_result(self, node: fx.Node, result: Any, what: str) -> Value:
        if isinstance(result, torch.Tensor):
            if not isinstance(result, torch_private.FakeTensor):
                raise Break("FL104", what=what, why="it returned a tensor that is not traced")
            return TensorValue(node)
        if isinstance(result, _NUMBERS):
            return SymbolValue(node)
        if isinstance(result, (tuple, list)):
            items: list[Value] = []
            for i, r in enumerate(result):
                if _holds_tensor(r):
                    child = self.graph.call_function(operator.getitem, (node, i))
                    child.meta["val"] = r
                    child.meta["span"] = self.span
                    items.append(self.wrap_result(child, r, what))
                else:
                    items.append(self._plain_result(r, what))
            return SequenceValue(items, type(result))
        return self._plain_result(result, what)

    def _plain_result(self, result: Any, what: str) -> Value:
        if isinstance(result, torch.Size) or type(result) in (tuple, list):
            return SequenceValue([self._plain_result(r, what) for r in result], type(result))
        if type(result) in CONSTANT_TYPES:
            return Constant(result)
        if isinstance(result, (torch.finfo, torch.iinfo)):
            return Known(result)
        raise Break("FL104", what=what, why=f"it returns a {type(result).__name__}")

    def are_arguments(self, values: list[Value]) -> bool:
        """Whether all the values may be arguments of a node; functions and objects may not."""
        for value in values:
            try:
                self.to_argument(value)
            except Break:
                return False
        return True

    def draws_from_generators(self, what: str) -> None:
        """Breaks where that costs less than a graph that runs operator by operator, because it draws from generators."""
        if (self.config.backend == "fuselens" and not self.config.fullgraph) or len(self.scopes) > 1:
            raise Break("FL115", what=what)

    def _generator(self, value: ObjectValue) -> fx.Node:
        """The graph's input for an existing generator of random numbers; ``meta["val"]`` stands for it."""
        assert value.source is not None
        self.draws_from_generators(value.describe())
        found = self.generator_inputs.get(id(value))
        if found is None:
            found = self._placeholder(value.value, value.source, torch.Generator(value.value.device))
            self.generator_inputs[id(value)] = found
        return found

    def to_argument(self, value: Value) -> Any:
        """What stands for ``value`` in an fx node's arguments."""
        value = self.use(value)
        if isinstance(value, ObjectValue) and type(value.value) is torch.Generator:
            return self._generator(value)
        if isinstance(value, (TensorValue, SymbolValue, OpaqueValue)):
            return self.local(value.node)
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

    def mutate(self, value: SequenceValue | DictValue | SetValue) -> None:
        """Notes that an existing container differs from the object it stands for; the emitted code brings that up to date."""
        self.touch(value, f"a change of {value.describe()}")
        self.mutations += 1
        if value.source is not None:
            self.mutated[id(value)] = value

    def effects_so_far(self) -> tuple[Any, ...]:
        """Equal at two moments between which the program had no effects and computed with no tensors."""
        cells = {i: c.contents for i, c in self.written_cells.items()}
        return len(self.graph.nodes), self.mutations, dict(self.attributes), cells, dict(self.written_globals)

    def changed(self, obj: Any) -> DictValue | None:
        """What an existing dictionary holds now, when the program has changed it."""
        known = self._objects.get(id(obj))
        return known if isinstance(known, DictValue) and id(known) in self.mutated else None

    def remember_shape(self, name: str, span: Span | None, value: Value) -> None:
        """Records what an assignment to ``name`` bound, for inlay hints."""
        if span is not None and isinstance(value, TensorValue) and not name.startswith("__"):
            self.shapes.append(Shape(name, span, describe_tensor(value.fake, self.sizes)))


class _SameMarks:
    """A guard on what the program says about the sizes of a tensor."""

    __slots__ = ("marks",)

    def __init__(self, marks: torch_private.SizeMarks) -> None:
        self.marks = marks

    def __call__(self, tensor: torch.Tensor) -> bool:
        return torch_private.size_marks(tensor) in (None, self.marks)


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


def _shown(obj: Any) -> str:
    """How a guard's text names an object; runs no code of the program."""
    kind = type(obj)
    if isinstance(obj, enum.Enum):
        return f"{kind.__qualname__}.{vars(obj).get('_name_')}"
    if issubclass(kind, types.ModuleType):
        return str(vars(obj).get("__name__", "a module"))
    if kind in CONSTANT_TYPES:
        return repr(obj)[:40]
    if issubclass(kind, type):
        return obj.__qualname__
    name = getattr(obj, "__qualname__", None) if classify.is_library_kind(kind) else None
    return name or f"the same {kind.__qualname__}"


def _text_of_keys(source: Source, keys: tuple[Any, ...]) -> str:
    plain = all(type(k) in EQUALITY_GUARDED for k in keys)
    return f"list({source}) == {list(keys) if plain else list(map(_shown, keys))!r}"[:500]


def _weakly(obj: Any) -> Any:
    """What an identity guard holds: a callable may belong to a user's model, which it must not keep alive."""
    if isinstance(obj, (type, types.ModuleType)) or not callable(obj):
        return obj
    try:
        return weakref.ref(obj)
    except TypeError:
        return obj


_RESHAPING = {"t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_"}
"""Methods that make a tensor a view of itself in place: compiled graphs do so as well."""
# whose C++ form takes sizes as plain numbers, and so fixes symbolic ones
_FIX_SIZES = {torch.nn.functional.pad, torch.constant_pad_nd}
_MATMULS: set[Any] = set()  # in torch before 2.13
if torch_private.MATMUL_FIXES_SIZES:
    _MATMULS |= {operator.matmul, operator.imatmul, torch.matmul}
    _MATMULS |= {"matmul", "__matmul__", "__rmatmul__", "__imatmul__"}
_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_DICTS = (dict, OrderedDict, defaultdict)


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _values_of(mapping: dict[Any, Any]) -> tuple[Any, ...]:
    return tuple(mapping.values())


def _is_constant_key(key: Any) -> bool:
    """Whether a key is guarded by its value."""
    if type(key) is tuple:
        return all(map(_is_constant_key, key))
    return type(key) in EQUALITY_GUARDED or isinstance(key, (type, enum.Enum))


def _is_trackable_key(key: Any) -> bool:
    """Whether a key is known by its value, or is equal to itself only."""
    if type(key) is tuple:
        return all(map(_is_trackable_key, key))
    kind = type(key)
    return (
        _is_constant_key(key)
        or kind in CONSTANT_TYPES
        or isinstance(key, torch.Tensor)
        or classify.is_library_kind(kind)
        or (kind.__hash__ is object.__hash__ and kind.__eq__ is object.__eq__)
    )


def _read(state: Mapping[str, Callable[[], Any]]) -> dict[str, tuple[Callable[[], Any], Any]]:
    return {what: (read, read()) for what, read in state.items()}


def _first(graph: fx.Graph) -> fx.Node:
    return next(iter(graph.nodes), None) or graph._root


def _placeholder_name(source: Source, index: int) -> str:
    name = "".join(c if c.isalnum() else "_" for c in source.text).strip("_")
    return f"{name or 'input'}" if name and not name[0].isdigit() else f"input_{index}_{name}"


def _map_nodes(value: Any) -> Any:
    return map_aggregate(value, lambda n: n.meta["val"] if isinstance(n, fx.Node) else n)


def _mask_misfits(tensor: Any, mask: Any) -> bool:
    """Whether a selection by a mask is known to fail. It is not looked at on fake tensors, which have no data."""
    if not (isinstance(tensor, torch.Tensor) and isinstance(mask, torch.Tensor) and mask.dtype is torch.bool):
        return False
    return mask.ndim > tensor.ndim or any(a != b for a, b in zip(tensor.shape, mask.shape, strict=False))


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, *_NUMBERS)):
        return True
    return isinstance(value, (tuple, list)) and any(_holds_tensor(v) for v in value)


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


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What in-place operations may change of a tensor besides its data."""
    strides = tensor.stride() if tensor.layout is torch.strided else ()
    return (*tensor.shape, *strides, tensor.storage_offset())


def mutates(kind: str, target: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the call may write into an argument, so that its node must stay even when nothing uses the result."""
    if "out" in kwargs or kwargs.get("inplace") is True:
        return True
    if torch_private.writes_operands(target):
        return True
    name = target if kind == "call_method" else getattr(target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "__setitem__", "copy_")


def writes(node: fx.Node) -> bool:
    """Whether a node writes into one of its arguments, augmented assignment included."""
    return _augments(node.target) or mutates(node.op, node.target, node.kwargs)


def _augments(target: Any) -> bool:
    """Whether this is the function of an augmented assignment."""
    name = getattr(target, "__name__", "")
    return name.startswith("i") and getattr(operator, f"__{name}__", None) is target


_SUBTRACTIONS = {
    name for short in ("sub", "rsub", "subtract") for name in (short, f"{short}_", f"__{short}__", f"__i{short}__", f"i{short}")
}  # fmt: skip


def _subtracts_booleans(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether eager refuses a subtraction that fake tensors do not."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name not in _SUBTRACTIONS:
        return False
    operands = (*args[:2], kwargs.get("other"), kwargs.get("input"))
    return any(type(v) is bool or (isinstance(v, torch.Tensor) and v.dtype is torch.bool) for v in operands)


def _leaves_memory(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a view by strides reaches beyond its operand's memory, which fake tensors do not check."""
    name = (target if isinstance(target, str) else getattr(target, "__name__", "")).partition(".")[0]
    if name not in ("as_strided", "as_strided_", "as_strided_copy"):
        return False
    given = {**dict(zip(("input", "size", "stride", "storage_offset"), args, strict=False)), **kwargs}
    x, size, stride, offset = (given.get(n) for n in ("input", "size", "stride", "storage_offset"))
    if not isinstance(x, torch.Tensor) or not isinstance(size, (tuple, list)) or not isinstance(stride, (tuple, list)):
        return True
    if any(n == 0 for n in size):
        return False
    last = x.storage_offset() if offset is None else offset
    last += sum((n - 1) * s for n, s in zip(size, stride, strict=False))
    return bool((last + 1) * x.element_size() > x.untyped_storage().nbytes())


def _overlap_in_part(operands: tuple[Any, ...]) -> bool:
    """Whether another operand shares some memory, not all of it, with the first: most operators refuse to write then.

    Only for contiguous ones of known sizes: the others' elements may lie between each other.
    """
    written, *others = operands
    if not isinstance(written, torch.Tensor):
        return False
    for other in others:
        if not isinstance(other, torch.Tensor) or other is written:
            continue
        both = written, other
        if any(
            t.layout is not torch.strided or not _known_numbers((*t.shape, *t.stride(), t.storage_offset()))
            for t in both
        ):
            continue
        if not (written.numel() and other.numel() and written.is_contiguous() and other.is_contiguous()):
            continue
        if torch_private.storage_key(written) != torch_private.storage_key(other):
            continue
        starts = [t.storage_offset() * t.element_size() for t in both]
        ends = [start + t.numel() * t.element_size() for start, t in zip(starts, both, strict=True)]
        same = starts[0] == starts[1] and ends[0] == ends[1] and written.stride() == other.stride()
        if max(starts) < min(ends) and not same:
            return True
    return False


def _known_numbers(numbers: tuple[Any, ...]) -> bool:
    return all(type(n) is int for n in numbers)


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


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
