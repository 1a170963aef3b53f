"""Calls of instances, and of the methods that they have from classes implemented in C."""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break, raising
from ..hook import _hook
from ..program import draws
from ..rules import contexts, generators
from ..rules.compiler import marked, reason
from ..rules.module_calls import call_module
from ..rules.table import CALLS
from ..tracing import sources as src
from ..values import assignments, attributes
from ..values.algebra import Constant, Known, NamedMethod, ObjectValue, SuperValue, Value
from ..values.identity import identical
from ..values.subscripts import contains, delete_subscript, store_subscript, subscript
from .calls import CALLED, call
from .construction import base_init, natural
from .methods import METHODS

if TYPE_CHECKING:
    from ..machine import Machine


@CALLED.of(ObjectValue)
def _call_object(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    kind = type(obj)
    method, place = attributes.class_member(m, kind, "__call__")
    if method is attributes.ABSENT:
        raise raising(TypeError(f"'{kind.__name__}' object is not callable"))
    if issubclass(kind, torch.nn.Module) and method in torch_private.MODULE_CALLS:
        return call_module(m, value, args, kwargs)
    if kind in CALLS:
        return CALLS[kind](m, value, args, kwargs)
    if issubclass(kind, _hook.disabled):
        raise Break("FL114", what=getattr(obj, "__qualname__", None) or type(obj.fn).__qualname__, why=reason(obj))
    result = marked(m, value, obj, args, kwargs)
    if result is not None:
        return result
    if issubclass(kind, _hook.Region):
        # a compiled function called from compiled code is inlined like any other
        assert value.source is not None
        return call(m, m.use(m.tracer.lazy(obj.fn, src.generic_attribute(value.source, "fn"))), args, kwargs)
    if issubclass(kind, torch.jit.ScriptFunction) and (part := torch_private.script_origin(obj)):
        assert value.source is not None
        return call(
            m, m.use(m.tracer.lazy(getattr(obj, part), src.generic_attribute(value.source, part))), args, kwargs
        )
    if type(method) is types.FunctionType:
        return call(m, attributes.bind(m, method, value, "__call__", place), args, kwargs)
    code = None
    if classify.is_routine(obj):
        if value.source is not None and (drawn := draws.called(m, obj, args, kwargs)) is not None:
            m.tracer.guard_identity(value.source, obj)
            return drawn
        code = classify.breaking_code(obj)
    raise Break(
        code or "FL104", what=getattr(obj, "__qualname__", None) or kind.__qualname__, why="it is implemented in C"
    )


@METHODS.of(ObjectValue)
def _object_method(m: Machine, receiver: ObjectValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method that an instance of a user's class has from a class implemented in C."""
    if type(receiver.value) is torch.Generator:
        return generators.method(m, receiver, name, args, kwargs)
    if type(receiver.value) is contextvars.ContextVar:
        found = contexts.variable_method(m, receiver, name, args, kwargs)
        return _without_content(m, receiver, name, args) if found is None else found
    rule = _OF_OBJECTS.get(name)
    if rule is not None and (result := rule(m, receiver, args, kwargs)) is not None:
        return result
    held = attributes.content(m, receiver)
    if held is None:
        return _without_content(m, receiver, name, args)
    inherited = _OF_CONTENT.get((name, len(args)))
    if inherited is not None:
        return inherited(m, held, *args)
    return call(m, NamedMethod(held, name), args, kwargs)


def _without_content(m: Machine, receiver: ObjectValue, name: str, args: list[Value]) -> Value:
    """A method of ``object``, for which there is no other rule."""
    if name in ("__eq__", "__ne__") and len(args) == 1:
        same = identical(m, receiver, m.use(args[0]))
        return Constant((name == "__eq__") if same else NotImplemented)
    code = classify.breaking_method(receiver.python_type, name) or "FL104"
    raise Break(code, what=f"{receiver.python_type.__name__}.{name}", why="there is no rule for this method")


# Methods of any object: the result, or None where the arguments are others than expected.


def _init(m: Machine, receiver: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = (vars(c).get("__init__") for c in receiver.python_type.__mro__)
    initialise = next(f for f in found if isinstance(f, types.WrapperDescriptorType))
    if initialise is not object.__dict__["__init__"]:
        base_init(m, receiver, args, kwargs, initialise)
    elif args or kwargs:
        natural(lambda: object.__init__(receiver.value, *(None,) * len(args), **dict.fromkeys(kwargs)))
    return Constant(None)


def _known_name(m: Machine, args: list[Value], number: int) -> str | None:
    """The name of an attribute, the first of ``number`` arguments; None where it is not known."""
    name = m.use(args[0]) if len(args) == number else None
    return name.value if isinstance(name, Constant) else None


def _setattr(m: Machine, receiver: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    name = _known_name(m, args, 2)
    if name is None:
        return None
    assignments.store_directly(m, receiver, name, args[1])
    return Constant(None)


def _delattr(m: Machine, receiver: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    name = _known_name(m, args, 1)
    if name is None:
        return None
    assignments.delete_directly(m, receiver, name)
    return Constant(None)


def _getattribute(m: Machine, receiver: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    name = _known_name(m, args, 1)
    return attributes.load(m, receiver, name) if name is not None else None


def _with_traceback(m: Machine, receiver: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    if len(args) != 1 or not isinstance(receiver.value, BaseException):
        return None
    none = m.use(args[0])
    if not none.is_none:
        raise Break("FL104", what="with_traceback", why="tracebacks exist in a running program only")
    m.tracer.exceptions.tracebacks.pop(id(receiver.value), None)
    if receiver.source is not None:
        attributes.assign(m, receiver, "__traceback__", none)
    return receiver


_OF_OBJECTS: dict[str, Callable[[Machine, ObjectValue, list[Value], dict[str, Value]], Value | None]] = {
    "__init__": _init,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getattribute__": _getattribute,
    "with_traceback": _with_traceback,
    "__init_subclass__": lambda m, receiver, args, kwargs: Constant(None),
}


def _set_item(m: Machine, held: Value, key: Value, value: Value) -> Value:
    store_subscript(m, held, m.use(key), value)
    return Constant(None)


def _delete_item(m: Machine, held: Value, key: Value) -> Value:
    delete_subscript(m, held, m.use(key))
    return Constant(None)


_OF_CONTENT: dict[tuple[str, int], Callable[..., Value]] = {
    ("__getitem__", 1): subscript,
    ("__setitem__", 2): _set_item,
    ("__delitem__", 1): _delete_item,
    ("__contains__", 1): lambda m, held, member: Constant(contains(m, held, m.use(member))),
    ("__len__", 0): lambda m, held: m.call(Known(len), [held], {}),
    ("__iter__", 0): lambda m, held: m.call(Known(iter), [held], {}),
}
"""Methods, with their number of arguments, of the builtin value that an instance of a subclass holds."""


def call_original(m: Machine, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of a module that stands for another one (``modules.CompiledModule``): what the other one does."""
    assert isinstance(value, ObjectValue)
    if isinstance(value.value.__region__, _hook.disabled):
        raise Break("FL114", what=type(value.value).__qualname__, why=reason(value.value.__region__))
    after = next(c for c in type(value.value).__mro__ if c.__call__ is not type(value.value).__call__)
    if after.__call__ in torch_private.MODULE_CALLS:
        return call_module(m, value, args, kwargs)
    return call(m, attributes.load(m, SuperValue(type(value.value).__mro__[1], value), "__call__"), args, kwargs)
