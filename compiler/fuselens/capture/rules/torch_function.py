"""``__torch_function__``: what the program's tensor subclasses, objects and modes make of calls of torch's API.

Eager asks them in C. So that they are given the very function, types and arguments that they would see, a call is made
once on stand-ins of the same classes under a mode that only listens (:func:`_overheard`); the handler is then inlined.
The captured graph computes on plain tensors: it runs with these handlers switched off, and classes are put back after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..breaks import Break
from ..values import attributes
from ..values.algebra import (
    Constant,
    DictValue,
    FunctionSwitch,
    FunctionValue,
    Known,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
)
from ..values.known import UNKNOWN, deep_use, from_plain, plain
from .table import RULES, rule

if TYPE_CHECKING:
    from ..machine import Machine

PLAIN = (torch.Tensor, torch.nn.Parameter)
_DISABLED = torch_private.DISABLED_TORCH_FUNCTION
_NAME = "__torch_function__"


def is_subclass(value: Value) -> bool:
    """Whether a tensor is of a class of the program's."""
    return isinstance(value, TensorValue) and value.kind not in PLAIN


def own(m: Machine, value: Value, name: str) -> Value | None:
    """What the program's class of a tensor defines under ``name``, bound; None when that is torch's."""
    if not isinstance(value, TensorValue) or value.kind in PLAIN:
        return None
    found, place = attributes.class_member(m, value.kind, name)
    return None if place is None else attributes.bind(m, found, value, name, place)


def overrides(m: Machine, value: Value) -> bool:
    """Whether the class of an argument says what torch functions do with it."""
    if isinstance(value, TensorValue):
        if value.kind in PLAIN:
            return False
    elif not isinstance(value, ObjectValue):
        return False
    if torch_private.is_nested_class(value.python_type):
        return False  # it is torch's own, and computes on fakes
    found, _ = attributes.class_member(m, value.python_type, _NAME)
    return found is not attributes.ABSENT and found is not _DISABLED


def concerned(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether a call of torch's API is handled by the program: by a mode, or by the class of an argument."""
    tracer = m.tracer
    if tracer.torch_state.function_modes and tracer.torch_state.function_state < torch_private.ALL_DISABLED:
        return True
    if not any(overrides(m, v) for v in _relevant(m, [*args, *kwargs.values()])):
        return False
    tracer.torch_state.guard_function_state()
    return tracer.torch_state.function_state == torch_private.ENABLED


def _relevant(m: Machine, values: list[Value]) -> Iterator[Value]:
    """The arguments that are asked: those themselves, and what lists and tuples hold."""
    for value in map(m.use, values):
        if isinstance(value, SequenceValue):
            yield from map(m.use, value.items)
        else:
            yield value


def _only_devices(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether nobody is asked but modes for ``torch.device``, as the default device has one."""
    modes = (m.use(mode).python_type for mode in m.tracer.torch_state.function_modes)
    if any(attributes.class_member(m, kind, _NAME)[0] is not torch_private.DEVICE_MODE for kind in modes):
        return False
    return not any(overrides(m, v) for v in _relevant(m, [*args, *kwargs.values()]))


def handles(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether the program handles a call: modes for ``torch.device`` give some an argument, and leave others as they are."""
    return concerned(m, args, kwargs) and not _only_devices(m, args, kwargs)


def _on_device(m: Machine, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What ``torch.device`` makes of a call, as a context that is entered or as the default device: what makes tensors gets it
    as an argument. None where that has one, and for all other functions."""
    state = m.tracer.torch_state
    if state.function_state == torch_private.ALL_DISABLED or not _wants_device(m, function, kwargs):
        return None
    if state.entered_device is not None:
        device: Value = Constant(state.entered_device)
    elif state.function_modes:
        device = attributes.load(m, m.use(state.function_modes[-1]), "device")
    else:
        return None
    return m.call(Known(function), args, kwargs | {"device": device})


def _wants_device(m: Machine, function: Any, kwargs: dict[str, Value]) -> bool:
    """Whether a call makes a tensor and does not say where."""
    makes = function in torch_private.device_constructors()
    return makes and m.use(kwargs.get("device", Constant(None))).is_none


def dispatched(m: Machine, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What the program makes of the call of a torch function, method or operator that is implemented in C; None when
    it has no say."""
    if not handles(m, args, kwargs):
        return _on_device(m, function, args, kwargs)
    stands_for: dict[int, Value] = {}
    kept: list[Any] = []

    def stand_in(value: Value) -> Any:
        value = deep_use(m, value)
        made = plain(value)
        if made is not UNKNOWN:
            pass
        elif isinstance(value, TensorValue):
            made = torch_private.example(value.kind)
        elif isinstance(value, SequenceValue) and value.kind in (list, tuple):
            made = value.kind(stand_in(v) for v in value.items)
        elif isinstance(value, DictValue) and value.kind is dict:
            made = {k: stand_in(v) for k, v in value.items.items()}
        elif isinstance(value, ObjectValue):
            made = value.value
        elif isinstance(value, FunctionValue):
            made = value.function
        else:
            raise Break("FL104", what=_name_of(function), why=f"{_NAME} is given {value.describe()}")
        kept.append(made)
        stands_for[id(made)] = value
        return made

    def actual(given: Any) -> Value:
        if id(given) in stands_for:
            return stands_for[id(given)]
        if type(given) in (list, tuple):
            return SequenceValue([actual(v) for v in given], type(given))
        return from_plain(given, _name_of(function))

    given, named = [stand_in(a) for a in args], {k: stand_in(v) for k, v in kwargs.items()}
    try:
        heard = torch_private.overheard(function, given, named, m.tracer.torch_state.function_state)
    except TypeError as error:  # eager raises it as well, or it has a number where the graph has a tensor
        raise Break("FL104", what=_name_of(function), why=str(error)) from None
    if heard is None:
        return None
    public, kinds, found, options = heard
    arguments = [actual(v) for v in found]
    keys = None if options is None else {k: actual(v) for k, v in options.items()}
    return _ask(m, attributes.static_value(public), list(kinds), arguments, keys)


def _ask(m: Machine, function: Value, kinds: list[type], args: list[Value], kwargs: dict[str, Value] | None) -> Value:
    """Asks the innermost mode, then the arguments of the classes ``kinds``, in turn."""
    tracer = m.tracer
    given: list[Value] = [function, SequenceValue([Known(k) for k in kinds], tuple), SequenceValue(list(args), tuple)]
    if kwargs is not None:
        given.append(DictValue(dict(kwargs)))
    if tracer.torch_state.function_modes and tracer.torch_state.function_state < torch_private.ALL_DISABLED:
        mode = tracer.torch_state.function_modes.pop()
        try:
            result = m.use(m.call(attributes.load(m, m.use(mode), _NAME), given, {}))
        finally:
            tracer.torch_state.function_modes.append(mode)
        if not _declined(result):
            return result
    relevant = list(_relevant(m, [*args, *(kwargs or {}).values()]))
    for kind in kinds:
        receiver = next(v for v in relevant if v.python_type is kind)
        result = m.use(m.call(_handler(m, receiver), given, {}))
        if not _declined(result):
            return result
    raise Break("FL104", what=function.describe(), why=f"no {_NAME} handles it")


def _handler(m: Machine, receiver: Value) -> Value:
    if isinstance(receiver, TensorValue):
        found, place = attributes.class_member(m, receiver.kind, _NAME)
        return attributes.bind(m, found, receiver, _NAME, place)
    return attributes.load(m, receiver, _NAME)


def _declined(result: Value) -> bool:
    return isinstance(result, Constant) and result.value is NotImplemented


def _name_of(function: Any) -> str:
    return getattr(function, "__name__", None) or str(function)


# --- torch's own Python functions, which ask by themselves ------------------------------------------------------


def _has_torch_function(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(concerned(m, args, kwargs))


for _function in (
    torch.overrides.has_torch_function, torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
):  # fmt: skip
    RULES[_function] = _has_torch_function


@rule(torch.overrides.handle_torch_function)
def _handle(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, relevant, *given = args
    asked: list[Value] = []
    for value in _relevant(m, [relevant]):
        if value.python_type in (v.python_type for v in asked) or not _is_overloaded(m, value):
            continue
        after = (i for i, other in enumerate(asked) if issubclass(value.python_type, other.python_type))
        asked.insert(next(after, len(asked)), value)
    return _ask(m, m.use(function), [v.python_type for v in asked], given, kwargs)


def _is_overloaded(m: Machine, value: Value) -> bool:
    """What ``torch.overrides`` takes for an overloaded argument: plain tensors too."""
    if m.tracer.torch_state.function_state != torch_private.ENABLED:
        return False
    return overrides(m, value) or (isinstance(value, TensorValue) and value.kind is torch.Tensor)


@rule(torch_private.DEFAULT_TORCH_FUNCTION)
def _default(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.Tensor.__torch_function__``: runs the function, and gives its tensors the class."""
    cls, function, kinds, given, named = handler_arguments(m, args, kwargs)
    wanted = plain(deep_use(m, kinds))
    if not isinstance(cls, Known) or wanted is UNKNOWN:
        raise Break("FL104", what=_NAME, why="the classes are not known while tracing")
    if not all(issubclass(cls.value, kind) for kind in wanted):
        return Constant(NotImplemented)
    with _state(m, torch_private.SUBCLASSES_DISABLED):
        result = m.use(m.call(function, positional(m, given), keywords(m, named)))
        unchanged = plain(function) in torch_private.default_nowrap_functions()
        return result if unchanged else _converted(m, result, cls.value)


@rule(_DISABLED)
def _disabled(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _, function, _, given, named = handler_arguments(m, [Constant(None), *args], kwargs)
    with _state(m, torch_private.SUBCLASSES_DISABLED):
        return m.use(m.call(function, positional(m, given), keywords(m, named)))


def handler_arguments(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    """(class or mode, function, types, args, kwargs) of a call of a handler."""
    names = ("cls", "func", "types", "args", "kwargs")
    given = dict(zip(names, args, strict=False)) | kwargs
    given = {"args": SequenceValue([], tuple), "kwargs": Constant(None)} | given
    if set(given) != set(names):
        raise Break("FL104", what=_NAME, why="its arguments do not fit")
    return [m.use(given[name]) for name in names]


def positional(m: Machine, value: Value) -> list[Value]:
    """The arguments that a handler is given as ``args``."""
    if isinstance(value, SequenceValue):
        return list(value.items)
    raise Break("FL104", what=_NAME, why=f"the arguments are {value.describe()}")


def keywords(m: Machine, value: Value) -> dict[str, Value]:
    """The arguments that a handler is given as ``kwargs``."""
    if isinstance(value, DictValue):
        return dict(value.items)
    if value.is_none:
        return {}
    raise Break("FL104", what=_NAME, why=f"the keyword arguments are {value.describe()}")


@contextmanager
def _state(m: Machine, state: int) -> Iterator[None]:
    """Inside, handlers of the program are switched off, as far as they are not already."""
    m.tracer.torch_state.guard_function_state()
    before = m.tracer.torch_state.function_state
    m.tracer.torch_state.function_state = max(state, before)
    try:
        yield
    finally:
        m.tracer.torch_state.function_state = before


def _converted(m: Machine, value: Value, cls: type) -> Value:
    if cls is torch.Tensor:
        return value
    if isinstance(value, TensorValue) and not issubclass(value.kind, cls):
        return as_class(m, value, cls)
    if isinstance(value, SequenceValue) and issubclass(value.kind, (tuple, list)):
        return SequenceValue([_converted(m, m.use(v), cls) for v in value.items], value.kind)
    return value


def as_class(m: Machine, value: TensorValue, cls: type, function: Any = torch.ops.aten.alias.default) -> TensorValue:
    """A tensor of the class ``cls`` on the same data: the graph has a plain one, whose class changes after the graph."""
    if cls not in PLAIN and not torch_private.takes_class(cls):
        raise Break("FL105", what=cls.__qualname__, why="instances of this class are more than tensors with attributes")
    made = m.tracer.call("call_function", function, (value,), {}, "Tensor.as_subclass")
    assert isinstance(made, TensorValue)
    return TensorValue(made.node, kind=cls)


def subclass_of(m: Machine, args: list[Value]) -> type:
    """The argument of ``as_subclass`` and its kin."""
    cls = plain(m.use(args[0])) if args else UNKNOWN
    if isinstance(cls, type) and issubclass(cls, torch.Tensor):
        return cls
    raise Break("FL104", what="Tensor.as_subclass", why="the class is not known while tracing")


@rule(torch_private.MAKE_SUBCLASS)
def _make_subclass(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, data = subclass_of(m, args), m.use(args[1])
    requires_grad = m.truth(kwargs.get("require_grad", args[2] if len(args) > 2 else Constant(False)))
    if not isinstance(data, TensorValue) or requires_grad is not False or len(args) > 3:
        raise Break("FL104", what="Tensor._make_subclass", why="a graph cannot make a new leaf that requires grad")
    return as_class(m, data, cls, torch.ops.aten.detach.default)


# --- switches and modes -----------------------------------------------------------------------------------------


def _switch(kind: Callable[[], Any], state: int) -> None:
    @rule(kind)
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        m.tracer.torch_state.guard_function_state()
        return FunctionSwitch(kind, state)


_switch(torch_private.DisableTorchFunctionSubclass, torch_private.SUBCLASSES_DISABLED)
_switch(torch_private.DisableTorchFunction, torch_private.ALL_DISABLED)


@rule(torch_private.PUSH_MODE)
def _push(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.effects.touch(None, "a mode that is entered")
    m.tracer.torch_state.function_modes.append(m.use(args[0]))
    return Constant(None)


@rule(torch_private.POP_MODE)
def _pop(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.effects.touch(None, "a mode that is left")
    if not m.tracer.torch_state.function_modes:
        raise Break("FL104", what="leaving a mode", why="none is active")
    return m.use(m.tracer.torch_state.function_modes.pop())


@rule(torch_private.NUMBER_OF_MODES)
def _number(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _refuse_devices(m)
    m.tracer.torch_state.guard_ambient(m.tracer.span)
    return Constant(len(m.tracer.torch_state.function_modes))


@rule(torch_private.MODE_AT)
def _at(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _refuse_devices(m)
    number = plain(m.use(args[0])) if len(args) == 1 else UNKNOWN
    if type(number) is not int or not 0 <= number < len(m.tracer.torch_state.function_modes):
        raise Break("FL104", what="reading a mode", why="it is not known which one")
    return m.use(m.tracer.torch_state.function_modes[number])


def _refuse_devices(m: Machine) -> None:
    """A device that the function entered is no mode here."""
    if m.tracer.torch_state.entered_device is not None:
        raise Break("FL104", what="reading the modes", why="`with torch.device` surrounds it")


@rule(torch_private.DEVICE_MODE)
def _device_mode(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What a mode for ``torch.device`` does: gives factory functions the device."""
    _, function, _, given, named = handler_arguments(m, args, kwargs)
    mode = m.use(args[0])
    options = keywords(m, named)
    if _wants_device(m, plain(function), options):
        options["device"] = attributes.load(m, mode, "device")
    return m.call(function, positional(m, given), options)
