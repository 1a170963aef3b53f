"""``copy.copy`` and ``copy.deepcopy`` of tracked values: what the copies hold is known, so no code of theirs need run."""

from __future__ import annotations

import copy
import copyreg
import dataclasses
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...torch_private.result_layouts import is_dense
from ..breaks import Break
from ..values import attributes
from ..values.algebra import (
    Constant,
    DictValue,
    FunctionValue,
    InstanceDict,
    Known,
    MadeFunction,
    ObjectValue,
    SequenceValue,
    SetValue,
    SymbolValue,
    TensorValue,
    Value,
)
from ..values.container_operators import combined_sets
from ..values.kinds import PerKind
from ..values.known import holds_identity
from .table import rule

if TYPE_CHECKING:
    from ..machine import Machine

_DEFAULTS = {name: vars(object)[name] for name in ("__reduce_ex__", "__reduce__", "__getstate__")}
_HOOKS = ("__setstate__", "__getnewargs__", "__getnewargs_ex__")


@rule(copy.copy)
def _copy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, ObjectValue):
        method, place = attributes.class_member(m, value.python_type, "__copy__")
        if type(method) is types.FunctionType:
            return m.call(attributes.bind(m, method, value, "__copy__", place), [], {})
        if method is not attributes.ABSENT:
            raise _unknown(value, "copy.copy")
    if (isinstance(value, SequenceValue) and issubclass(value.kind, tuple)) or _is_frozen(value):
        return value
    if isinstance(value, SetValue):
        return combined_sets(value, "copy", [])
    return _copied(m, value, _Manner("copy.copy", lambda part: part, lambda made: None))


@rule(copy.deepcopy)
def _deepcopy(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs:
        raise Break("FL104", what="copy.deepcopy", why="with a memo of what was copied already")
    memo: dict[int, Value] = {}

    def deep(part: Value) -> Value:
        value = m.use(part)
        if id(value) in memo:
            return memo[id(value)]

        def remember(made: Value) -> None:
            memo[id(value)] = made

        if isinstance(value, ObjectValue):
            method, _ = attributes.class_member(m, value.python_type, "__deepcopy__")
            if method is not attributes.ABSENT:
                raise _unknown(value, "copy.deepcopy")
        made = _copied(m, value, _Manner("copy.deepcopy", deep, remember))
        if isinstance(value, SequenceValue) and issubclass(value.kind, tuple):
            if all(m.use(old) is new for old, new in zip(value.items, made.items, strict=True)):  # type: ignore[attr-defined]
                made = value
        remember(made)
        return made

    return deep(args[0])


@dataclasses.dataclass(frozen=True, slots=True)
class _Manner:
    """How a copy is made: ``part`` copies a part; ``remember`` is told of a copy before its parts are made."""

    what: str
    part: Callable[[Value], Value]
    remember: Callable[[Value], None]


def _copied(m: Machine, value: Value, manner: _Manner) -> Value:
    """A copy of ``value``."""
    return _COPIES[type(value)](m, value, manner)


def _no_copy(m: Machine, value: Value, manner: _Manner) -> Value:
    raise _unknown(value, manner.what)


_COPIES: PerKind[Value] = PerKind(_no_copy)


@_COPIES.of(Constant, FunctionValue, MadeFunction, SymbolValue)
def _itself(m: Machine, value: Value, manner: _Manner) -> Value:
    return value


@_COPIES.of(Known)
def _copy_of_known(m: Machine, value: Known, manner: _Manner) -> Value:
    return value if _is_shared(value.value) else _no_copy(m, value, manner)


@_COPIES.of(InstanceDict)
def _copy_of_instance_dict(m: Machine, value: InstanceDict, manner: _Manner) -> Value:
    return _copied(m, attributes.instance_items(m, value), manner)


@_COPIES.of(TensorValue)
def _copy_of_tensor(m: Machine, value: TensorValue, manner: _Manner) -> Value:
    if manner.what != "copy.deepcopy" or not _is_copied_by_clone(m, value):
        return _no_copy(m, value, manner)
    return m.tracer.call("call_method", "clone", (value,), {}, manner.what)


@_COPIES.of(SequenceValue)
def _copy_of_sequence(m: Machine, value: SequenceValue, manner: _Manner) -> Value:
    made = value.like([])
    if not issubclass(value.kind, tuple):
        manner.remember(made)
    made.items.extend(manner.part(item) for item in value.items)
    return made


@_COPIES.of(SetValue)
def _copy_of_set(m: Machine, value: SetValue, manner: _Manner) -> Value:
    if holds_identity(value.items):
        return _no_copy(m, value, manner)
    return SetValue(list(value.items), type(value.items))


@_COPIES.of(DictValue)
def _copy_of_dict(m: Machine, value: DictValue, manner: _Manner) -> Value:
    known = value.kind in (dict, OrderedDict, defaultdict)
    if not known or (manner.what == "copy.deepcopy" and holds_identity(value.items)):
        return _no_copy(m, value, manner)
    made = DictValue({}, value.kind, None, value.factory)
    manner.remember(made)
    made.items.update((key, manner.part(item)) for key, item in value.items.items())
    own = None if value.attributes is None else m.use(value.attributes)
    if isinstance(own, DictValue):
        made.attributes = DictValue({name: manner.part(attribute) for name, attribute in own.items.items()})
    return made


@_COPIES.of(ObjectValue)
def _copy_of_object(m: Machine, value: ObjectValue, manner: _Manner) -> Value:
    if not _is_plain(m, value):
        return _no_copy(m, value, manner)
    made = m.tracer.objects.made(object.__new__(value.python_type))
    manner.remember(made)
    for name, attribute in attributes.instance_items(m, InstanceDict(value)).items.items():
        m.tracer.effects.attributes[id(made.value), name] = (made, manner.part(attribute))
    return made


def _is_copied_by_clone(m: Machine, value: TensorValue) -> bool:
    """Whether a deep copy of a tensor, which copies its whole storage and its attributes, is what ``clone`` gives."""
    if value.kind is not torch.Tensor or value.fake.requires_grad or m.tracer.effects.attributes_of(value):
        return False
    tensor = value.fake if value.source is None else m.tracer.graphs.real(value)
    fills = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return fills and is_dense(value.fake) and not (value.source is not None and vars(tensor))


def _is_frozen(value: Value) -> bool:
    return isinstance(value, SetValue) and isinstance(value.items, frozenset)


def _is_shared(obj: Any) -> bool:
    """Whether copies of ``obj`` are the object itself."""
    return (
        isinstance(obj, (type, types.BuiltinFunctionType, types.FunctionType))
        or (type(obj).__module__ or "") == "torch._ops"
    )


def _is_plain(m: Machine, value: ObjectValue) -> bool:
    """Whether all there is to an object is its ``__dict__``, and no method of its class decides what a copy is."""
    kind = value.python_type
    if attributes.content(m, value) is not None or issubclass(kind, (BaseException, torch.nn.Module)):
        return False
    if kind in copyreg.dispatch_table or attributes.vars_of(value.value) is None:
        return False
    if any(isinstance(v, types.MemberDescriptorType) for cls in kind.__mro__ for v in vars(cls).values()):
        return False
    defaults = all(attributes.class_member(m, kind, name)[0] is found for name, found in _DEFAULTS.items())
    return defaults and all(attributes.class_member(m, kind, name)[0] is attributes.ABSENT for name in _HOOKS)


def _unknown(value: Value, what: str) -> Break:
    return Break("FL104", what=what, why=f"of {value.describe()}, which is copied in its own way")
