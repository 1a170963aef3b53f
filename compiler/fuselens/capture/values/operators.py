"""Operators and comparisons on tracked values."""

from __future__ import annotations

import math
import operator
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from ..arrays import operations as arrays
from ..breaks import Break, raising
from ..rules import torch_function
from ..tracing.tracer import specialise
from . import attributes, text
from .algebra import (
    ActiveValue,
    ArrayValue,
    Constant,
    DequeValue,
    DictValue,
    DictView,
    InstanceDict,
    Known,
    MethodValue,
    NamedMethod,
    ObjectValue,
    ProxyValue,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    TruthValue,
    Value,
)
from .container_operators import as_set, on_containers
from .identity import identical
from .kinds import PerKind
from .known import UNKNOWN, fold, plain

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
    if any(isinstance(a, ArrayValue) for a in args):
        args = arrays.beside_tensors(m, args, name)
        if any(isinstance(a, ArrayValue) for a in args):
            in_place = isinstance(args[0], ArrayValue) and not args[0].is_number
            return arrays.operate(m, function if in_place else _INPLACE.get(function, function), args, kwargs)
    if any(isinstance(a, TensorValue) for a in args):
        return _operate_on_tensors(m, function, args, kwargs, name)
    if any(isinstance(a, SymbolValue) for a in args):
        return _operate_on_symbols(m, function, args, kwargs, f"operator {name}")
    if function in _UNARY and len(args) == 1 and isinstance(args[0], ObjectValue):
        return _unary_of_object(m, function, args[0])
    return fold(m, function, args, kwargs, f"operator {name}")


def _operate_on_tensors(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value], name: str) -> Value:
    own = torch_function.own(m, args[0], f"__{name.strip('_')}__")
    if own is not None:
        return m.use(m.call(own, args[1:], kwargs))
    handled = torch_function.dispatched(m, function, args, kwargs)
    if handled is not None:
        return handled
    return m.tracer.call("call_function", function, tuple(args), kwargs, f"operator {name}")


def _operate_on_symbols(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value:
    if function in _COMPARED and {a.python_type for a in args} == {int, float}:
        args = _as_integers(function, args)
    if not _gives_symbol(m, function, args):
        return fold(m, _INPLACE.get(function, function), args, kwargs, what)
    # a bool beside a symbolic integer is the integer that it is; sympy knows no such thing
    args = [Constant(int(a.value)) if isinstance(a, Constant) and type(a.value) is bool else a for a in args]
    return m.tracer.call("call_function", function, tuple(args), kwargs, what)


def _is_float(value: Value) -> bool:
    """Whether guards can compare it with a float: another, or a finite number that is known."""
    if isinstance(value, Constant):
        return math.isfinite(value.value)
    return value.python_type is float


def _as_integers(function: Any, args: list[Value]) -> list[Value]:
    """An integer that is compared with a known float, as one that is compared with the next integer."""
    known = next((a for a in args if isinstance(a, Constant)), None)
    if known is None or known.python_type is not float or not math.isfinite(known.value):
        return args
    below = (function in (operator.le, operator.gt)) is (args[1] is known)
    equal = function in (operator.eq, operator.ne)
    if equal and not known.value.is_integer():
        return args
    whole = Constant(math.floor(known.value) if below else math.ceil(known.value))
    return [whole if a is known else a for a in args]


def _unary_of_object(m: Machine, function: Any, value: ObjectValue) -> Value:
    method, symbol = _UNARY[function]
    result = attributes.special(m, value, method, [])
    if result is not None:
        return result
    held = attributes.content(m, value)
    if held is not None:
        return operate(m, function, [held])
    raise raising(TypeError(f"bad operand type for unary {symbol}: '{value.python_type.__name__}'"))


def _gives_symbol(m: Machine, function: Any, args: list[Value]) -> bool:
    """Whether an operator on symbolic numbers gives one; else they are specialised."""
    function = _INPLACE.get(function, function)
    kinds = {a.python_type for a in args}
    if function in _COMPARED:
        return kinds <= {int, bool} or (kinds <= {int, float} and all(map(_is_float, args)))
    if function in (operator.floordiv, operator.mod, operator.truediv) and isinstance(args[1], SymbolValue):
        return m.truth(args[1]) is True  # the program raises ZeroDivisionError by itself
    return function in _ARITHMETIC and kinds <= {int, bool, float}


_COMPARED = frozenset({operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge})
_ARITHMETIC = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.truediv, operator.floordiv, operator.mod,
})  # fmt: skip


def _is_not_implemented(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is NotImplemented


def binary(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    """``left symbol right``."""
    if isinstance(left, Constant) and isinstance(left.value, (str, bytes)) and symbol in ("%", "%="):
        return text.percent(m, left.value, right)
    if isinstance(left, ArrayValue) or isinstance(right, ArrayValue):
        return operate(m, function, [left, right])
    if isinstance(left, ProxyValue) or isinstance(right, ProxyValue):
        return _of_proxies(m, function, left, right, symbol)
    if any(isinstance(v, ObjectValue) or torch_function.is_subclass(v) for v in (left, right)):
        return _overloaded(m, function, left, right, symbol)
    if attributes.has_own_metaclass(left) or attributes.has_own_metaclass(right):
        return _overloaded(m, function, left, right, symbol)
    if symbol in _COMPARISONS:
        return compare(m, left, right, symbol)
    if isinstance(left, ActiveValue) and (result := left.binary(symbol, right)) is not None:
        return result
    if isinstance(left, SliceValue) or isinstance(right, SliceValue):
        raise Break("FL105", what=f"operator {symbol}", why="on a slice")
    if isinstance(left, _CONTAINERS) or isinstance(right, _CONTAINERS):
        return _of_containers(m, function, left, right, symbol)
    if isinstance(left, (TensorValue, SymbolValue)) or isinstance(right, (TensorValue, SymbolValue)):
        if not isinstance(left, TensorValue):
            function = _INPLACE.get(function, function)  # a number has no in-place operators
        return operate(m, function, [left, right])
    return fold(m, function, [left, right], {}, f"operator {symbol}")


def _of_containers(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    left, right = (Constant(specialise(v), v.source) if isinstance(v, SymbolValue) else v for v in (left, right))
    found = on_containers(m, left, right, symbol.removesuffix("="), symbol.endswith("="))
    if found is not None:
        return found
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        raise Break("FL105", what=f"operator {symbol}", why=f"on {left.describe()} and {right.describe()}")
    return fold(m, function, [left, right], {}, f"operator {symbol}")


def _of_proxies(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    """A binary operator or comparison of which a side is a proxy of a mapping, which hands it on."""
    if isinstance(left, ProxyValue) and symbol in _COMPARISONS:
        return binary(m, function, m.use(left.mapping), right, symbol)
    plainly = not isinstance(left, (ProxyValue, ObjectValue)) and symbol in ("==", "!=", "|=")
    if not plainly and (symbol != "|" or isinstance(left, ObjectValue) or isinstance(right, ObjectValue)):
        raise Break("FL105", what=f"operator {symbol}", why=f"on {left.describe()} and {right.describe()}")
    left, right = (m.use(v.mapping) if isinstance(v, ProxyValue) else v for v in (left, right))
    return binary(m, function, left, right, symbol)


def _overloaded(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    """A binary operator or comparison of which a side may be an object that defines it."""
    for receiver, method, other in _tries(function, left, right, symbol):
        result = _DEFINED[type(receiver)](m, receiver, method, other)
        if result is not None and not _is_not_implemented(result):
            return result
    if not isinstance(left, ObjectValue) and not isinstance(right, ObjectValue):
        if symbol in ("==", "!=") and (isinstance(left, Known) or isinstance(right, Known)):
            return _by_identity(identical(m, left, right), left, right, symbol)
        return operate(m, function, [left, right])
    inherited = _on_contents(m, function, left, right, symbol)
    if inherited is not None:
        return inherited
    if symbol in ("==", "!="):
        return _by_identity(identical(m, left, right), left, right, symbol)
    raise raising(_unsupported(symbol, left, right))


def _tries(function: Any, left: Value, right: Value, symbol: str) -> list[tuple[Value, str, Value]]:
    """The special methods that Python asks for an operator, in order: receiver, method, argument."""
    kinds = left.python_type, right.python_type
    derived = kinds[0] is not kinds[1] and kinds[0] in kinds[1].__mro__
    if symbol in _COMPARISONS:
        _, name, reflected = _COMPARISONS[symbol]
        tries = [(left, name, right), (right, reflected, left)]
        return tries[::-1] if derived else tries
    base = _INPLACE.get(function, function).__name__.strip("_")
    name, reflected = f"__{base}__", f"__r{base}__"
    tries = [(left, name, right)]
    if kinds[0] is not kinds[1]:
        own = [attributes.class_attribute(kind, reflected) for kind in kinds]
        tries.insert(0 if derived and own[0] is not own[1] else 1, (right, reflected, left))
    return [(left, f"__i{base}__", right), *tries] if function in _INPLACE else tries


_DEFINED: PerKind[Value | None] = PerKind(lambda m, receiver, method, other: None)
"""What ``receiver.method(other)`` of an operator gives; None where only builtin classes define it."""


@_DEFINED.of(ObjectValue)
def _defined_by_object(m: Machine, receiver: ObjectValue, method: str, other: Value) -> Value | None:
    if receiver.python_type is types.SimpleNamespace and method == "__eq__":
        return _same_namespace(m, receiver, other)
    result = attributes.special(m, receiver, method, [other])
    return _unequal(m, receiver, other) if result is None and method == "__ne__" else result


def _same_namespace(m: Machine, receiver: ObjectValue, other: Value) -> Value:
    """``==`` of namespaces: that of what they hold."""
    if not isinstance(other, ObjectValue) or other.python_type is not types.SimpleNamespace:
        return Constant(NotImplemented)
    held = [attributes.instance_items(m, InstanceDict(v)) for v in (receiver, other)]
    return compare(m, held[0], held[1], "==")


@_DEFINED.of(Known)
def _defined_by_metaclass(m: Machine, receiver: Known, method: str, other: Value) -> Value | None:
    return attributes.by_metaclass(m, receiver, method, [other])


@_DEFINED.of(TensorValue)
def _defined_by_tensor(m: Machine, receiver: TensorValue, method: str, other: Value) -> Value | None:
    own = torch_function.own(m, receiver, method)
    if own is not None:
        return m.use(m.call(own, [other], {}))
    defined = getattr(torch.Tensor, method, None)  # it has no __imatmul__
    return None if defined is None else torch_function.dispatched(m, defined, [receiver, other], {})


def _on_contents(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value | None:
    """The operator of the builtin values that instances of subclasses hold; None where a side holds none."""
    held = [attributes.content(m, v) if isinstance(v, ObjectValue) else v for v in (left, right)]
    if held[0] is None or held[1] is None:
        return None
    result = binary(m, function, held[0], held[1], symbol)
    if function in _INPLACE and held[0] is not left and isinstance(held[0], _CONTAINERS):
        return left  # which holds the result
    return detached(result, held)


def detached(result: Value, held: list[Value | None]) -> Value:
    """A plain tuple where the result is what an instance of a subclass holds."""
    if isinstance(result, SequenceValue) and any(result is h for h in held):
        return SequenceValue(list(result.items), result.kind)
    return result


def _unequal(m: Machine, receiver: ObjectValue, other: Value) -> Value | None:
    """What ``object.__ne__`` makes of the class's ``__eq__``."""
    result = attributes.special(m, receiver, "__eq__", [other])
    if result is None or _is_not_implemented(result):
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


def compare(m: Machine, left: Value, right: Value, symbol: str) -> Value:
    """``left symbol right`` of values neither of which is an object with attributes."""
    function, equality = _COMPARISONS[symbol][0], symbol in ("==", "!=")
    sets = as_set(m, left), as_set(m, right)
    if sets[0] is not None and sets[1] is not None:
        return Constant(function(sets[0].items, sets[1].items))
    if isinstance(left, SequenceValue) and isinstance(right, SequenceValue) and _family(left) is _family(right):
        return _compare_sequences(m, left, right, symbol)
    if isinstance(left, DictValue) and isinstance(right, DictValue) and equality:
        return Constant(_equal_dicts(m, left, right) == (symbol == "=="))
    containers = isinstance(left, _CONTAINERS) or isinstance(right, _CONTAINERS)
    if isinstance(left, _IN_GRAPH) or isinstance(right, _IN_GRAPH):
        found = _with_container(left, right, symbol) if containers else None
        return found or operate(m, function, [left, right])
    known = plain(left), plain(right)
    if UNKNOWN not in known or not (containers or equality):
        return fold(m, function, [left, right], {}, f"operator {symbol}")
    if equality:
        return _by_identity(_same_callable(m, left, right), left, right, symbol)
    raise raising(_unsupported(symbol, left, right))


_IN_GRAPH = (TensorValue, SymbolValue, TruthValue)


def _with_container(left: Value, right: Value, symbol: str) -> Value | None:
    """A comparison of a container with what the graph computes; None where the graph compares them."""
    equality = symbol in ("==", "!=")
    if isinstance(left, SymbolValue) or isinstance(right, SymbolValue):
        if equality:
            return Constant(symbol == "!=")
        raise raising(_unsupported(symbol, left, right))
    if equality and isinstance(left, (SequenceValue, DictValue)):
        raise Break("FL105", what=f"operator {symbol}", why="of a container and a tensor")
    return None


def _by_identity(same: bool | None, left: Value, right: Value, symbol: str) -> Value:
    """``==`` or ``!=`` of values that are equal when they are ``same``."""
    if same is None:
        raise Break("FL105", what=f"operator {symbol}", why=f"on {left.describe()} and {right.describe()}")
    return Constant(same == (symbol == "=="))


def _same_callable(m: Machine, left: Value, right: Value) -> bool | None:
    """Equality of values that are equal when they are the same."""
    if isinstance(left, RuntimeNumber) and isinstance(right, RuntimeNumber):
        return _same_number(left, right)
    if isinstance(left, RuntimeNumber) or isinstance(right, RuntimeNumber):
        other = right if isinstance(left, RuntimeNumber) else left
        is_number = not isinstance(other, Constant) or issubclass(other.python_type, (int, float, complex))
        return None if is_number and not _is_address(left, right) else False
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


def _same_number(left: RuntimeNumber, right: RuntimeNumber) -> bool | None:
    """Whether two numbers that only the running program knows are equal; None where that is not decided."""
    if left.function is right.function is torch.Tensor.data_ptr:
        return _same_address(left.token, right.token)
    if left.function is not right.function or left.function is hash:  # equal hashes may be of several objects
        return True if left.function is right.function and left.token == right.token else None
    if isinstance(left.token, Constant) and isinstance(right.token, Constant):  # equal ones may be several objects
        return True if left.token.source is not None and left.token.source == right.token.source else None
    return left.token is right.token


def _is_address(left: Value, right: Value) -> bool:
    """Whether the address of a tensor's elements, of which there are some, is compared with 0."""
    number, other = (left, right) if isinstance(left, RuntimeNumber) else (right, left)
    assert isinstance(number, RuntimeNumber)
    address = number.function is torch.Tensor.data_ptr and number.token.fake.numel() > 0
    return address and isinstance(other, Constant) and other.value == 0


def _same_address(left: TensorValue, right: TensorValue) -> bool | None:
    """Whether the elements of two tensors begin at one place; None where they may be two views of memory that nobody knows of."""
    one, other = left.fake, right.fake
    if torch_private.storage_key(one) != torch_private.storage_key(other) or one.dtype != other.dtype:
        return None
    return one.storage_offset() == other.storage_offset() if one.numel() and other.numel() else None


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
