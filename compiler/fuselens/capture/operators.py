"""Operators, comparisons and subscripts on tracked values."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from . import attributes
from .breaks import Break, raising
from .iterators import iterate
from .known import UNKNOWN, deep_use, fold, key_of, plain
from .tracer import specialise
from .values import (
    Constant,
    DictValue,
    DictView,
    FunctionValue,
    InstanceDict,
    Known,
    ObjectValue,
    SequenceValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    TruthValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine

_INPLACE = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv, operator.imod: operator.mod,
    operator.ipow: operator.pow, operator.imatmul: operator.matmul, operator.iand: operator.and_,
    operator.ior: operator.or_, operator.ixor: operator.xor, operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}  # fmt: skip


def operate(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """An operator on values: a node when a tensor is involved, else computed."""
    kwargs = kwargs or {}
    args = [m.use(a) for a in args]
    if any(isinstance(a, TruthValue) for a in args):
        raise Break("FL102", what="bool(tensor)")
    name = getattr(function, "__name__", str(function))
    tensors = any(isinstance(a, TensorValue) for a in args)
    if tensors or any(isinstance(a, SymbolValue) for a in args):
        if not tensors and not _gives_symbol(m, function, args):
            return fold(m, _INPLACE.get(function, function), args, kwargs, f"operator {name}")
        return m.tracer.call("call_function", function, tuple(args), kwargs, f"operator {name}")
    return fold(m, function, args, kwargs, f"operator {name}")


def _gives_symbol(m: Machine, function: Any, args: list[Value]) -> bool:
    """Whether an operator on symbolic numbers gives one; else they are specialised."""
    function = _INPLACE.get(function, function)
    kinds = {a.python_type for a in args}
    if function in _COMPARISONS:
        return kinds <= {int, bool}  # guards compare integers
    if function in (operator.floordiv, operator.mod, operator.truediv) and isinstance(args[1], SymbolValue):
        return m.truth(args[1]) is True  # the program raises ZeroDivisionError by itself
    return function in _ARITHMETIC and kinds <= {int, bool, float}


_COMPARISONS = frozenset({operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge})
_ARITHMETIC = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.truediv, operator.floordiv, operator.mod,
})  # fmt: skip


def binary(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    """``left symbol right``."""
    if isinstance(left, (TensorValue, SymbolValue)) or isinstance(right, (TensorValue, SymbolValue)):
        if not isinstance(left, (SequenceValue, DictValue, ObjectValue)) and not isinstance(
            right, (SequenceValue, DictValue, ObjectValue)
        ):
            if not isinstance(left, TensorValue):
                function = _INPLACE.get(function, function)  # a number has no in-place operators
            return operate(m, function, [left, right])
        left, right = (Constant(specialise(v), v.source) if isinstance(v, SymbolValue) else v for v in (left, right))
    if isinstance(left, SequenceValue):
        if symbol in ("+", "+=") and isinstance(right, SequenceValue) and (left.kind, right.kind) in _JOINABLE:
            if symbol == "+=" and left.kind is list:
                m.tracer.mutate(left)
                left.items.extend(right.items)
                return left
            return SequenceValue(
                [*left.items, *right.items], torch.Size if torch.Size in (left.kind, right.kind) else left.kind
            )
        if (
            symbol == "*"
            and isinstance(right, Constant)
            and type(right.value) is int
            and left.kind in (list, tuple, torch.Size)
        ):
            return SequenceValue(left.items * right.value, left.kind)
    elif symbol == "*" and isinstance(right, SequenceValue) and isinstance(left, Constant) and type(left.value) is int:
        return SequenceValue(right.items * left.value, right.kind)
    elif symbol == "|" and isinstance(left, DictValue) and isinstance(right, DictValue):
        return DictValue({**left.items, **right.items})
    for a, b, prefix in ((left, right, ""), (right, left, "r")):
        if isinstance(a, ObjectValue):
            name = f"__{prefix}{_INPLACE.get(function, function).__name__.strip('_')}__"
            method, place = attributes.class_member(m, type(a.value), name)
            if type(method) is types.FunctionType and function not in _INPLACE:
                result = m.call(attributes.bind(m, method, a, name, place), [b], {})
                if not (isinstance(result, Constant) and result.value is NotImplemented):
                    return result
            held = attributes.content(m, a)
            if held is not None:
                return binary(m, function, *((held, b) if not prefix else (b, held)), symbol)
            raise Break("FL105", what=f"operator {symbol}", why=f"on {a.describe()}")
    return fold(m, _INPLACE.get(function, function), [left, right], {}, f"operator {symbol}")


_JOINABLE = {(list, list), (tuple, tuple), (torch.Size, torch.Size), (torch.Size, tuple), (tuple, torch.Size)}


def identical(left: Value, right: Value) -> bool | None:
    """``left is right``; None when it is not decided."""
    if left is right:
        return True
    if isinstance(left, Constant) and isinstance(right, Constant):
        if left.value is right.value:
            return True
        singleton = (type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype)
        if isinstance(left.value, singleton) or isinstance(right.value, singleton):
            return False
        return None if type(left.value) is type(right.value) and left.value == right.value else False
    if isinstance(left, Known) and isinstance(right, Known):
        return left.value is right.value
    if isinstance(left, ObjectValue) and isinstance(right, ObjectValue):
        return None if left.value is not right.value else True
    if isinstance(left, FunctionValue) and isinstance(right, FunctionValue):
        return None if left.function is not right.function else True
    if isinstance(left, (Constant, Known)) or isinstance(right, (Constant, Known)):
        return False
    if type(left) is not type(right):
        return False
    return None if left.source is not None and right.source is not None else False


def contains(m: Machine, container: Value, member: Value) -> bool:
    if isinstance(container, DictView):
        if container.which == "keys":
            return key_of(m, member) in container.mapping.items
        container = SequenceValue(iterate(m, container), list)
    if isinstance(container, DictValue):
        return key_of(m, member) in container.items
    if isinstance(container, InstanceDict):
        return attributes.instance_item(m, container, key_of(m, member)) is not None
    known = plain(deep_use(m, container))
    key = plain(member)
    if key is not UNKNOWN and known is not UNKNOWN:
        try:
            return key in known
        except TypeError as e:
            raise raising(e) from None
    if isinstance(container, SequenceValue) and isinstance(member, Constant):
        items = [m.use(v) for v in container.items]
        if all(isinstance(i, (Constant, Known, FunctionValue, SequenceValue)) for i in items):
            return any(isinstance(i, Constant) and i.value == member.value for i in items)
    if isinstance(container, ObjectValue):
        result = m.call(attributes.load(m, container, "__contains__"), [member], {})
        if isinstance(result, Constant):
            return bool(result.value)
    raise Break("FL105", what="in", why=f"{member.describe()} in {container.describe()}")


def subscript(m: Machine, container: Value, key: Value) -> Value:
    """``container[key]``."""
    container, key = m.use(container), m.use(key)
    if isinstance(container, TensorValue):
        return operate(m, operator.getitem, [container, key])
    if isinstance(key, (SymbolValue, SliceValue)) and (known := plain(key)) is not UNKNOWN:
        key = Constant(known)
    if isinstance(container, SequenceValue):
        if isinstance(key, Constant) and type(key.value) in (int, bool, slice):
            try:
                found = container.items[key.value]
            except IndexError:
                raise raising(
                    IndexError(f"{'list' if container.kind is list else 'tuple'} index out of range")
                ) from None
            except (TypeError, ValueError) as e:
                raise raising(e) from None
            if isinstance(found, list):
                kind = container.kind if container.kind in (list, tuple, torch.Size) else tuple
                return SequenceValue(found, kind)
            return m.use(found)
    if isinstance(container, DictValue):
        wanted = key_of(m, key)
        if wanted not in container.items:
            missing = attributes.class_attribute(container.kind, "__missing__")
            if missing is not attributes.ABSENT:
                raise Break("FL105", what="subscript", why=f"{container.kind.__name__} makes what is missing")
            raise raising(KeyError(wanted))
        return m.use(container.items[wanted])
    if isinstance(container, InstanceDict):
        found = attributes.instance_item(m, container, key_of(m, key))
        if found is None:
            raise Break("FL105", what="subscript", why=f"key {key.describe()} is missing")
        return found
    if isinstance(container, Constant):
        return fold(m, operator.getitem, [container, key], {}, "subscript")
    if isinstance(container, ObjectValue):
        return m.call(attributes.load(m, container, "__getitem__"), [key], {})
    raise Break("FL105", what="subscript", why=f"of {container.describe()}")


def store_subscript(m: Machine, container: Value, key: Value, value: Value) -> None:
    """``container[key] = value``."""
    container = m.use(container)
    if isinstance(container, TensorValue):
        m.tracer.call(
            "call_function", operator.setitem, (container, m.use(key), m.use(value)), {}, "setitem", keep=True
        )
        return
    if isinstance(container, DictValue):
        m.tracer.mutate(container)
        container.items[key_of(m, key)] = value
        return
    if isinstance(container, SequenceValue) and container.kind is list:
        index = plain(m.use(key))
        if type(index) is int and -len(container.items) <= index < len(container.items):
            m.tracer.mutate(container)
            container.items[index] = value
            return
        if type(index) is int:
            raise raising(IndexError("list assignment index out of range"))
    if isinstance(container, ObjectValue):
        m.call(attributes.load(m, container, "__setitem__"), [key, value], {})
        return
    raise Break("FL105", what="item assignment", why=f"into {container.describe()}")


def delete_subscript(m: Machine, container: Value, key: Value) -> None:
    if isinstance(container, DictValue):
        wanted = key_of(m, key)
        if wanted in container.items:
            m.tracer.mutate(container)
            del container.items[wanted]
            return
        raise raising(KeyError(wanted))
    if isinstance(container, ObjectValue):
        m.call(attributes.load(m, container, "__delitem__"), [key], {})
        return
    raise Break("FL105", what="del", why=f"of an item of {container.describe()}")
