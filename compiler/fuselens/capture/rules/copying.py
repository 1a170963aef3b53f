"""``copy.copy`` and ``copy.deepcopy`` of tracked values: what the copies hold is known, so no code of theirs need run."""

from __future__ import annotations

import copy
import copyreg
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
    DequeValue,
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
from ..values.known import holds_identity
from ..values.operators import combined_sets
from .table import rule

if TYPE_CHECKING:
    from ..machine import Machine

Part = Callable[[Value], Value]
_ATOMIC = (Constant, FunctionValue, MadeFunction, SymbolValue)
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
    return _copied(m, value, lambda part: part, lambda made: None, "copy.copy")


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
        made = _copied(m, value, deep, remember, "copy.deepcopy")
        if isinstance(value, SequenceValue) and issubclass(value.kind, tuple):
            if all(m.use(old) is new for old, new in zip(value.items, made.items, strict=True)):  # type: ignore[attr-defined]
                made = value
        remember(made)
        return made

    return deep(args[0])


def _copied(m: Machine, value: Value, part: Part, remember: Callable[[Value], None], what: str) -> Value:
    """A copy of ``value``, its parts as ``part`` copies them. ``remember`` is told of it before its parts are."""
    if isinstance(value, _ATOMIC) or (isinstance(value, Known) and _is_shared(value.value)):
        return value
    if isinstance(value, InstanceDict):
        value = attributes.instance_items(m, value)
    if isinstance(value, TensorValue) and what == "copy.deepcopy" and _is_copied_by_clone(m, value):
        return m.tracer.call("call_method", "clone", (value,), {}, what)
    if isinstance(value, SequenceValue):
        made: Any = SequenceValue([], value.kind)
        if isinstance(value, DequeValue):
            made = DequeValue([], value.maxlen)
        if not issubclass(value.kind, tuple):
            remember(made)
        made.items.extend(part(item) for item in value.items)
        return made
    if isinstance(value, SetValue) and not holds_identity(value.items):
        return SetValue(list(value.items), type(value.items))
    known = value.kind in (dict, OrderedDict, defaultdict) if isinstance(value, DictValue) else False
    if isinstance(value, DictValue) and known and not (what == "copy.deepcopy" and holds_identity(value.items)):
        made = DictValue({}, value.kind, None, value.factory)
        remember(made)
        made.items.update((key, part(item)) for key, item in value.items.items())
        return made
    if isinstance(value, ObjectValue) and _is_plain(m, value):
        made = m.tracer.made(object.__new__(value.python_type))
        remember(made)
        for name, attribute in attributes.instance_items(m, InstanceDict(value)).items.items():
            m.tracer.attributes[id(made.value), name] = (made, part(attribute))
        return made
    raise _unknown(value, what)


def _is_copied_by_clone(m: Machine, value: TensorValue) -> bool:
    """Whether a deep copy of a tensor, which copies its whole storage and its attributes, is what ``clone`` gives."""
    if value.kind is not torch.Tensor or value.fake.requires_grad or m.tracer.attributes_of(value):
        return False
    tensor = value.fake if value.source is None else m.tracer.real(value)
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
