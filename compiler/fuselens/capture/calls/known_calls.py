"""Calls of objects known by identity: builtins, classes, functions and methods of libraries."""

from __future__ import annotations

import types
import typing
from typing import TYPE_CHECKING, Any

from .. import classify
from ..arrays import numpy_calls
from ..breaks import Break, Raised, raising
from ..kernels import operators
from ..program import draws, random_state
from ..rules import torch_function
from ..rules.compiler import marked, told
from ..rules.table import RULES
from ..values import assignments, attributes, tensor_attributes
from ..values.algebra import Constant, FunctionValue, Known, NamedMethod, ObjectValue, SymbolValue, TensorValue, Value
from ..values.kinds import PerKind
from ..values.known import PURE, fold
from ..values.operators import operate
from . import construction
from .arguments import fit, is_builtin, misfit
from .calls import CALLED, call, torch_name

if TYPE_CHECKING:
    from ..machine import Machine


@CALLED.of(Known)
def _call_known(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    recorded = classify.is_graph_callable(obj)
    if recorded:
        handled = torch_function.dispatched(m, obj, args, kwargs)
        if handled is not None:
            return handled
    ruled = _by_rule(m, value, args, kwargs)
    if ruled is not None:
        return ruled
    args = [m.use(a) for a in args]
    kwargs = {k: m.use(v) for k, v in kwargs.items()}
    computed = _computed(m, value, args, kwargs, recorded)
    if computed is not None:
        return computed
    return _BY_TYPE[type(obj)](m, value, args, kwargs)


def _by_rule(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a rule makes of a call; None when there is none. Breaks where the call must run each time."""
    obj = value.value
    said = told(m, obj, args, kwargs) if _is_hashable(obj) else None
    if said is not None:
        return said
    found = RULES.get(obj) if _is_hashable(obj) else None
    if found is not None:
        if is_builtin(obj) and not fit(obj, len(args), tuple(kwargs)):
            raise misfit(obj, len(args), tuple(kwargs), value.describe())
        return found(m, args, kwargs)
    if type(obj) is types.MethodType and obj.__func__ in RULES:
        return RULES[obj.__func__](m, [Known(obj.__self__), *args], kwargs)
    if type(obj) is types.BuiltinMethodType and isinstance(obj.__self__, type):
        found = RULES.get(attributes.class_attribute(obj.__self__, obj.__name__))  # a class method of C
        if found is not None:
            return found(m, [Known(obj.__self__), *args], kwargs)
    result = (
        marked(m, value, obj, args, kwargs)
        or random_state.of_module(m, obj, args, kwargs)
        or draws.called(m, obj, args, kwargs)
    )
    if result is not None:
        return result
    code = classify.breaking_code(obj)
    if code is not None:
        raise Break(code, what=value.describe(), why="it must run each time")
    return None


def _is_hashable(obj: Any) -> bool:
    try:
        hash(obj)
    except TypeError:
        return False
    return True


def _computed(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value], recorded: bool) -> Value | None:
    """What is computed while tracing, or by a node of the graph; None for other calls."""
    obj = value.value
    hashable = _is_hashable(obj)
    foldable, tensor_operator = hashable and obj in classify.FOLDED, hashable and obj in classify.TENSOR_OPERATORS
    computed = numpy_calls.called(m, obj, args, kwargs, value.describe())
    if computed is not None:
        return computed
    if tensor_operator and any(isinstance(a, (TensorValue, SymbolValue)) for a in args):
        return operate(m, obj, args, kwargs)
    if foldable and not any(isinstance(a, TensorValue) for a in args):
        return fold(m, obj, args, kwargs, value.describe())
    if recorded:
        traced = operators.traced(m, obj, args, kwargs)
        if traced is not None:
            return traced
        return m.tracer.call("call_function", obj, tuple(args), kwargs, torch_name(obj))
    return fold(m, obj, args, kwargs, value.describe()) if foldable else None


def _without_rule(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    if _belongs_to_pure(obj):
        return fold(m, obj, args, kwargs, value.describe())
    why = "it is implemented in C" if isinstance(obj, types.BuiltinFunctionType) else "there is no rule for it"
    raise Break("FL104", what=value.describe(), why=why)


_BY_TYPE: PerKind[Value] = PerKind(_without_rule)
"""By the type of the object that is called, where neither a rule nor the graph takes the call."""


def _belongs_to_pure(obj: Any) -> bool:
    owner = type(getattr(obj, "__self__", None))
    return issubclass(owner, PURE) or classify.is_placement(owner)  # not isinstance, which may run code of the class


@_BY_TYPE.of(types.MethodWrapperType)
def _call_wrapper(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The ``__get__`` or ``__set__`` of an attribute that is implemented in C."""
    accessor = value.value
    if type(accessor.__self__) is types.MemberDescriptorType and accessor.__name__ == "__get__" and args:
        owner = m.use(args[0])
        if isinstance(owner, ObjectValue) and issubclass(owner.python_type, accessor.__self__.__objclass__):
            return attributes.generic(m, owner, accessor.__self__.__name__)
    if type(accessor.__self__) is not types.GetSetDescriptorType:
        return _without_rule(m, value, args, kwargs)
    name = accessor.__self__.__name__
    match accessor.__name__, args:
        case "__get__", [owner, *_] if isinstance(owner := m.use(owner), TensorValue):
            return tensor_attributes.load_from_base(m, owner, name)
        case "__set__", [owner, new]:
            assignments.store(m, m.use(owner), name, new)
            return Constant(None)
    raise Break("FL104", what=value.describe(), why="there is no rule for it")


@_BY_TYPE.of(types.MethodDescriptorType, types.WrapperDescriptorType)
def _call_unbound(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method of a builtin class, read on the class."""
    method = value.value
    if not args:
        raise misfit(method, 0, tuple(kwargs), value.describe())
    kind = args[0].python_type
    if not issubclass(kind, method.__objclass__):
        raise _wrong_receiver(method, kind)
    if isinstance(args[0], Constant) and kind is not method.__objclass__:
        return fold(m, method, args, kwargs, value.describe())  # what the class of the constant overrides is not asked
    return call(m, NamedMethod(args[0], method.__name__), args[1:], kwargs)


@_BY_TYPE.of(types.BuiltinMethodType)
def _call_bound(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function implemented in C, or a bound method."""
    obj = value.value
    if obj.__name__ == "__new__" and isinstance(obj.__self__, type):
        cls = args[0] if args else None
        if isinstance(cls, Known) and isinstance(cls.value, type):
            return construction.new(m, cls.value, args[1:], kwargs)
    if type(obj.__self__) in (frozenset, str, bytes):
        return fold(m, obj, args, kwargs, value.describe())  # such as keyword.iskeyword
    return _without_rule(m, value, args, kwargs)


@_BY_TYPE.of(type(typing.List[int]))  # noqa: UP006
def _call_generic(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``Box[int](3)``: an instance of the class, which knows what it was called by."""
    made = m.use(m.call(Known(value.value.__origin__), args, kwargs))
    if isinstance(made, ObjectValue) and hasattr(made.value, "__dict__"):
        assignments.store(m, made, "__orig_class__", value)
    return made


@_BY_TYPE.of(type)
def _call_class(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return construction.construct(m, value.value, args, kwargs)


@_BY_TYPE.of(types.FunctionType)
def _call_function(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return call(m, FunctionValue(value.value, None), args, kwargs)


@_BY_TYPE.of(types.MethodType)
def _call_method(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    if _belongs_to_pure(obj) or type(obj.__func__) is not types.FunctionType or not classify.is_graph_callable(obj):
        return _without_rule(m, value, args, kwargs)
    return m.tracer.call("call_function", obj, tuple(args), kwargs, torch_name(obj))


def _wrong_receiver(method: Any, kind: type) -> Raised | Break:
    """What a method of a builtin class raises that is called on an instance of another."""
    try:
        method(type(kind.__name__, (), {})())
    except TypeError as e:
        return raising(e)
    return Break("FL104", what=method.__qualname__, why=f"of a {kind.__name__}")
