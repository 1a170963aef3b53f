"""Calls of Python's builtins."""

from __future__ import annotations

import operator
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from . import attributes
from .breaks import Break, Raised, raising
from .iterators import advance, iterate, iterator, stop_iteration
from .known import UNKNOWN, deep_use, fold, integer, key_of, plain
from .methods import tensor_method
from .operators import binary, operate
from .rules import RULES, Rule, rule
from .values import (
    CombinedIterator,
    Constant,
    DictValue,
    DictView,
    FunctionValue,
    GeneratorValue,
    InstanceDict,
    IteratorValue,
    Known,
    MadeFunction,
    MethodValue,
    NamedMethod,
    ObjectValue,
    SequenceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    Traceback,
    TruthValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine


@rule(len)
def _len(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (SequenceValue, DictValue)):
        return Constant(len(value.items))
    if isinstance(value, DictView):
        return Constant(len(value.mapping.items))
    if isinstance(value, InstanceDict):
        return Constant(len(attributes.instance_items(m, value).items))
    if isinstance(value, TensorValue):
        return tensor_method(m, value, "__len__", [], {})
    if isinstance(value, ObjectValue):
        return m.call(attributes.load(m, value, "__len__"), [], {})
    return fold(m, len, [value], {}, "len")


@rule(isinstance)
def _isinstance(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    classes = plain(deep_use(m, args[1]))
    if classes is UNKNOWN:
        raise Break("FL104", what="isinstance", why="the class is not known while tracing")
    value = m.use(args[0])
    if isinstance(value, TruthValue):
        return Constant(isinstance(True, classes))
    if isinstance(value, (Constant, Known, ObjectValue)):
        return Constant(isinstance(value.value, classes))
    if isinstance(value, TensorValue) and value.source is None:
        return Constant(isinstance(value.fake, classes) and issubclass(torch.Tensor, classes))
    try:
        return Constant(issubclass(value.python_type, classes))
    except TypeError as e:
        raise Break("FL104", what="isinstance", why=str(e)) from None


@rule(issubclass)
def _issubclass(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, classes = plain(m.use(args[0])), plain(deep_use(m, args[1]))
    if cls is UNKNOWN or classes is UNKNOWN:
        raise Break("FL104", what="issubclass", why="the class is not known while tracing")
    return Constant(issubclass(cls, classes))


@rule(type)
def _type(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        raise Break("FL104", what="type", why="classes are created eagerly")
    return Known(m.use(args[0]).python_type)


def _name(m: Machine, value: Value, what: str) -> str:
    name = m.use(value)
    if not isinstance(name, Constant):
        raise Break("FL104", what=what, why="the name is not known while tracing")
    if not isinstance(name.value, str):
        raise raising(TypeError("attribute name must be string, not '" + type(name.value).__name__ + "'"))
    return name.value


def _attribute(m: Machine, owner: Value, name: str) -> Value | None:
    """The attribute; None when there is none of that name."""
    try:
        return attributes.load(m, owner, name)
    except Raised as raised:
        if issubclass(raised.kind, AttributeError):
            return None
        raise


@rule(getattr)
def _getattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), _name(m, args[1], "getattr")
    if len(args) < 3:
        return attributes.load(m, owner, name)
    return _attribute(m, owner, name) or args[2]


@rule(object.__getattribute__)
def _getattribute(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), m.use(args[1])
    if not isinstance(owner, ObjectValue) or not isinstance(name, Constant):
        raise Break("FL104", what="object.__getattribute__", why=f"of {owner.describe()}")
    return attributes.generic(m, owner, name.value)


@rule(vars)
def _vars(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        raise Break("FL104", what="vars", why="it reads its caller's variables")
    return attributes.load(m, m.use(args[0]), "__dict__")


@rule(hasattr)
def _hasattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), _name(m, args[1], "hasattr")
    if isinstance(owner, TensorValue) and attributes.class_attribute(owner.kind, name) is not attributes.ABSENT:
        return Constant(hasattr(owner.fake, name))
    return Constant(_attribute(m, owner, name) is not None)


@rule(setattr)
def _setattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    attributes.store(m, m.use(args[0]), _name(m, args[1], "setattr"), args[2])
    return Constant(None)


@rule(delattr)
def _delattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    attributes.delete(m, m.use(args[0]), _name(m, args[1], "delattr"))
    return Constant(None)


@rule(int)
def _int(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if args else None
    if isinstance(value, SymbolValue) and value.python_type is int and len(args) == 1:
        return value
    return fold(m, int, args, kwargs, "int")


@rule(float)
def _float(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if args else None
    if isinstance(value, SymbolValue):
        return m.tracer.call("call_function", torch.sym_float, (value,), {}, "float")
    return fold(m, float, args, kwargs, "float")


@rule(bool)
def _bool(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if args else None
    truth = m.truth(value) if isinstance(value, SymbolValue) else None
    return fold(m, bool, args, kwargs, "bool") if truth is None else Constant(truth)


@rule(abs, operator.abs)
def _abs(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if len(args) == 1 else None
    if isinstance(value, SymbolValue):
        return value if m.truth(operate(m, operator.ge, [value, Constant(0)])) else operate(m, operator.neg, [value])
    return operate(m, abs, args, kwargs)


@rule(range)
def _range(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return fold(m, range, args, kwargs, "range")


@rule(list)
def _list(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(iterate(m, args[0]) if args else [], list)


@rule(tuple)
def _tuple(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(iterate(m, args[0]) if args else [], tuple)


@rule(torch.Size)
def _size(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(iterate(m, args[0]) if args else [], torch.Size)


@rule(dict)
def _dict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items: dict[Any, Value] = {}
    if args:
        value = m.use(args[0])
        if isinstance(value, ObjectValue) and issubclass(value.python_type, dict):
            held = attributes.content(m, value)
            if held is None or type(attributes.class_attribute(value.python_type, "keys")) is types.FunctionType:
                raise Break("FL104", what="dict", why=f"of {value.describe()}")
            value = held
        if isinstance(value, DictValue):
            items.update(value.items)
        else:
            for pair in iterate(m, value):
                row = iterate(m, pair)
                if len(row) != 2:
                    raise Break("FL104", what="dict", why="an item is no pair")
                items[key_of(m, row[0])] = row[1]
    items.update(kwargs)
    return DictValue(items)


@rule(enumerate)
def _enumerate(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = integer(m, kwargs.get("start", args[1] if len(args) > 1 else Constant(0)))
    return CombinedIterator(enumerate, [iterator(m, args[0])], Constant(start))


@rule(zip)
def _zip(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = kwargs.get("strict")
    if strict is not None and m.truth(strict):
        columns = [iterate(m, a) for a in args]
        if len({len(c) for c in columns}) > 1:
            raise Break("FL105", what="zip", why="the arguments differ in length")
        args = [SequenceValue(c, tuple) for c in columns]
    return CombinedIterator(zip, [iterator(m, a) for a in args])


@rule(map)
def _map(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) < 2:
        raise Break("FL104", what="map", why="it has nothing to map over")
    return CombinedIterator(map, [iterator(m, a) for a in args[1:]], args[0])


@rule(reversed)
def _reversed(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (SequenceValue, Constant, DictValue, DictView)):
        return IteratorValue(value, list(reversed(iterate(m, value))), backwards=True)
    raise Break("FL104", what="reversed", why=f"of {value.describe()}")


@rule(iter)
def _iter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if len(args) > 1:
        raise Break("FL104", what="iter", why="the two-argument form runs eagerly")
    return iterator(m, value)


@rule(next)
def _next(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (Constant, SequenceValue, DictValue, DictView, TensorValue)):
        raise raising(TypeError(f"'{value.python_type.__name__}' object is not an iterator"))
    item = advance(m, value)
    if item is not None:
        return m.use(item)
    if len(args) > 1:
        return args[1]
    returned = None
    if isinstance(value, GeneratorValue):
        returned, value.returned = value.returned, None
    raise stop_iteration(m, returned)


@rule(sys.exc_info)
def _exc_info(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    exception = m.handled_exception()
    if exception is None:
        raise Break("FL104", what="sys.exc_info", why="it asks for an exception handled outside the function")
    return SequenceValue([Known(exception.python_type), exception, Traceback()], tuple)


@rule(sum)
def _sum(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total = m.use(kwargs.get("start", args[1] if len(args) > 1 else Constant(0)))
    for item in iterate(m, args[0]):
        total = binary(m, operator.add, total, m.use(item), "+")
    return total


def _extreme(function: Any) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        items = [m.use(v) for v in (iterate(m, args[0]) if len(args) == 1 else args)]
        if any(isinstance(i, SymbolValue) for i in items) and not kwargs:
            return _extreme_number(m, items, operator.lt if function is min else operator.gt)
        if any(isinstance(i, TensorValue) for i in items):
            raise Break("FL102", what=f"{function.__name__}() of tensors")
        return fold(m, function, [SequenceValue(items, list)], kwargs, function.__name__)

    return run


def _extreme_number(m: Machine, items: list[Value], better: Any) -> Value:
    """The least or greatest of numbers, some of them symbols: which one it is, is guarded."""
    found = items[0]
    for item in items[1:]:
        if m.truth(binary(m, better, item, found, "<")):
            found = item
    return found


RULES[min], RULES[max] = _extreme(min), _extreme(max)


def _quantifier(function: Any, stop: bool) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        for item in iterate(m, args[0]):
            truth = m.truth(item)
            if truth is None:
                raise Break("FL102", what=f"{function.__name__}() of tensors")
            if truth == stop:
                return Constant(stop)
        return Constant(not stop)

    return run


RULES[any], RULES[all] = _quantifier(any, True), _quantifier(all, False)


@rule(callable)
def _callable(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (FunctionValue, MadeFunction, MethodValue, NamedMethod)):
        return Constant(True)
    if isinstance(value, (Constant, Known, ObjectValue)):
        return Constant(callable(value.value))
    return Constant(False)


@rule(super)
def _super(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        cell = m.cells.get("__class__")
        first = m.code.co_varnames[0] if m.code.co_argcount else None
        if cell is None or first is None:
            raise Break("FL105", what="super()", why="outside a method")
        from .machine import read_cell

        cls = m.use(read_cell(m, cell, "__class__"))
        receiver = m.locals.get(first) or m.cells[first].contents
    else:
        cls, receiver = m.use(args[0]), args[1]
    if not isinstance(cls, Known) or receiver is None:
        raise Break("FL105", what="super()", why="the class is not known while tracing")
    return SuperValue(cls.value, m.use(receiver))
