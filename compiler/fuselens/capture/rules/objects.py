"""Calls of the builtins that ask what an object is and what it has: its class, its attributes, its identity."""

from __future__ import annotations

import threading
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import classify
from ..breaks import Break, raising
from ..values import assignments, attributes, tensor_attributes
from ..values.algebra import (
    Constant,
    FunctionValue,
    Known,
    MethodValue,
    ObjectValue,
    RuntimeNumber,
    SuperValue,
    TensorValue,
    TruthValue,
    Value,
)
from ..values.kinds import PerKind
from ..values.known import UNKNOWN, deep_use, plain
from .table import rule

if TYPE_CHECKING:
    from ..machine import Machine


# --- classes -----------------------------------------------------------------------------------------------------


@rule(isinstance)
def _isinstance(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    classes = plain(deep_use(m, args[1]))
    if classes is UNKNOWN:
        raise Break("FL104", what="isinstance", why="the class is not known while tracing")
    value = m.use(args[0])
    if _answers_itself(classes):
        return Constant(_answered(m, value, classes))
    return _asked(isinstance, None, classes, lambda: _is_instance(m, value, classes))


def _answered(m: Machine, value: Value, classes: Any) -> bool:
    """``isinstance(value, classes)``, of which a class answers for itself."""
    if isinstance(classes, tuple):
        return any(_answered(m, value, c) for c in classes)
    if not _answers_itself(classes):
        return _is_instance(m, value, classes)
    if value.python_type is classes:
        return True
    found, place = attributes.class_member(m, type(classes), "__instancecheck__")
    truth = m.truth(m.use(m.call(attributes.bind(m, found, Known(classes), "__instancecheck__", place), [value], {})))
    if truth is None:
        raise Break(
            "FL104", what="isinstance", why="a class answers for itself, from what only the running program knows"
        )
    return truth


def _answers_itself(classes: Any) -> bool:
    """Whether the answer is that of a metaclass of the program's (or of jaxtyping's), which may look at more than types."""
    if isinstance(classes, tuple):
        return any(map(_answers_itself, classes))
    checks = [attributes.class_attribute(type(classes), "__instancecheck__")]
    if isinstance(type(classes), type) and isinstance(classes, type):
        hook = attributes.class_attribute(classes, "__subclasshook__")
        checks.append(getattr(hook, "__func__", hook))
    return any(isinstance(c, types.FunctionType) and not classify.is_library_module(c.__module__) for c in checks)


def _is_instance(m: Machine, value: Value, classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(_is_instance(m, value, c) for c in classes)
    return _INSTANCES[type(value)](m, value, classes)


_INSTANCES: PerKind[bool] = PerKind(lambda m, value, cls: issubclass(value.python_type, cls))


@_INSTANCES.of(TruthValue)
def _is_truth(m: Machine, value: TruthValue, cls: Any) -> bool:
    return isinstance(True, cls)


@_INSTANCES.of(Constant, Known)
def _is_plain(m: Machine, value: Constant | Known, cls: Any) -> bool:
    return isinstance(value.value, cls)


@_INSTANCES.of(ObjectValue)
def _is_object(m: Machine, value: ObjectValue, cls: Any) -> bool:
    return isinstance(value.value, cls) or (getattr(cls, "_is_protocol", False) and _fits_protocol(m, value, cls))


@_INSTANCES.of(TensorValue)
def _is_tensor(m: Machine, value: TensorValue, cls: Any) -> bool:
    return issubclass(value.kind, cls) or _is_legacy(value.fake, cls) or tensor_attributes.is_flagged(m, value, cls)


def _fits_protocol(m: Machine, value: ObjectValue, protocol: Any) -> bool:
    """Whether an object has the members of a protocol in its class, or as attributes, which may have been set while tracing."""
    for name in getattr(protocol, "__protocol_attrs__", None) or typing._get_protocol_attrs(protocol):  # type: ignore[attr-defined]
        found, _ = attributes.class_member(m, value.python_type, name)
        member = attributes.load_or_none(m, value, name) if found is attributes.ABSENT else Known(found)
        if member is None:
            return False
        nothing = isinstance(member, (Constant, Known)) and member.value is None
        if nothing and callable(getattr(protocol, name, None)):
            return False
    return True


def _asked(function: Any, example: Any, classes: Any, answer: Callable[[], bool]) -> Value:
    """The answer to ``isinstance`` or ``issubclass``; their TypeError where ``classes`` are none."""
    try:
        return Constant(answer())
    except Exception:  # noqa: BLE001 - a property `__class__` may raise anything
        try:
            function(example, classes)
        except TypeError as e:
            raise raising(e) from None
        raise Break("FL104", what=function.__name__, why="a class answers for itself") from None


def _is_legacy(tensor: torch.Tensor, classes: Any) -> bool:
    """Whether a tensor has the dtype and device of one of the classes (``torch.FloatTensor``)."""
    if isinstance(classes, tuple):
        return any(_is_legacy(tensor, c) for c in classes)
    return type(classes) is type(torch.FloatTensor) and isinstance(tensor, classes)


@rule(issubclass)
def _issubclass(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, classes = plain(m.use(args[0])), plain(deep_use(m, args[1]))
    if cls is UNKNOWN or classes is UNKNOWN:
        raise Break("FL104", what="issubclass", why="the class is not known while tracing")
    return _asked(issubclass, cls, classes, lambda: issubclass(cls, classes))


@rule(type)
def _type(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        raise Break("FL104", what="type", why="classes are created eagerly")
    return Known(m.use(args[0]).python_type)


@rule(callable)
def _callable(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (Constant, Known, ObjectValue)):
        return Constant(callable(value.value))
    return Constant(any("__call__" in vars(k) for k in value.python_type.__mro__))


@rule(super)
def _super(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        cell = m.cells.get("__class__")
        first = m.code.co_varnames[0] if m.code.co_argcount else None
        if cell is None or first is None:
            raise Break("FL105", what="super()", why="outside a method")
        from ..instructions.variables import read_cell

        cls = m.use(read_cell(m, cell, "__class__"))
        receiver = m.locals.get(first) or m.cells[first].contents
    else:
        cls, receiver = m.use(args[0]), args[1] if len(args) > 1 else None
    if not isinstance(cls, Known) or receiver is None:
        raise Break("FL105", what="super()", why="the class is not known while tracing")
    return SuperValue(cls.value, m.use(receiver))


# --- attributes --------------------------------------------------------------------------------------------------


def _name(m: Machine, value: Value, what: str) -> str:
    name = m.use(value)
    if not isinstance(name, Constant):
        raise Break("FL104", what=what, why="the name is not known while tracing")
    if not isinstance(name.value, str):
        raise raising(TypeError("attribute name must be string, not '" + type(name.value).__name__ + "'"))
    return name.value


@rule(getattr)
def _getattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), _name(m, args[1], "getattr")
    if len(args) < 3:
        return attributes.load(m, owner, name)
    return attributes.load_or_none(m, owner, name) or args[2]


@rule(object.__getattribute__)
def _getattribute(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), m.use(args[1])
    if not isinstance(owner, ObjectValue) or not isinstance(name, Constant):
        raise Break("FL104", what="object.__getattribute__", why=f"of {owner.describe()}")
    return attributes.generic(m, owner, name.value)


@rule(vars)
def _vars(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        raise Break("FL104", what="vars", why="it reads its caller's variables")
    return attributes.load(m, m.use(args[0]), "__dict__")


@rule(hasattr)
def _hasattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), _name(m, args[1], "hasattr")
    if isinstance(owner, TensorValue) and attributes.class_attribute(owner.kind, name) is not attributes.ABSENT:
        return Constant(hasattr(owner.fake, name))
    return Constant(attributes.load_or_none(m, owner, name) is not None)


@rule(setattr)
def _setattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    assignments.store(m, m.use(args[0]), _name(m, args[1], "setattr"), args[2])
    return Constant(None)


@rule(delattr)
def _delattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    assignments.delete(m, m.use(args[0]), _name(m, args[1], "delattr"))
    return Constant(None)


# --- identity ----------------------------------------------------------------------------------------------------


@rule(types.MethodType)
def _method(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return MethodValue(args[0], m.use(args[1]))


@rule(types.FunctionType.__get__)
def _bound(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``function.__get__(instance, owner)``: what reading it as an attribute of the instance gives."""
    if kwargs or len(args) not in (2, 3):
        raise Break("FL104", what="function.__get__", why="its arguments are unusual")
    instance = m.use(args[1])
    return args[0] if isinstance(instance, Constant) and instance.value is None else MethodValue(args[0], instance)


@rule(id)
def _id(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    known = {FunctionValue: "function", Known: "value"}.get(type(value))
    return RuntimeNumber(id, [value], value if known is None else getattr(value, known))


@rule(threading.get_ident)
def _get_ident(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return RuntimeNumber(threading.get_ident, [], threading.get_ident)
