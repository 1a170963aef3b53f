"""Operators of lists, tuples, deques, dictionaries and sets, and what they and methods of the same meaning share."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from ..breaks import Break, Raised, raising
from . import assignments, attributes
from .algebra import (
    Constant,
    DictValue,
    DictView,
    InstanceDict,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    Value,
)
from .hashing import ELEMENT, key_of
from .iterators import LONGEST, iterate
from .known import holds_identity

if TYPE_CHECKING:
    from ..machine import Machine


def on_containers(m: Machine, left: Value, right: Value, symbol: str, inplace: bool) -> Value | None:
    """A binary operator of lists, tuples, sets, dictionaries; None where Python's own answer is an exception."""
    if symbol == "+" and isinstance(left, SequenceValue):
        return _concatenated(m, left, right, inplace)
    if symbol == "*":
        sequence, times = (left, right) if isinstance(left, SequenceValue) else (right, left)
        if isinstance(sequence, SequenceValue) and isinstance(times, Constant) and isinstance(times.value, int):
            return _repeated(m, sequence, times.value, inplace and sequence is left)
        return None
    if isinstance(left, DictValue) and symbol == "|":
        return _merged(m, left, right, inplace)
    if isinstance(left, (SetValue, DictView)) or isinstance(right, (SetValue, DictView)):
        return _set_operator(m, left, right, symbol, inplace)
    return None


def _concatenated(m: Machine, left: SequenceValue, right: Value, inplace: bool) -> Value | None:
    if inplace and left.family != "tuple":
        added = iterate(m, right)
        m.tracer.effects.mutate(left)
        left.items.extend(added)
        left.trim()
        return left
    if not isinstance(right, SequenceValue):
        return None
    items = [*left.items, *right.items]
    if left.family != "tuple":
        if left.family != right.family:
            return None
        made = left.like(items)
        made.trim()
        return made
    if not issubclass(left.kind, tuple) or not issubclass(right.kind, tuple):
        return None
    for whole, other in ((left, right), (right, left)):
        if whole.kind is tuple and not other.items and torch.Size is not other.kind:
            return whole
    return SequenceValue(items, torch.Size if torch.Size in (left.kind, right.kind) else tuple)


def _repeated(m: Machine, sequence: SequenceValue, times: int, inplace: bool) -> Value:
    if len(sequence.items) * times > LONGEST:
        raise Break("FL105", what="operator *", why=f"a {sequence.python_type.__name__} of that length is not tracked")
    if sequence.kind is tuple and times == 1:
        return sequence
    if inplace and not issubclass(sequence.kind, tuple):
        m.tracer.effects.mutate(sequence)
        sequence.items *= times
        sequence.trim()
        return sequence
    if sequence.family == "deque":
        made = sequence.like(sequence.items * times)
        made.trim()
        return made
    return SequenceValue(sequence.items * times, sequence.kind if sequence.kind in (list, torch.Size) else tuple)


def _merged(m: Machine, left: DictValue, right: Value, inplace: bool) -> Value | None:
    if inplace:
        added = mapping_items(m, right)
        m.tracer.effects.mutate(left)
        left.items.update(added)
        return left
    if not isinstance(right, DictValue):
        return None
    kind = right.kind if left.kind is dict and right.kind is not dict else left.kind
    factory = left.factory if left.kind is kind else right.factory
    return DictValue({**left.items, **right.items}, kind, None, factory)


def _no_pair(m: Machine, i: int) -> Raised:
    """What ``dict.update`` raises where the i-th of its pairs cannot be iterated over."""
    if sys.version_info < (3, 14):
        return raising(TypeError(f"cannot convert dictionary update sequence element #{i} to a sequence"))
    raised = raising(TypeError("object is not iterable"))
    note = Constant(f"Cannot convert dictionary update sequence element #{i} to a sequence")
    assignments.store_directly(m, raised.value, "__notes__", SequenceValue([note], list))
    return raised


def mapping_items(m: Machine, value: Value) -> dict[Any, Value]:
    """What ``dict.update(value)`` adds: the items of a mapping or of an iterable of pairs."""
    from .subscripts import subscript

    value = m.use(value)
    while isinstance(value, ProxyValue):
        value = m.use(value.mapping)
    if isinstance(value, InstanceDict):
        value = attributes.instance_items(m, value)
    if isinstance(value, ObjectValue):
        held = attributes.content(m, value)
        if attributes.class_attribute(value.python_type, "keys") is not attributes.ABSENT:
            own = attributes.class_attribute(value.python_type, "__iter__")
            if not isinstance(held, DictValue) or type(own) is types.FunctionType:
                keys = iterate(m, m.call(attributes.load(m, value, "keys"), [], {}))
                return {key_of(m, k): subscript(m, value, k) for k in keys}
            value = held
    if isinstance(value, DictValue):
        return dict(value.items)
    items: dict[Any, Value] = {}
    for i, pair in enumerate(iterate(m, value)):
        try:
            both = iterate(m, pair)
        except Raised as raised:
            if issubclass(raised.kind, TypeError):
                raise _no_pair(m, i) from None
            raise
        if len(both) != 2:
            raise raising(ValueError(f"dictionary update sequence element #{i} has length {len(both)}; 2 is required"))
        items[key_of(m, both[0])] = both[1]
    return items


def elements(m: Machine, value: Value, use: str = ELEMENT) -> list[Any]:
    """The keys of what iterating over ``value`` gives, as elements of a set, or as what is their ``use``."""
    value = m.use(value)
    if isinstance(value, SetValue):
        return value.elements()
    if isinstance(value, DictValue):
        return list(value.items)
    return [key_of(m, v, use) for v in iterate(m, value)]


def as_set(m: Machine, value: Value) -> SetValue | None:
    """A set, or what a view of keys or items is as one; None for other values."""
    if isinstance(value, SetValue):
        return value
    if isinstance(value, DictView) and value.which != "values":
        return SetValue(elements(m, value))
    return None


_SET_METHODS = {"&": "intersection", "|": "union", "-": "difference", "^": "symmetric_difference"}


def _set_operator(m: Machine, left: Value, right: Value, symbol: str, inplace: bool) -> Value | None:
    view = isinstance(left, DictView) or isinstance(right, DictView)
    a = as_set(m, left)
    b = SetValue(elements(m, right)) if view and not isinstance(right, (SetValue, DictView)) else as_set(m, right)
    if a is None and view:
        a = SetValue(elements(m, left))
    if a is None or b is None or symbol not in _SET_METHODS:
        return None
    if inplace and isinstance(left, SetValue) and isinstance(left.items, set):
        m.tracer.effects.mutate(left)
        change_set(m, left, _SET_METHODS[symbol], [b])
        return left
    return combined_sets(a, _SET_METHODS[symbol], [b], set if view else type(a.items))


def combined_sets(a: SetValue, name: str, others: list[SetValue], kind: Any = None) -> SetValue:
    """``a.name(*others)``, in the order that a real set has."""
    result = getattr(a.items, name)(*(o.items for o in others))
    operands = [a, *others]
    kind = kind or type(a.items)
    if type(result) is not kind:
        result = kind(result)
    made = SetValue(result, kind, ordered=all(o.ordered and o.order is None for o in operands))
    if not made.ordered:
        method = kind if name == "copy" else getattr(type(a.items), name)
        made.origin = method, [(o, len(o.steps)) for o in operands]
    return made


def change_set(m: Machine, target: SetValue, name: str, others: list[Value]) -> None:
    """The in-place form of a method that combines sets."""
    for other in others:
        operand = as_set(m, other)
        if name == "union" and isinstance(other, SetValue) and not holds_identity(other.items):
            target.change("update", [frozenset(other.items)])
        elif name == "union":
            target.change("add", elements(m, other))
        elif name == "difference":
            target.change("discard", elements(m, other))
        else:
            keys = operand.items if operand is not None else elements(m, other)
            result = list(getattr(target.items, name)(keys))
            target.change("discard", [k for k in target.elements() if k not in set(result)])
            target.change("add", [k for k in result if k not in target.items])
        if isinstance(other, SetValue) and (not other.ordered or other.order is not None):
            target.ordered = False
