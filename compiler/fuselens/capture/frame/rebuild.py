"""Code that makes values again: from sources of the frame, from outputs of the graph, and from each other.

:meth:`Rebuilder.value` pushes the object that a value stands for. How an object of some kind is made is one function for
each class of values, registered with :func:`build`. A mutable object is made once and kept in a temporary variable.
"""

from __future__ import annotations

import functools
import types
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from ... import torch_private
from ..arrays import operations as arrays
from ..breaks import FrameUnsupported
from ..bytecode import emitters as emitters
from ..hook import _hook
from ..machine import Machine
from ..rules.torch_function import PLAIN
from ..tracing import wrappers
from ..tracing.sources import Source
from ..values.algebra import (
    NULL,
    ActiveValue,
    ArrayValue,
    CellValue,
    CombinedIterator,
    Constant,
    ContextExit,
    DequeValue,
    DictValue,
    DictView,
    FunctionValue,
    GeneratorValue,
    GradModeContext,
    InstanceDict,
    IteratorValue,
    Known,
    MadeFunction,
    MethodValue,
    NamedMethod,
    ObjectValue,
    OpaqueValue,
    PartialValue,
    RaggedSize,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    TorchContext,
    TruthValue,
    Value,
    WrapperValue,
)
from ..values.attributes import DELETED
from ..values.iterators import Recipe, recipe_of, restored
from ..values.known import from_plain, holds_identity
from .code_builder import CodeBuilder
from .liveness import unstarted
from .remaking import Globals, applied, entered_exit, new_container, new_exception, replay_set
from .resuming import Passed

GATHERED = "__fuselens_inputs"
OUTPUTS = "__fuselens_outputs"
_MUTABLE = (
    SequenceValue, DictValue, SetValue, DictView, IteratorValue, CombinedIterator, MadeFunction, GradModeContext, TorchContext,
    ContextExit, NamedMethod,
    ObjectValue, GeneratorValue, CellValue, MethodValue, ActiveValue, ArrayValue, PartialValue,
)  # fmt: skip


class Rebuilder:
    """Emits into ``code`` what makes the values of one stopped (or finished) machine; ``outputs`` are the graph's."""

    def __init__(self, machine: Machine, outputs: list[fx.Node], code: CodeBuilder) -> None:
        self.m = machine
        self.tracer = machine.tracer
        self.outputs = {node: i for i, node in enumerate(outputs)}
        self.code = code
        self.displaced: dict[str, str] = {}  # arguments whose variables are unbound → the temporaries that have them
        self._temporaries: dict[int, str] = {}  # by value id
        self._building: set[int] = set()  # ids of values whose parts are being built
        self._kept: list[Value] = []  # what temporaries know by id must not be collected
        self._cell_names = {*machine.code.co_cellvars, *machine.code.co_freevars}

    # --- what code is made of ------------------------------------------------------------------------------

    def value(self, value: Value) -> None:
        """Emits code that pushes the object that ``value`` stands for. Mutable objects are made once."""
        if value is NULL:
            self.code.emit(emitters.push_null())
            return
        value = self.tracer.objects.holders.get(id(value), value)
        if value.source is not None and (
            not isinstance(value, (Constant, Known))
            or value.source.kind == _hook.ROOT_LOCAL
            or type(value.value) is torch.device
        ):
            self._source(value.source)  # an argument, even an equal number, is the very object that was passed
            return
        temporary = self._temporaries.get(id(value))
        if temporary is not None:
            self.code.emit(emitters.load_fast(temporary))
            return
        if id(value) in self._building:
            raise FrameUnsupported("FL109", None, what=value.describe(), why="it holds itself")
        self._building.add(id(value))
        build(value, self)
        self._building.discard(id(value))
        if isinstance(value, _MUTABLE) or (isinstance(value, TensorValue) and self._is_dressed(value)):
            self.keep(value)
        _complete(value, self)

    def call(self, function: Any, *args: Value) -> None:
        """Calls ``function``, a constant of the code; its result is on the stack."""
        self.code.emit(emitters.prepare_call(emitters.load_const(function)))
        for a in args:
            self.value(a)
        self.code.emit(emitters.call(len(args)))

    def run(self, function: Any, *args: Value) -> None:
        """Calls ``function`` for its effect."""
        self.call(function, *args)
        self.code.emit(emitters.pop_top())

    def keep(self, value: Value) -> None:
        """Keeps the object on top of the stack, which is ``value``, for when it is needed again."""
        name = self._temporaries[id(value)] = self.code.temporary()
        self._kept.append(value)
        self.code.emit(emitters.copy(1))
        self.code.emit(emitters.store_fast(name))

    @contextmanager
    def branch(self) -> Iterator[None]:
        """What is made inside, other code does not have."""
        before = dict(self._temporaries)
        yield
        self._temporaries = before

    def is_own_cell(self, cell: CellValue) -> bool:
        """Whether the frame itself has the cell."""
        return self.m.cells.get(cell.name) is cell

    def _is_dressed(self, value: TensorValue) -> bool:
        """Whether the graph's tensor is given a class or attributes."""
        return value.kind not in PLAIN or id(value) in self.tracer.effects.dressed

    def _source(self, source: Source) -> None:
        if source.kind == _hook.ROOT_LOCAL and source.text not in self._cell_names:
            self.code.emit(emitters.load_fast(self.displaced.get(source.text, source.text)))
            return
        position = self.tracer.guards.gather(source)
        self.code.emit(emitters.load_fast(GATHERED))
        self.code.emit(emitters.load_const(position))
        self.code.emit(emitters.binary_subscr())

    def give_traceback(self, exception: ObjectValue) -> None:
        """Gives an exception that was raised while tracing its traceback."""
        raised = self.tracer.exceptions.tracebacks.get(id(exception.value))
        if raised is not None:
            self.run(Passed(raised[1]), exception)


# --- a new object of each kind ----------------------------------------------------------------------------------


@functools.singledispatch
def build(value: Value, r: Rebuilder) -> None:
    """Pushes a new object for ``value``; :func:`_complete` gives it what may refer back to it."""
    raise FrameUnsupported("FL109", None, what=value.describe(), why="it cannot be rebuilt after the graph")


@build.register(Constant)
@build.register(Known)
def _(value: Constant | Known, r: Rebuilder) -> None:
    r.code.emit(emitters.load_const(value.value))


@build.register(SymbolValue)
@build.register(OpaqueValue)
def _output(value: TensorValue | SymbolValue | OpaqueValue, r: Rebuilder) -> None:
    r.code.emit(emitters.load_fast(OUTPUTS))
    r.code.emit(emitters.load_const(r.outputs[value.node]))
    r.code.emit(emitters.binary_subscr())


@build.register
def _(value: TensorValue, r: Rebuilder) -> None:
    if value.kind in PLAIN:
        _output(value, r)
        return
    r.code.emit(emitters.prepare_call(emitters.load_const(torch_private.set_class)))
    _output(value, r)
    r.code.emit([*emitters.load_const(value.python_type), *emitters.call(2)])


@build.register
def _(value: WrapperValue, r: Rebuilder) -> None:
    r.call(_hook.disabled(wrappers.Wrap(value.form)), *wrappers.inner(r.tracer, value))


@build.register
def _(value: RaggedSize, r: Rebuilder) -> None:
    r.call(torch_private.ragged_size, value.lengths, Constant(value.times))


@build.register
def _(value: ArrayValue, r: Rebuilder) -> None:
    assert value.memory is not None
    if value.is_number:
        r.call(arrays.number, value.memory)
    elif value.flips:
        r.call(arrays.backwards, value.memory, Constant(value.flips))
    else:
        r.call(torch.Tensor.numpy, value.memory)


@build.register
def _(value: ActiveValue, r: Rebuilder) -> None:
    if value.maker is None:
        raise FrameUnsupported("FL109", None, what=value.describe(), why="it cannot be rebuilt after the graph")
    r.call(value.maker, *value.parts)


@build.register
def _(value: SliceValue, r: Rebuilder) -> None:
    r.call(slice, *value.parts)


@build.register
def _(value: RuntimeNumber, r: Rebuilder) -> None:
    r.call(value.function, *value.args)


@build.register
def _(value: TruthValue, r: Rebuilder) -> None:
    r.call(bool, value.tensor)


@build.register
def _(value: SuperValue, r: Rebuilder) -> None:
    r.call(super, Known(value.cls), value.receiver)


@build.register
def _(value: CellValue, r: Rebuilder) -> None:
    if r.is_own_cell(value):
        r.code.emit(emitters.load_closure(value.name))
    else:
        r.call(types.CellType)


@build.register(GradModeContext)
@build.register(TorchContext)
def _(value: GradModeContext | TorchContext, r: Rebuilder) -> None:
    r.call(value.maker)


@build.register
def _(value: ContextExit, r: Rebuilder) -> None:
    if value.exited:
        r.code.emit(emitters.load_const(None))
    else:
        r.call(entered_exit, Known(value.context.maker))


# --- containers -------------------------------------------------------------------------------------------------


@build.register
def _(value: SequenceValue, r: Rebuilder) -> None:
    if value.kind is list and _holds_mutable(value):
        r.code.emit(emitters.build_list(0))
    elif value.kind in (list, tuple):
        _items(value, r)
    elif hasattr(value.kind, "_fields"):
        r.call(value.kind, *value.items)
    else:  # torch.Size and structseqs take one iterable
        r.call(value.kind, SequenceValue(value.items, tuple))


@build.register
def _(value: DequeValue, r: Rebuilder) -> None:
    r.call(deque, SequenceValue(value.items, tuple), Constant(value.maxlen))


@build.register
def _(value: DictValue, r: Rebuilder) -> None:
    if value.kind is defaultdict:
        r.call(defaultdict, value.factory or Constant(None), DictValue(value.items))
    elif value.kind is not dict:
        r.call(value.kind, DictValue(value.items))
    elif _holds_mutable(value):
        r.code.emit(emitters.build_map(0))
    else:
        _items(value, r)


def _holds_mutable(value: SequenceValue | DictValue) -> bool:
    """Whether what a list or dict holds may refer back to it."""
    items = value.items if isinstance(value, SequenceValue) else value.items.values()
    return any(v.source is None and not isinstance(v, (Constant, Known, TensorValue, SymbolValue)) for v in items)


def _items(value: SequenceValue | DictValue, r: Rebuilder) -> None:
    """Builds a list, tuple or dict with what it holds."""
    if isinstance(value, DictValue):
        for k, v in value.items.items():
            if holds_identity((k,)):
                r.value(from_plain(k, "a dictionary key"))
            else:
                r.code.emit(emitters.load_const(k))
            r.value(v)
        r.code.emit(emitters.build_map(len(value.items)))
        return
    for v in value.items:
        r.value(v)
    n = len(value.items)
    r.code.emit(emitters.build_list(n) if value.kind is list else emitters.build_tuple(n))


@build.register
def _(value: SetValue, r: Rebuilder) -> None:
    """The set, with the same order of iteration, which depends on how it came to be."""
    if not value.is_ordered_by_value:
        r.tracer.differs = "the order of a set"
    if not value.ordered and len(value.items) > 1:
        if value.origin is None or any(len(o.steps) != n for o, n in value.origin[1]):
            raise _no_order()
        function, operands = value.origin
        r.call(function, *(operand for operand, _ in operands))
        return
    known = not holds_identity(value.items)
    if known and isinstance(value.items, frozenset):
        r.code.emit(emitters.load_const(value.items))
        return
    steps = _steps_to_order(value) if known else value.steps
    if len(steps) == 1 and steps[0][0] == "add":
        r.call(type(value.items), from_plain(tuple(steps[0][1]), "a set"))
    else:
        r.call(replay_set, SetValue((), set), plain_steps(steps))


def _steps_to_order(value: SetValue) -> list[tuple[str, list[Any]]]:
    """The steps that give a set its order: its own, or simpler ones."""
    items = list(value.items)
    ways: tuple[Any, ...] = (value.steps, [("add", items)], [("update", [frozenset(value.items)])])
    for way in ways:
        if list(replay_set(set(), way)) == items:
            return way
    raise _no_order()


def _no_order() -> FrameUnsupported:
    return FrameUnsupported("FL109", None, what="a set", why="its order cannot be had again after the graph")


def plain_steps(steps: list[tuple[str, list[Any]]]) -> Value:
    """The steps by which a set came to be, as :func:`replay_set` takes them."""
    return from_plain(tuple((name, tuple(keys)) for name, keys in steps), "a set")


@build.register
def _(value: DictView, r: Rebuilder) -> None:
    r.call(getattr(value.mapping.kind, value.which), value.mapping)


# --- iterators --------------------------------------------------------------------------------------------------


@build.register
def _(value: IteratorValue, r: Rebuilder) -> None:
    leaves: list[Value] = []
    recipe = recipe_of(value, leaves)
    r.call(restored, Known(Recipe(recipe)), SequenceValue(leaves, tuple))


@build.register
def _(value: CombinedIterator, r: Rebuilder) -> None:
    extra = [value.extra] if value.extra is not None else []
    r.call(value.kind, *(extra if value.kind is map else ()), *value.parts, *(extra if value.kind is enumerate else ()))


@build.register
def _(value: GeneratorValue, r: Rebuilder) -> None:
    function, args, kwargs = unstarted(value)
    r.call(applied, function, SequenceValue(args, tuple), DictValue(dict(kwargs)))


# --- functions and methods --------------------------------------------------------------------------------------


@build.register
def _(value: FunctionValue, r: Rebuilder) -> None:
    r.code.emit(emitters.load_const(value.function))


@build.register
def _(value: MadeFunction, r: Rebuilder) -> None:
    annotations = None if value.has_late_annotations() else value.annotations
    plain = not (value.defaults or value.kwdefaults or annotations)
    if plain and value.globals is r.m.globals and all(map(r.is_own_cell, value.closure)):
        r.code.emit(emitters.make_function(value.code, closure=[cell.name for cell in value.closure]))
    else:
        nothing = Constant(None)
        r.call(
            Globals(value.globals).function, Constant(value.code), value.defaults or nothing,
            value.kwdefaults or nothing, annotations or nothing, SequenceValue(list(value.closure), tuple),
        )  # fmt: skip
    if value.annotate is not None:
        r.value(value.annotate)
        r.code.emit(emitters.set_annotations(by_function=True))


@build.register
def _(value: MethodValue, r: Rebuilder) -> None:
    function = value.function
    if isinstance(function, Known) and hasattr(
        function.value, "__get__"
    ):  # a C method binds in its own way, pybind11's do not
        r.call(function.value.__get__, value.receiver)
    else:
        r.call(types.MethodType, function, value.receiver)


@build.register
def _(value: NamedMethod, r: Rebuilder) -> None:
    if id(value.receiver) in r.tracer.objects.holders:  # the builtin class's own
        r.call(getattr(value.receiver.python_type, value.name).__get__, value.receiver)
    else:
        r.value(value.receiver)
        r.code.emit(emitters.load_attr(value.name))


@build.register
def _(value: PartialValue, r: Rebuilder) -> None:
    args = SequenceValue([value.function, *value.args], tuple)
    r.call(applied, Known(functools.partial), args, DictValue(dict(value.kwargs)))


# --- objects of classes -----------------------------------------------------------------------------------------


@build.register
def _(value: InstanceDict, r: Rebuilder) -> None:
    r.call(object.__getattribute__, value.owner, Constant("__dict__"))


@build.register
def _(value: ObjectValue, r: Rebuilder) -> None:
    """A bare instance of the class, with what it holds as a builtin container."""
    cls, held = value.python_type, value.content
    if isinstance(value.value, BaseException):
        _exception(value, r)
    elif held is None:
        r.call((types.SimpleNamespace if issubclass(cls, types.SimpleNamespace) else object).__new__, Known(cls))
    elif isinstance(held, Constant):
        r.call(type(held.value).__new__, Known(cls), held)
    else:
        items = DictValue(held.items) if isinstance(held, DictValue) else SequenceValue(held.items, tuple)  # type: ignore[attr-defined]
        r.call(new_container, Known(cls), Known(held.python_type), items)


def _exception(value: ObjectValue, r: Rebuilder) -> None:
    args = dict(r.tracer.effects.attributes_of(value)).get("args")
    initialise, given, named = r.tracer.exceptions.initialised.get(id(value.value), (None, None, {}))
    if args is None and given is None:
        given = [Constant(a) for a in value.value.args]
    new = args if given is None else SequenceValue(list(given), tuple)
    assert new is not None
    r.call(new_exception, Known(value.python_type), new)
    if initialise is not None:
        r.keep(value)
        bound = SequenceValue([value, *(given or [])], tuple)
        r.run(applied, Known(initialise), bound, DictValue(dict(named)))


# --- what may refer back to the object --------------------------------------------------------------------------


@functools.singledispatch
def _complete(value: Value, r: Rebuilder) -> None:
    """Gives an object its attributes, and a container what may refer to it, once it can be referred to."""


@_complete.register(SequenceValue)
@_complete.register(DictValue)
def _(value: SequenceValue | DictValue, r: Rebuilder) -> None:
    if value.kind in (list, dict) and _holds_mutable(value):
        _items(value, r)
        r.code.emit(emitters.list_extend(1) if value.kind is list else emitters.dict_update(1))
    if isinstance(value, DictValue) and isinstance(value.attributes, DictValue):
        for name, attribute in value.attributes.items.items():
            r.run(object.__setattr__, value, Constant(name), attribute)


@_complete.register(TensorValue)
@_complete.register(ObjectValue)
def _(value: ObjectValue | TensorValue, r: Rebuilder) -> None:
    initialised = r.tracer.exceptions.initialised
    for name, attribute in r.tracer.effects.attributes_of(value):
        if attribute is DELETED:
            continue
        if name == "args" and isinstance(value.value, BaseException) and id(value.value) not in initialised:
            continue
        r.run(object.__setattr__, value, Constant(name), attribute)
    if isinstance(value, ObjectValue):
        r.give_traceback(value)


@_complete.register
def _(value: MadeFunction, r: Rebuilder) -> None:
    for name, attribute in value.attributes.items():
        r.run(setattr, value, Constant(name), attribute)
    if value.annotations is not None and value.has_late_annotations():
        r.value(value.annotations)
        r.code.emit(emitters.set_annotations(by_function=False))


@_complete.register
def _(value: CellValue, r: Rebuilder) -> None:
    if value.contents is not None and not r.is_own_cell(value):
        r.run(setattr, value, Constant("cell_contents"), value.contents)
