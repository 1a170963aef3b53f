"""Calls of standard library functions and objects whose result is known while tracing, or that tracing would not get
through: signatures, partial functions, caches, dispatchers, patterns, weak references."""

from __future__ import annotations

import functools
import inspect
import logging
import operator
import os
import re
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from ... import torch_private
from ..breaks import Break, raising
from ..hook import _hook
from ..polyfills import python as polyfills
from ..tracing import sources as src
from ..values import assignments, attributes, function_attributes
from ..values.algebra import (
    ActiveValue,
    CellValue,
    Constant,
    DictValue,
    FunctionValue,
    InstanceDict,
    Known,
    MadeFunction,
    MethodValue,
    ObjectValue,
    PartialValue,
    ProxyValue,
    SequenceValue,
    TensorValue,
    Value,
)
from ..values.container_operators import mapping_items
from ..values.iterators import iterate
from ..values.known import UNKNOWN, deep_use, fold, from_plain, plain
from .table import CALLS, CODE_RULES, NAMED_RULES, RULES, called, rule

if TYPE_CHECKING:
    from ..machine import Machine


def log(logger: logging.Logger, level: int, file: str, line: int, function: str, message: Any, arguments: Any) -> None:
    """Logs what the program's line would have logged."""
    if logger.isEnabledFor(level):
        _handle(logger, logger.makeRecord(logger.name, level, file, line, message, arguments, None, function))


def call_logging(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Calls a function with a cache that does nothing but to log, where its cache does not have that call."""
    _call(function, args, kwargs)


_handle = _hook.disabled(lambda logger, record: logger.handle(record))  # handlers are no part of what is compiled
_call = _hook.disabled(lambda function, args, kwargs: function(*args, **kwargs))


_LEVELS = {
    logging.Logger.debug: logging.DEBUG, logging.Logger.info: logging.INFO, logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR, logging.Logger.critical: logging.CRITICAL,
}  # fmt: skip


_LOGGERS = (logging.Logger, logging.RootLogger)  # whose methods are these


def _logging(method: Any, level: int) -> Callable[..., Value]:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """What is known while tracing is logged after the graph, from the line of the program."""
        values, span = [m.use(a) for a in args], m.program.span(m.instruction)
        receiver = values[0] if values else None
        known = all(isinstance(value, Constant) for value in values[1:])  # and nothing can change it until then
        again = m.tracer.graphs.repeats
        if not isinstance(receiver, ObjectValue) or receiver.source is None or type(receiver.value) not in _LOGGERS:
            raise Break("FL103", what=method.__qualname__)
        if not known or len(values) < 2 or kwargs or again or span is None:
            raise Break("FL103", what=method.__qualname__)
        place = Constant(m.code.co_filename), Constant(span.line), Constant(m.code.co_name)
        _, message, *rest = values
        m.tracer.effects.calls.append((log, (receiver, Constant(level), *place, message, SequenceValue(rest, tuple))))
        return Constant(None)

    return run


for _method, _level in _LEVELS.items():
    rule(_method)(_logging(_method, _level))


@rule(logging.getLogger)
def _logger(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The logger of a name, which is the same object for ever; one that is not there yet is made, which nobody sees."""
    name = plain(m.use((*args, *kwargs.values())[0])) if args or kwargs else None
    if not isinstance(name, str | None):
        raise Break("FL104", what="logging.getLogger", why="its name is not known while tracing")
    logger = logging.getLogger(name)
    return m.use(m.tracer.lazy(logger, src.constant(logger, f"logging.getLogger({name!r})")))


@rule(inspect.signature)
def _signature(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The signature of an existing function; guards its defaults and what it wraps."""
    value = m.use(args[0])
    function = m.use(value.function) if isinstance(value, MethodValue) else value
    if not isinstance(function, FunctionValue) or len(args) != 1 or kwargs:
        raise Break("FL104", what="inspect.signature", why=f"of {value.describe()}")
    described = function
    while described.source is not None:
        for kind, part in ((_hook.FUNC_DEFAULTS, "__defaults__"), (_hook.FUNC_KWDEFAULTS, "__kwdefaults__")):
            m.tracer.guard_identity(src.part(described.source, kind, part), getattr(described.function, part))
        if function_attributes.own_attribute(m, described, "__signature__") is not None:
            raise Break("FL104", what="inspect.signature", why=f"{described.describe()} has one of its own")
        wrapped = function_attributes.own_attribute(m, described, "__wrapped__")
        if not isinstance(wrapped, FunctionValue):
            break
        described = wrapped
    looked_at = types.MethodType(function.function, object()) if isinstance(value, MethodValue) else function.function
    try:
        return Known(inspect.signature(looked_at))
    except Exception as error:  # noqa: BLE001 - 3.14 evaluates annotations now, which runs anything
        raise Break("FL104", what="inspect.signature", why=f"it raises {type(error).__name__}") from None


@rule(inspect.getfullargspec)
def _full_arguments(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    _signature(m, args, kwargs)  # guards what it is read from
    value = m.use(args[0])
    function = m.use(value.function) if isinstance(value, MethodValue) else value
    assert isinstance(function, FunctionValue)
    bound = types.MethodType(function.function, object()) if isinstance(value, MethodValue) else function.function
    return from_plain(inspect.getfullargspec(bound), "inspect.getfullargspec")


@rule(inspect.Signature.bind)
def _bind(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Arguments are bound by CPython, which does not look at them: objects that stand for them."""
    signature = m.use(args[0])
    if not isinstance(signature, Known):
        raise Break("FL104", what="inspect.Signature.bind", why="the signature is not known while tracing")
    stands: dict[int, tuple[Any, Value]] = {}
    given, named = [_standing(stands, a) for a in args[1:]], {k: _standing(stands, v) for k, v in kwargs.items()}
    try:
        bound = signature.value.bind(*given, **named)
    except TypeError as e:
        raise raising(e) from None
    made = m.tracer.objects.made(inspect.BoundArguments.__new__(inspect.BoundArguments))
    attributes.assign(m, made, "_signature", signature)
    attributes.assign(m, made, "arguments", _stood_for(m, stands, bound.arguments))
    return made


def _standing(stands: dict[int, tuple[Any, Value]], value: Value) -> Any:
    token = object()
    stands[id(token)] = token, value
    return token


def _stood_for(m: Machine, stands: dict[int, tuple[Any, Value]], obj: Any) -> Value:
    """What an object that holds such objects stands for; others are defaults."""
    if id(obj) in stands:
        return stands[id(obj)][1]
    if type(obj) is tuple:
        return SequenceValue([_stood_for(m, stands, v) for v in obj], tuple)
    if type(obj) is dict:
        return DictValue({k: _stood_for(m, stands, v) for k, v in obj.items()})
    return m.tracer.lazy(obj, src.constant(obj, "a default"))


def _of_bound(read: Any) -> Any:
    """A method or property of what :func:`_bind` gave, asked of one that holds objects that stand for the arguments."""

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        owner = m.use(args[0])
        signature = m.use(attributes.load(m, owner, "_signature"))
        held = m.use(attributes.load(m, owner, "arguments"))
        if not isinstance(signature, Known) or not isinstance(held, DictValue) or not isinstance(owner, ObjectValue):
            raise Break("FL104", what="inspect.BoundArguments", why="it is not known while tracing")
        stands: dict[int, tuple[Any, Value]] = {}
        known: dict[str, Any] = {}
        for name, value in held.items.items():
            value, kind = m.use(value), signature.value.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                known[name] = tuple(_standing(stands, v) for v in iterate(m, value))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                known[name] = {k: _standing(stands, v) for k, v in mapping_items(m, value).items()}
            else:
                known[name] = _standing(stands, value)
        bound = inspect.BoundArguments(signature.value, known)  # type: ignore[arg-type]
        result = _stood_for(m, stands, read(bound))
        if read is inspect.BoundArguments.apply_defaults:
            attributes.assign(m, owner, "arguments", _stood_for(m, stands, bound.arguments))
        return result

    return run


for _method in (
    inspect.BoundArguments.apply_defaults, inspect.BoundArguments.args.fget, inspect.BoundArguments.kwargs.fget,
):  # fmt: skip
    rule(_method)(_of_bound(_method))


@rule(functools.partial)
def _partial(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        raise raising(TypeError("type 'partial' takes at least one argument"))
    function = m.use(args[0])
    if isinstance(function, PartialValue):
        return PartialValue(function.function, [*function.args, *args[1:]], {**function.kwargs, **kwargs})
    if isinstance(function, ObjectValue) and type(function.value) is functools.partial:
        assert function.source is not None
        inner, head, named = partial_parts(m, function)
        return PartialValue(inner, [*head, *args[1:]], {**named, **kwargs})
    if isinstance(function, Constant):
        raise raising(TypeError("the first argument must be callable"))
    return PartialValue(function, args[1:], kwargs)


def partial_parts(m: Machine, value: ObjectValue) -> tuple[Value, list[Value], dict[str, Value]]:
    """Function, arguments and keywords of an existing partial function."""
    obj, source = value.value, value.source
    assert source is not None
    function = m.use(m.tracer.lazy(obj.func, src.generic_attribute(source, "func")))
    args = iterate(m, m.tracer.lazy(obj.args, src.generic_attribute(source, "args")))
    named = mapping_items(m, m.tracer.lazy(obj.keywords, src.generic_attribute(source, "keywords")))
    return function, args, named


@called(functools.partial)
def _call_partial(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, head, named = partial_parts(m, value)
    return m.call(function, [*head, *args], {**named, **kwargs})


_OF_FUNCTIONS = frozenset(vars(types.FunctionType)) | {"__module__", "__type_params__"}


@rule(polyfills.own_attributes)
def _own_attributes(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, MadeFunction):
        return DictValue({k: v for k, v in value.attributes.items() if k not in _OF_FUNCTIONS})
    if isinstance(value, FunctionValue):
        found = {name: function_attributes.own_attribute(m, value, name) for name in vars(value.function)}
        if value.source is not None:
            keys, own = tuple(found), src.instance_dict(value.source)
            m.tracer.guard(own, _hook.DICT_KEYS_ARE, keys, name="KEYS", text=f"list({own}) == {list(keys)!r}")
        return DictValue({k: v for k, v in found.items() if v is not None})
    if isinstance(value, (Known, PartialValue)):
        return DictValue({})
    return m.use(attributes.load(m, value, "__dict__"))


@rule(os.fspath)
def _path(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use((*args, *kwargs.values())[0])
    if issubclass(value.python_type, (str, bytes)):
        return value
    found = attributes.special(m, value, "__fspath__", []) if isinstance(value, ObjectValue) else None
    return fold(m, os.fspath, [value], {}, "os.fspath") if found is None else found


@rule(types.SimpleNamespace)
def _namespace(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        raise Break("FL104", what="types.SimpleNamespace", why="its arguments do not fit")
    made = m.tracer.objects.made(types.SimpleNamespace())
    for name, value in kwargs.items():
        assignments.store_directly(m, made, name, value)
    return made


@rule(types.MappingProxyType)
def _mapping_proxy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        types.MappingProxyType(*({},) * len(args), **{name: {} for name in kwargs})  # type: ignore[arg-type]
    except TypeError as e:
        raise raising(e) from None
    mapping = m.use((*args, *kwargs.values())[0])
    kind = mapping.python_type
    if isinstance(mapping, (DictValue, InstanceDict, ProxyValue)):
        return ProxyValue(mapping)
    if isinstance(mapping, ObjectValue) and attributes.class_attribute(kind, "__getitem__") is not attributes.ABSENT:
        if not issubclass(kind, (list, tuple)):
            return ProxyValue(mapping)
    if isinstance(mapping, (ObjectValue, SequenceValue)) or (
        isinstance(mapping, Constant) and kind in (int, float, bool, type(None))
    ):
        raise raising(TypeError(f"mappingproxy() argument must be a mapping, not {kind.__name__}"))
    raise Break("FL104", what="types.MappingProxyType", why=f"of {mapping.describe()}")


def _known(m: Machine, value: Value) -> Any:
    """What an argument is: a constant, or an object that such a function gave while tracing."""
    value = deep_use(m, value)
    if isinstance(value, ObjectValue) and value.source is not None and value.source.kind == _hook.ROOT_CONST:
        return value.value
    return plain(value)


@called(functools._lru_cache_wrapper)
def _call_cached(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function with a cache belongs to the running program, unless tracing shows that it only computes or logs.

    Then when it runs does not matter. What its cache gives is looked up, and compared, when guards are checked. One that logs is
    called after the graph, each time. Those of einops depend on their arguments alone: they are asked while tracing.
    """
    if value.value in RULES:
        return RULES[value.value](m, args, kwargs)
    known = [_known(m, a) for a in args]
    named = {k: _known(m, v) for k, v in kwargs.items()}
    if (value.value.__module__ or "").partition(".")[0] == "einops" and UNKNOWN not in (*known, *named.values()):
        return _asked_now(m, value, known, named)
    receiver = m.use(args[0]) if args and known[0] is UNKNOWN else None
    if receiver is not None:
        known = [k if k is not UNKNOWN else _held(m.use(a), m) for a, k in zip(args[1:], known[1:], strict=True)]
    lost = receiver is not None and receiver.source is None
    if value.source is None or lost or UNKNOWN in (*known, *named.values()):
        raise Break("FL104", what=value.describe(), why="its cache decides what it gives")
    calls, nested = m.tracer.effects.calls, m.tracer.graphs.nested
    before = len(calls)
    result = _computed_aside(m, value, args, kwargs)
    if result is not None and result.is_none and len(calls) > before and not nested:
        calls[before:] = [(call_logging, (value, SequenceValue(list(args), tuple), DictValue(dict(kwargs))))]
        return result
    unknown = result is None or len(calls) > before or _has_new_variables(value.value.__wrapped__, m)
    if unknown or not (receiver is None or _is_given(receiver, m)):
        raise Break("FL104", what=value.describe(), why="its cache decides what it gives")
    return m.use(_looked_up(m, value, value.source, receiver, known, named))


def _looked_up(
    m: Machine,
    value: ObjectValue,
    source: src.Source,
    receiver: ObjectValue | None,
    known: list[Any],
    named: dict[str, Any],
) -> Value:
    """What a cache gives, which is asked when guards are checked."""
    if receiver is None or receiver.source is None:
        look_up = _LookUp(known, named)
        return m.tracer.lazy(look_up(value.value), src.applied(look_up, source))
    m.tracer.guard_identity(source, value.value)
    look_up = _LookUpOf(value.value, known, named)
    return m.tracer.lazy(look_up(receiver.value), src.applied(look_up, receiver.source))


def _asked_now(m: Machine, value: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
    m.tracer.differs = f"what {value.describe()} gave"
    try:
        result = value.value(*args, **kwargs)
    except Exception as e:  # noqa: BLE001 - the program raises it by itself
        raise raising(e) from None
    return m.use(m.tracer.lazy(result, src.constant(result, f"{value.describe()}(…)")))


def _has_new_variables(function: Any, m: Machine) -> bool:
    """Whether variables that a function closes over are not yet what they are at this point of the program."""
    cells = getattr(function, "__closure__", None) or ()
    known = (m.tracer.objects.known.get(id(cell)) for cell in cells)
    if any(isinstance(cell, CellValue) and cell.written for cell in known):
        return True
    return not all(map(_is_filled, cells))


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_given(receiver: Value, m: Machine) -> TypeGuard[ObjectValue]:
    """Whether a first argument is an existing object that is equal to itself alone, and nothing that is there was changed so
    far: so the cache says the same of it when guards are checked."""
    if not isinstance(receiver, ObjectValue) or receiver.source is None:
        return False
    kind, effects = receiver.python_type, m.tracer.effects
    hashed = attributes.class_attribute(kind, "__hash__"), attributes.class_attribute(kind, "__eq__")
    changed = effects.mutated or effects.cells or effects.globals
    owners = [owner for owner, _ in effects.attributes.values()]
    changed = changed or any(o.source is not None or isinstance(o, Known) for o in owners)
    return hashed == (object.__hash__, object.__eq__) and not changed


def _einops_backend(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What einops computes tensors with: it looks for that the first time, and keeps it."""
    if kwargs or len(args) != 1 or not isinstance(m.use(args[0]), TensorValue):
        return None
    backend = value.function(torch.empty(0))
    return m.use(m.tracer.lazy(backend, src.constant(backend, "einops' backend for tensors")))


NAMED_RULES["einops._backends", "get_backend"] = _einops_backend


def _computed_aside(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a function that has a cache gives, traced aside; None where a call does more than to compute and to log."""
    assert value.source is not None
    tracer = m.tracer
    before, operations = _outside(m), tracer.graphs.operations
    function = m.use(tracer.lazy(value.value.__wrapped__, src.generic_attribute(value.source, "__wrapped__")))
    variation, tracer.variation = tracer.variation, None  # a size or number that varies would be computed with
    try:
        with tracer.graphs.scope() as scope:
            scope.aside = True
            result = deep_use(m, m.call(function, args, kwargs))
    finally:
        tracer.variation = variation
    tracer.graphs.operations = operations
    random = any(map(torch_private.may_draw, scope.graph.nodes))
    return None if scope.captured or random or _outside(m) != before else result


def _outside(m: Machine) -> tuple[Any, ...]:
    """Effects but those on objects, which a subgraph may change only where it made them."""
    nodes, _, _, *variables = m.tracer.effects.so_far()
    return nodes, *variables


class _Held(weakref.ref[Any]):
    """An object that a look-up is given, which does not keep it."""


def _held(argument: Value, m: Machine) -> Any:
    """An existing object that is equal to itself alone, which is guarded to be this one; UNKNOWN for anything else."""
    if not _is_given(argument, m) or argument.source is None or not argument.python_type.__weakrefoffset__:
        return UNKNOWN
    m.tracer.guard_identity(argument.source, argument.value)
    return _Held(argument.value)


class _LookUp:
    """``function(*args, **kwargs)``, when guards are checked."""

    __name__ = "cached"

    def __init__(self, args: list[Any], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs

    def __call__(self, function: Any) -> Any:
        return function(*self.args, **self.kwargs)


class _LookUpOf(_LookUp):
    """``function(obj, *args, **kwargs)``, which does not keep the function."""

    def __init__(self, function: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        super().__init__(args, kwargs)
        self.function = weakref.ref(function)

    def __call__(self, obj: Any) -> Any:
        function = self.function()
        args = [a() if isinstance(a, _Held) else a for a in self.args]
        is_gone = any(isinstance(a, _Held) and found is None for a, found in zip(self.args, args, strict=True))
        return None if function is None or is_gone else function(obj, *args, **self.kwargs)


def _getter(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An existing ``itemgetter``, ``attrgetter`` or ``methodcaller``, which does not change."""
    assert value.source is not None
    m.tracer.guard_identity(value.source, value.value)
    maker, *rest = value.value.__reduce__()
    named: dict[str, Any] = {}
    if isinstance(maker, functools.partial):
        maker, rest, named = maker.func, [(*maker.args, *rest[0])], maker.keywords
    made = m.call(
        Known(polyfills.REPLACED[maker]),
        [from_plain(a, "an argument") for a in rest[0]],
        {k: from_plain(v, "an argument") for k, v in named.items()},
    )
    return m.call(made, args, kwargs)


for _kind in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    CALLS[_kind] = _getter


class ReferenceValue(ActiveValue):
    """A weak reference that the trace made, to an object that somebody else holds."""

    __slots__ = ("referent",)

    def __init__(self, referent: Value) -> None:
        super().__init__(None)
        self.referent = referent

    @property
    def python_type(self) -> type:
        return weakref.ref

    def call(self, m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        return None if args or kwargs else self.referent

    @property
    def maker(self) -> Any:
        return weakref.ref

    @property
    def parts(self) -> list[Value]:
        return [self.referent]


@rule(weakref.ref)
def _reference(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    referent = m.use(args[0]) if len(args) == 1 and not kwargs else None
    if referent is None or referent.source is None or isinstance(referent, (Constant, SequenceValue, DictValue)):
        raise Break("FL104", what="weakref.ref", why="how long the object lives only the running program knows")
    return ReferenceValue(referent)


@rule(weakref.proxy)
def _weak_proxy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise Break("FL104", what="weakref.proxy", why="how long the object lives only the running program knows")


def _referent(reference: Any) -> Any:
    return reference()


@called(weakref.ref)
def _call_reference(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args or kwargs or value.source is None:
        raise Break("FL104", what="a weak reference", why="it takes no arguments")
    return m.use(m.tracer.lazy(value.value(), src.applied(_referent, value.source)))


# --- functools.singledispatch -----------------------------------------------------------------------------------

_DISPATCHER: Any = functools.singledispatch(len)


class _Dispatches:
    """A guard on which function a class is dispatched to."""

    def __init__(self, kind: type, function: Any) -> None:
        self.kind = kind
        self.function = weakref.ref(function) if isinstance(function, types.FunctionType) else lambda: function

    def __call__(self, dispatcher: Any) -> bool:
        return dispatcher.dispatch(self.kind) is self.function()


def _dispatch(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of a function made by ``singledispatch``."""
    dispatcher: Any = value.function
    if not args:
        raise raising(TypeError(f"{dispatcher.__name__} requires at least 1 positional argument"))
    kind = m.use(args[0]).python_type
    function = dispatcher.dispatch(kind)
    source = value.source or src.constant(dispatcher, dispatcher.__qualname__)
    name = getattr(function, "__qualname__", repr(function))
    m.tracer.guard(
        source, _hook.CALL, _Dispatches(kind, function), name="DISPATCH",
        text=f"{source} dispatches {kind.__qualname__} to {name}",
    )  # fmt: skip
    return m.call(m.use(m.tracer.lazy(function, src.constant(function, name))), args, kwargs)


CODE_RULES[_DISPATCHER.__code__] = _dispatch


class _Dispatched(_Dispatches):
    """The same of ``dispatcher.dispatch`` itself."""

    def __call__(self, dispatch: Any) -> bool:
        return dispatch(self.kind) is self.function()


def _dispatched(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``dispatcher.dispatch(cls)``: the function for a class."""
    kind = plain(m.use(args[0])) if len(args) == 1 and not kwargs else None
    if not isinstance(kind, type):
        raise Break("FL104", what="dispatch", why="the class is not known while tracing")
    function = value.function(kind)
    source = value.source or src.constant(value.function, "dispatch")
    name = getattr(function, "__qualname__", repr(function))
    text = f"{source} dispatches {kind.__qualname__} to {name}"
    m.tracer.guard(source, _hook.CALL, _Dispatched(kind, function), name="DISPATCH", text=text)
    return m.use(m.tracer.lazy(function, src.constant(function, name)))


CODE_RULES[_DISPATCHER.dispatch.__code__] = _dispatched


# --- re ---------------------------------------------------------------------------------------------------------


def _computed(function: Any) -> Any:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return fold(m, function, args, kwargs, f"re.{function.__name__}")

    return run


for _function in (
    re.compile, re.match, re.fullmatch, re.search, re.split, re.findall, re.escape,
):  # fmt: skip
    rule(_function)(_computed(_function))


def _substitute(function: Any) -> Any:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) > 1 and not isinstance(m.use(args[1]), Constant):
            raise Break("FL104", what=f"re.{function.__name__}", why="a function makes the replacements")
        return fold(m, function, args, kwargs, f"re.{function.__name__}")

    return run


for _function in (re.sub, re.subn):
    rule(_function)(_substitute(_function))
