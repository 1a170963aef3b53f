"""Operators, comparisons and subscripts on tracked values."""

from __future__ import annotations

import enum
import operator
import sys
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from .. import classify
from ..breaks import Break, Raised, raising
from ..rules import torch_function
from ..tracing.tracer import specialise
from . import attributes, text
from .algebra import (
    ActiveValue,
    CellValue,
    Constant,
    DequeValue,
    DictValue,
    DictView,
    FunctionValue,
    InstanceDict,
    Known,
    MethodValue,
    NamedMethod,
    ObjectValue,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    TruthValue,
    Value,
)
from .iterators import LONGEST, advance, iterate, iterator
from .known import ELEMENT, PURE, UNKNOWN, fold, from_plain, holds_identity, key_of, plain

if TYPE_CHECKING:
    from ..machine import Machine

BINARY: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "@": operator.matmul, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift, "+=": operator.iadd, "-=": operator.isub,
    "*=": operator.imul, "/=": operator.itruediv, "//=": operator.ifloordiv, "%=": operator.imod,
    "**=": operator.ipow, "@=": operator.imatmul, "&=": operator.iand, "|=": operator.ior, "^=": operator.ixor,
    "<<=": operator.ilshift, ">>=": operator.irshift,
}  # fmt: skip
COMPARE: dict[str, Any] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_INPLACE = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv, operator.imod: operator.mod,
    operator.ipow: operator.pow, operator.imatmul: operator.matmul, operator.iand: operator.and_,
    operator.ior: operator.or_, operator.ixor: operator.xor, operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}  # fmt: skip
_COMPARISONS = {
    "<": (operator.lt, "__lt__", "__gt__"), "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"), ">=": (operator.ge, "__ge__", "__le__"),
    "==": (operator.eq, "__eq__", "__eq__"), "!=": (operator.ne, "__ne__", "__ne__"),
}  # fmt: skip
_UNARY = {operator.neg: ("__neg__", "-"), operator.pos: ("__pos__", "+"), operator.invert: ("__invert__", "~")}
_CONTAINERS = (SequenceValue, DictValue, SetValue, DictView)


def operate(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """An operator on values: a node when a tensor is involved, else computed."""
    kwargs = kwargs or {}
    args = [m.use(a) for a in args]
    if any(isinstance(a, TruthValue) for a in args):
        raise Break("FL102", what="bool(tensor)")
    name = getattr(function, "__name__", str(function))
    tensors = any(isinstance(a, TensorValue) for a in args)
    if tensors:
        own = torch_function.own(m, args[0], f"__{name.strip('_')}__")
        if own is not None:
            return m.use(m.call(own, args[1:], kwargs))
        handled = torch_function.dispatched(m, function, args, kwargs)
        if handled is not None:
            return handled
    if tensors or any(isinstance(a, SymbolValue) for a in args):
        if not tensors and not _gives_symbol(m, function, args):
            return fold(m, _INPLACE.get(function, function), args, kwargs, f"operator {name}")
        if not tensors:  # a bool beside a symbolic integer is the integer that it is; sympy knows no such thing
            args = [Constant(int(a.value)) if isinstance(a, Constant) and type(a.value) is bool else a for a in args]
        return m.tracer.call("call_function", function, tuple(args), kwargs, f"operator {name}")
    if function in _UNARY and len(args) == 1 and isinstance(args[0], ObjectValue):
        method, symbol = _UNARY[function]
        result = special(m, args[0], method, [])
        if result is not None:
            return result
        held = attributes.content(m, args[0])
        if held is not None:
            return operate(m, function, [held])
        raise raising(TypeError(f"bad operand type for unary {symbol}: '{args[0].python_type.__name__}'"))
    return fold(m, function, args, kwargs, f"operator {name}")


def _gives_symbol(m: Machine, function: Any, args: list[Value]) -> bool:
    """Whether an operator on symbolic numbers gives one; else they are specialised."""
    function = _INPLACE.get(function, function)
    kinds = {a.python_type for a in args}
    if function in _COMPARED:
        return kinds <= {int, bool}  # guards compare integers
    if function in (operator.floordiv, operator.mod, operator.truediv) and isinstance(args[1], SymbolValue):
        return m.truth(args[1]) is True  # the program raises ZeroDivisionError by itself
    return function in _ARITHMETIC and kinds <= {int, bool, float}


_COMPARED = frozenset({operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge})
_ARITHMETIC = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.truediv, operator.floordiv, operator.mod,
})  # fmt: skip


def special(m: Machine, value: Value, name: str, args: list[Value]) -> Value | None:
    """The result of a special method that the object's class defines in Python; None when it has none."""
    method, place = attributes.class_member(m, value.python_type, name)
    if method is None:
        raise Break("FL105", what=f"{value.python_type.__name__}.{name}", why="the class forbids it")
    if method is attributes.ABSENT or method is object.__dict__.get(name):
        return None
    if isinstance(method, (types.WrapperDescriptorType, types.MethodDescriptorType)):
        if isinstance(value, ObjectValue):
            if isinstance(value.value, BaseException) or attributes.content(m, value) is not None:
                return None  # what the builtin class does
        raise Break("FL105", what=f"{value.python_type.__name__}.{name}", why="it is implemented in C")
    return m.use(m.call(attributes.bind(m, method, value, name, place), args, {}))


def _not_implemented(value: Value | None) -> bool:
    return value is None or (isinstance(value, Constant) and value.value is NotImplemented)


def binary(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    """``left symbol right``."""
    if isinstance(left, Constant) and isinstance(left.value, (str, bytes)) and symbol in ("%", "%="):
        return text.percent(m, left.value, right)
    if any(isinstance(v, ObjectValue) or torch_function.is_subclass(v) for v in (left, right)):
        return _overloaded(m, function, left, right, symbol)
    if symbol in _COMPARISONS:
        return compare(m, left, right, symbol)
    if isinstance(left, ActiveValue) and (result := left.binary(symbol, right)) is not None:
        return result
    if isinstance(left, SliceValue) or isinstance(right, SliceValue):
        raise Break("FL105", what=f"operator {symbol}", why="on a slice")
    if isinstance(left, _CONTAINERS) or isinstance(right, _CONTAINERS):
        left, right = (Constant(specialise(v), v.source) if isinstance(v, SymbolValue) else v for v in (left, right))
        found = _on_containers(m, left, right, symbol.removesuffix("="), symbol.endswith("="))
        if found is not None:
            return found
        if isinstance(left, TensorValue) or isinstance(right, TensorValue):
            raise Break("FL105", what=f"operator {symbol}", why=f"on {left.describe()} and {right.describe()}")
    elif isinstance(left, (TensorValue, SymbolValue)) or isinstance(right, (TensorValue, SymbolValue)):
        if not isinstance(left, TensorValue):
            function = _INPLACE.get(function, function)  # a number has no in-place operators
        return operate(m, function, [left, right])
    return fold(m, function, [left, right], {}, f"operator {symbol}")


def _overloaded(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    """A binary operator or comparison of which a side may be an object that defines it."""
    inplace = function in _INPLACE
    if symbol in _COMPARISONS:
        name, reflected = _COMPARISONS[symbol][1:]
    else:
        base = _INPLACE.get(function, function).__name__.strip("_")
        name, reflected = f"__{base}__", f"__r{base}__"
        if inplace and isinstance(left, (ObjectValue, TensorValue)):
            result = _by_side(m, left, f"__i{base}__", right)
            if not _not_implemented(result):
                assert result is not None
                return result
    tries = [(left, name, right), (right, reflected, left)]
    kinds = left.python_type, right.python_type
    if kinds[0] is not kinds[1] and kinds[0] in kinds[1].__mro__:
        if symbol in _COMPARISONS or attributes.class_attribute(kinds[1], reflected) is not attributes.class_attribute(
            kinds[0], reflected
        ):
            tries.reverse()
    if kinds[0] is kinds[1] and symbol not in _COMPARISONS:
        tries.pop()
    for receiver, method, other in tries:
        if isinstance(receiver, (ObjectValue, TensorValue)):
            result = _by_side(m, receiver, method, other)
            if result is None and method == "__ne__" and isinstance(receiver, ObjectValue):
                result = _unequal(m, receiver, other)
            if not _not_implemented(result):
                assert result is not None
                return result
    if not isinstance(left, ObjectValue) and not isinstance(right, ObjectValue):
        return operate(m, function, [left, right])
    held = [attributes.content(m, v) if isinstance(v, ObjectValue) else v for v in (left, right)]
    if held[0] is not None and held[1] is not None and (held[0] is not left or held[1] is not right):
        if inplace and held[0] is not left and isinstance(held[0], _CONTAINERS):
            binary(m, function, held[0], held[1], symbol)
            return left
        return detached(binary(m, function, held[0], held[1], symbol), held)
    if symbol in ("==", "!="):
        same = identical(m, left, right)
        if same is None:
            raise Break("FL105", what=f"operator {symbol}", why=f"on {left.describe()} and {right.describe()}")
        return Constant(same == (symbol == "=="))
    raise raising(_unsupported(symbol, left, right))


def _by_side(m: Machine, receiver: ObjectValue | TensorValue, method: str, other: Value) -> Value | None:
    """What ``receiver.method(other)`` of a binary operator gives; None when nobody but torch defines it."""
    if isinstance(receiver, ObjectValue):
        return special(m, receiver, method, [other])
    own = torch_function.own(m, receiver, method)
    if own is not None:
        return m.use(m.call(own, [other], {}))
    return torch_function.dispatched(m, getattr(torch.Tensor, method), [receiver, other], {})


def detached(result: Value, held: list[Value | None]) -> Value:
    """A plain tuple where the result is what an instance of a subclass holds."""
    if isinstance(result, SequenceValue) and any(result is h for h in held):
        return SequenceValue(list(result.items), result.kind)
    return result


def _unequal(m: Machine, receiver: ObjectValue, other: Value) -> Value | None:
    """What ``object.__ne__`` makes of the class's ``__eq__``."""
    result = special(m, receiver, "__eq__", [other])
    if result is None or _not_implemented(result):
        return None
    truth = m.truth(result)
    if truth is None:
        raise Break("FL102", what=f"{receiver.describe()} != {other.describe()}")
    return Constant(not truth)


def _unsupported(symbol: str, left: Value, right: Value) -> TypeError:
    a, b = left.python_type.__name__, right.python_type.__name__
    if symbol in _COMPARISONS:
        return TypeError(f"'{symbol}' not supported between instances of '{a}' and '{b}'")
    shown = {"**": "** or pow()", "**=": "**="}.get(symbol, symbol)
    return TypeError(f"unsupported operand type(s) for {shown}: '{a}' and '{b}'")


def _on_containers(m: Machine, left: Value, right: Value, symbol: str, inplace: bool) -> Value | None:
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
    growing = isinstance(left, DequeValue) or left.kind is list
    if inplace and growing:
        added = iterate(m, right)
        m.tracer.mutate(left)
        left.items.extend(added)
        trim(left)
        return left
    if not isinstance(right, SequenceValue):
        return None
    items = [*left.items, *right.items]
    if isinstance(left, DequeValue):
        if not isinstance(right, DequeValue):
            return None
        made = DequeValue(items, left.maxlen)
        trim(made)
        return made
    if left.kind is list:
        return SequenceValue(items, list) if right.kind is list else None
    if not issubclass(left.kind, tuple) or not issubclass(right.kind, tuple):
        return None
    for whole, other in ((left, right), (right, left)):
        if whole.kind is tuple and not other.items and torch.Size is not other.kind:
            return whole
    return SequenceValue(items, torch.Size if torch.Size in (left.kind, right.kind) else tuple)


def trim(value: SequenceValue, from_left: bool = True) -> None:
    """Drops what a deque with a maximal length pushes out at the other end."""
    if isinstance(value, DequeValue) and value.maxlen is not None and len(value.items) > value.maxlen:
        if from_left:
            del value.items[: len(value.items) - value.maxlen]
        else:
            del value.items[value.maxlen :]


def _repeated(m: Machine, sequence: SequenceValue, times: int, inplace: bool) -> Value:
    if len(sequence.items) * times > LONGEST:
        raise Break("FL105", what="operator *", why=f"a {sequence.python_type.__name__} of that length is not tracked")
    if sequence.kind is tuple and times == 1:
        return sequence
    if inplace and not issubclass(sequence.kind, tuple):
        m.tracer.mutate(sequence)
        sequence.items *= times
        trim(sequence)
        return sequence
    if isinstance(sequence, DequeValue):
        made = DequeValue(sequence.items * times, sequence.maxlen)
        trim(made)
        return made
    return SequenceValue(sequence.items * times, sequence.kind if sequence.kind in (list, torch.Size) else tuple)


def _merged(m: Machine, left: DictValue, right: Value, inplace: bool) -> Value | None:
    if inplace:
        added = mapping_items(m, right)
        m.tracer.mutate(left)
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
    attributes.store_directly(m, raised.value, "__notes__", SequenceValue([note], list))
    return raised


def mapping_items(m: Machine, value: Value) -> dict[Any, Value]:
    """What ``dict.update(value)`` adds: the items of a mapping or of an iterable of pairs."""
    value = m.use(value)
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
        m.tracer.mutate(left)
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


# --- comparison -------------------------------------------------------------------------------------------------


def compare(m: Machine, left: Value, right: Value, symbol: str) -> Value:
    """``left symbol right`` of values neither of which is an object with attributes."""
    function = _COMPARISONS[symbol][0]
    sets = as_set(m, left), as_set(m, right)
    if sets[0] is not None and sets[1] is not None:
        return Constant(function(sets[0].items, sets[1].items))
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and _family(left) is _family(right):
        return _compare_sequences(m, left, right, symbol)
    if isinstance(left, DictValue) and isinstance(right, DictValue) and symbol in ("==", "!="):
        return Constant(_equal_dicts(m, left, right) == (symbol == "=="))
    containers = isinstance(left, _CONTAINERS) or isinstance(right, _CONTAINERS)
    if isinstance(left, (TensorValue, SymbolValue, TruthValue)) or isinstance(
        right, (TensorValue, SymbolValue, TruthValue)
    ):
        if containers and (isinstance(left, SymbolValue) or isinstance(right, SymbolValue)):
            if symbol in ("==", "!="):
                return Constant(symbol == "!=")
            raise raising(_unsupported(symbol, left, right))
        if symbol in ("==", "!=") and isinstance(left if containers else None, (SequenceValue, DictValue)):
            raise Break("FL105", what=f"operator {symbol}", why="of a container and a tensor")
        return operate(m, function, [left, right])
    known = plain(left), plain(right)
    if UNKNOWN not in known or not (containers or symbol in ("==", "!=")):
        return fold(m, function, [left, right], {}, f"operator {symbol}")
    if symbol in ("==", "!="):
        same = _same_callable(m, left, right)
        if same is None:
            raise Break("FL105", what=f"operator {symbol}", why=f"on {left.describe()} and {right.describe()}")
        return Constant(same == (symbol == "=="))
    raise raising(_unsupported(symbol, left, right))


def _same_callable(m: Machine, left: Value, right: Value) -> bool | None:
    """Equality of values that are equal when they are the same."""
    if isinstance(left, RuntimeNumber) or isinstance(right, RuntimeNumber):
        both = isinstance(left, RuntimeNumber) and isinstance(right, RuntimeNumber)
        return left.token is right.token if both else None  # type: ignore[attr-defined]
    if isinstance(left, MethodValue) and isinstance(right, MethodValue):
        same = identical(m, m.use(left.receiver), m.use(right.receiver))
        return same and identical(m, m.use(left.function), m.use(right.function))
    if isinstance(left, NamedMethod) and isinstance(right, NamedMethod):
        return left.name == right.name and identical(m, m.use(left.receiver), m.use(right.receiver))
    if isinstance(left, _CONTAINERS) != isinstance(right, _CONTAINERS):
        return False
    if isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS) and _family(left) is not _family(right):
        return False
    return identical(m, left, right)


def _family(value: Value) -> type | None:
    """The builtin type that compares with others of its kind only."""
    kind = value.python_type
    return next((base for base in (list, tuple, DequeValue, dict) if issubclass(kind, base)), kind)


def equal(m: Machine, left: Value, right: Value) -> bool:
    """Whether two members of containers are the same: identical, or else equal."""
    left, right = m.use(left), m.use(right)
    if left is right:
        return True
    constants = isinstance(left, Constant) and isinstance(right, Constant)
    if constants and (left.value is right.value or left.value == right.value):  # type: ignore[attr-defined]
        return True
    if not constants and identical(m, left, right):
        return True
    result = binary(m, operator.eq, left, right, "==")
    truth = m.truth(result)
    if truth is None:
        raise Break("FL102", what=f"{left.describe()} == {right.describe()}")
    return truth


def _compare_sequences(m: Machine, left: SequenceValue, right: SequenceValue, symbol: str) -> Value:
    if symbol in ("==", "!=") and len(left.items) != len(right.items) and not isinstance(left, DequeValue):
        return Constant(symbol == "!=")
    for i, (a, b) in enumerate(zip(left.items, right.items, strict=False)):
        if not equal(m, a, b):
            if i >= len(left.items) or i >= len(right.items):  # the comparison changed them
                break
            if symbol in ("==", "!="):
                return Constant(symbol == "!=")
            return m.use(binary(m, _COMPARISONS[symbol][0], m.use(left.items[i]), m.use(right.items[i]), symbol))
    return Constant(_COMPARISONS[symbol][0](len(left.items), len(right.items)))


def _equal_dicts(m: Machine, left: DictValue, right: DictValue) -> bool:
    if len(left.items) != len(right.items):
        return False
    if left.kind is right.kind is OrderedDict and list(left.items) != list(right.items):
        return False
    for key, value in left.items.items():
        if key not in right.items or not equal(m, value, right.items[key]):
            return False
    return True


def identical(m: Machine, left: Value, right: Value) -> bool | None:
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
    if isinstance(left, FunctionValue) and isinstance(right, FunctionValue):
        if left.function is right.function:
            return True
    elif isinstance(left, ObjectValue) and isinstance(right, ObjectValue):
        if left.value is right.value:
            return True
    elif isinstance(left, (MethodValue, NamedMethod, SliceValue, CellValue)) and type(left) is type(right):
        return None
    elif isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and left.kind is right.kind is tuple:
        if not left.items or not right.items:
            return not left.items and not right.items
        if left.source is right.source is None and UNKNOWN is not plain(left) == plain(right):
            return None  # they may be one constant of the code
    if isinstance(left, (Constant, Known)) or isinstance(right, (Constant, Known)) or type(left) is not type(right):
        return False
    if left.source is not None and right.source is not None:
        m.tracer.guard_different(left.source, right.source)
    return False


def contains(m: Machine, container: Value, member: Value) -> bool:
    """``member in container``."""
    if isinstance(container, (DictValue, SetValue)):
        if isinstance(container, SetValue) and isinstance(member, SetValue) and isinstance(member.items, set):
            return frozenset(member.items) in container.items  # CPython looks a set up as a frozenset
        return key_of(m, member, "a dict key" if isinstance(container, DictValue) else ELEMENT) in container.items
    if isinstance(container, DictView):
        if container.which == "keys":
            return key_of(m, member) in container.mapping.items
        if container.which == "items":
            if isinstance(member, SequenceValue) and issubclass(member.kind, tuple) and len(member.items) == 2:
                key = key_of(m, member.items[0])
                found = container.mapping.items.get(key)
                return found is not None and equal(m, found, member.items[1])
            return False
    if isinstance(container, InstanceDict):
        return attributes.instance_item(m, container, key_of(m, member)) is not None
    if isinstance(container, (SequenceValue, DictView)):
        return any(equal(m, item, member) for item in iterate(m, container))
    if (isinstance(container, Constant) and isinstance(container.value, (str, bytes, range, enum.Enum))) or (
        isinstance(container, Known) and isinstance(container.value, type)
    ):
        found = fold(m, operator.contains, [container, member], {}, "in")
        assert isinstance(found, Constant)
        return found.value
    if isinstance(container, ObjectValue):
        result = special(m, container, "__contains__", [member])
        if result is not None:
            truth = m.truth(result)
            if truth is None:
                raise Break("FL102", what=f"{member.describe()} in {container.describe()}")
            return truth
        held = attributes.content(m, container)
        if held is not None:
            return contains(m, held, member)
    elif isinstance(container, TensorValue):
        raise Break("FL102", what=f"{member.describe()} in {container.describe()}")
    elif isinstance(container, Constant):
        raise raising(TypeError(f"argument of type '{container.python_type.__name__}' is not iterable"))
    over = iterator(m, container)
    while (item := advance(m, over)) is not None:
        if equal(m, item, member):
            return True
    return False


# --- subscripts -------------------------------------------------------------------------------------------------


def index_of(m: Machine, key: Value) -> Any:
    """The integer or slice that a subscript of a sequence is; None when it is neither."""
    key = m.use(key)
    if isinstance(key, ObjectValue):
        held = attributes.content(m, key)
        found = held if held is not None else special(m, key, "__index__", [])
        key = key if found is None else m.use(found)
        if found is not None and not issubclass(key.python_type, int):
            raise raising(TypeError(f"__index__ returned non-int (type {key.python_type.__name__})"))
    if isinstance(key, Constant) and (isinstance(key.value, int) or type(key.value) is slice):
        return key.value
    if isinstance(key, Constant) and type(key.value) in classify.NUMPY_SCALARS and hasattr(key.value, "__index__"):
        return operator.index(key.value) if isinstance(key.value.item(), int) else None
    if isinstance(key, SliceValue):
        parts = [index_of(m, p) if not isinstance(m.use(p), Constant) else m.use(p).value for p in key.parts]  # type: ignore[attr-defined]
        if all(p is None or isinstance(p, int) for p in parts):
            return slice(*parts)
    if isinstance(key, (TensorValue, SymbolValue, SliceValue)):
        raise Break("FL105", what="an index", why=f"{key.describe()} is not known while tracing")
    return None


def subscript(m: Machine, container: Value, key: Value) -> Value:
    """``container[key]``."""
    container, key = m.use(container), m.use(key)
    if isinstance(container, TensorValue):
        return operate(m, operator.getitem, [container, key])
    if isinstance(key, (SymbolValue, SliceValue)) and (known := plain(key)) is not UNKNOWN:
        key = Constant(known)
    if isinstance(container, SequenceValue):
        index = index_of(m, key)
        if index is None or (isinstance(container, DequeValue) and isinstance(index, slice)):
            raise raising(_subscript_error(container, key))
        try:
            found = container.items[index]
        except (IndexError, ValueError, TypeError) as e:
            raise raising(_out_of_range(container) if isinstance(e, IndexError) else e) from None
        if isinstance(index, slice):
            if container.kind is tuple and len(found) == len(container.items) and (index.step or 1) == 1:  # type: ignore[arg-type]
                return container
            kind = container.kind if container.kind in (list, torch.Size) else tuple
            return SequenceValue(list(found), kind)  # type: ignore[call-overload]
        return m.use(found)  # type: ignore[arg-type]
    if isinstance(container, DictValue):
        return _dict_item(m, container, key)
    if isinstance(container, InstanceDict):
        found = attributes.instance_item(m, container, key_of(m, key))
        if found is None:
            raise Break("FL105", what="subscript", why=f"key {key.describe()} is missing")
        return found
    if isinstance(container, Constant):
        if isinstance(key, ObjectValue):
            key = Constant(index_of(m, key))
        return fold(m, operator.getitem, [container, key], {}, "subscript")
    if isinstance(container, Known) and isinstance(container.value, (type, *PURE)):
        return fold(m, operator.getitem, [container, key], {}, "subscript")
    if isinstance(container, ObjectValue):
        found = special(m, container, "__getitem__", [key])
        if found is not None:
            return found
        held = attributes.content(m, container)
        if isinstance(held, DictValue) and key_of(m, key) not in held.items:
            missing = special(m, container, "__missing__", [key])
            if missing is not None:
                return missing
        if held is not None:
            return detached(subscript(m, held, key), [held])
    if isinstance(container, (SetValue, DictView, ObjectValue)):
        raise raising(TypeError(f"'{container.python_type.__name__}' object is not subscriptable"))
    raise Break("FL105", what="subscript", why=f"of {container.describe()}")


def _dict_item(m: Machine, container: DictValue, key: Value) -> Value:
    wanted = key_of(m, key)
    found = container.items.get(wanted)
    if found is not None:
        return m.use(found)
    factory = container.factory
    if factory is not None and not (isinstance(factory, Constant) and factory.value is None):
        made = m.call(factory, [], {})
        m.tracer.mutate(container)
        container.items[wanted] = made
        return m.use(made)
    raise key_error(wanted)


def key_error(key: Any) -> Exception:
    """The KeyError of a missing key."""
    value = from_plain(key, "a dictionary key")
    known = plain(value)
    if known is UNKNOWN:
        return Break("FL105", what="KeyError", why=f"of {value.describe()}")
    return raising(KeyError(known))


def _out_of_range(container: SequenceValue, what: str = "") -> IndexError:
    kind = "deque" if isinstance(container, DequeValue) else "list" if container.kind is list else "tuple"
    return IndexError(f"{kind} {what}index out of range")


def _subscript_error(container: SequenceValue, key: Value) -> TypeError:
    kind = "list" if container.kind is list else "tuple"
    if isinstance(container, DequeValue):
        return TypeError(f"sequence index must be integer, not '{key.python_type.__name__}'")
    return TypeError(f"{kind} indices must be integers or slices, not {key.python_type.__name__}")


def store_subscript(m: Machine, container: Value, key: Value, value: Value) -> None:
    """``container[key] = value``."""
    container = m.use(container)
    if isinstance(container, TensorValue):
        own = torch_function.own(m, container, "__setitem__")
        if own is not None:
            m.call(own, [key, value], {})
            return
        if torch_function.dispatched(m, torch.Tensor.__setitem__, [container, key, value], {}) is not None:
            return
        m.tracer.call(
            "call_function", operator.setitem, (container, m.use(key), m.use(value)), {}, "setitem", keep=True
        )
        return
    if isinstance(container, DictValue):
        wanted = key_of(m, key)
        m.tracer.mutate(container)
        container.items[wanted] = value
        return
    if isinstance(container, SequenceValue) and not issubclass(container.kind, tuple):
        index = index_of(m, key)
        if index is None or (isinstance(container, DequeValue) and isinstance(index, slice)):
            raise raising(_subscript_error(container, m.use(key)))
        new: Any = value
        if isinstance(index, slice):
            if isinstance(m.use(value), (Constant, SymbolValue)) and not isinstance(
                plain(m.use(value)), (str, bytes, range)
            ):
                extended = index.step not in (None, 1)
                raise raising(
                    TypeError("must assign iterable to extended slice" if extended else "can only assign an iterable")
                )
            new = iterate(m, value)
        try:
            container.items[index] = new
        except (IndexError, ValueError, TypeError) as e:
            what = "" if isinstance(container, DequeValue) else "assignment "
            raise raising(_out_of_range(container, what) if isinstance(e, IndexError) else e) from None
        m.tracer.mutate(container)
        return
    if isinstance(container, ObjectValue):
        if special(m, container, "__setitem__", [key, value]) is not None:
            return
        held = attributes.content(m, container)
        if held is not None:
            store_subscript(m, held, key, value)
            return
    if isinstance(container, (SequenceValue, SetValue, ObjectValue, DictView, Constant)):
        raise raising(TypeError(f"'{container.python_type.__name__}' object does not support item assignment"))
    raise Break("FL105", what="item assignment", why=f"into {container.describe()}")


def delete_subscript(m: Machine, container: Value, key: Value) -> None:
    """``del container[key]``."""
    if isinstance(container, DictValue):
        wanted = key_of(m, key)
        if wanted not in container.items:
            raise key_error(wanted)
        m.tracer.mutate(container)
        del container.items[wanted]
        return
    if isinstance(container, SequenceValue) and not issubclass(container.kind, tuple):
        index = index_of(m, key)
        if index is None or (isinstance(container, DequeValue) and isinstance(index, slice)):
            raise raising(_subscript_error(container, m.use(key)))
        try:
            del container.items[index]
        except (IndexError, ValueError, TypeError) as e:
            what = "" if isinstance(container, DequeValue) else "assignment "
            raise raising(_out_of_range(container, what) if isinstance(e, IndexError) else e) from None
        m.tracer.mutate(container)
        return
    if isinstance(container, ObjectValue):
        if special(m, container, "__delitem__", [key]) is not None:
            return
        held = attributes.content(m, container)
        if held is not None:
            delete_subscript(m, held, key)
            return
    if isinstance(container, (SequenceValue, SetValue, ObjectValue, DictView, Constant)):
        kind = container.python_type.__name__
        raise raising(TypeError(f"'{kind}' object doesn't support item deletion"))
    raise Break("FL105", what="del", why=f"of an item of {container.describe()}")
