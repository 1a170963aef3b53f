"""Calls of the builtins that make numbers and compute with them."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch

from .. import classify
from ..breaks import Break, raising
from ..tracing import contents
from ..values import attributes
from ..values.algebra import (
    ArrayValue,
    Constant,
    Known,
    NamedMethod,
    ObjectValue,
    RuntimeNumber,
    SequenceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from ..values.attributes import special
from ..values.hashing import HashedKey, key_of
from ..values.known import fold, holds_identity, plain
from ..values.operators import binary, operate
from ..values.subscripts import index_of
from .table import RULES, Rule, rule

if TYPE_CHECKING:
    from ..machine import Machine


def _number(kind: type, methods: tuple[str, ...]) -> Rule:
    """``int``, ``float`` or ``complex``; ``methods`` are the special methods that it asks an object for."""

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        value = m.use(args[0]) if len(args) == 1 and not kwargs else None
        if isinstance(value, (TensorValue, ArrayValue)) and m.tracer.takes_scalars and kind is not complex:
            value = m.use(m.call(NamedMethod(value, "item"), [], {}))
            args = [value]
        elif value is not None:
            args = [contents.number(m.tracer, value) or value]
        if isinstance(value, ObjectValue):
            return _number_of_object(m, kind, methods, value)
        made = _number_of_symbol(m, kind, value) if isinstance(value, SymbolValue) else None
        return made if made is not None else fold(m, kind, args, kwargs, kind.__name__)

    return run


def _number_of_symbol(m: Machine, kind: type, value: SymbolValue) -> Value | None:
    """A symbolic number of another kind; None where there is no such."""
    if value.python_type is kind:
        return value
    if kind is int and value.python_type is float:
        return m.tracer.call("call_function", torch.sym_int, (value,), {}, "int")
    if kind is float:
        return m.tracer.call("call_function", torch.sym_float, (value,), {}, "float")
    return None


def _number_of_object(m: Machine, kind: type, methods: tuple[str, ...], value: ObjectValue) -> Value:
    held = attributes.content(m, value)
    for method in methods:
        result = special(m, value, method, [])
        if result is not None:
            return _number_given(m, kind, method, result)
        if held is not None:
            break  # what the builtin class does comes before other methods
    if held is not None:
        return m.call(Known(kind), [held], {})
    if any(not classify.is_heap_type(c) for c in value.python_type.__mro__[:-1]):
        raise Break("FL104", what=kind.__name__, why=f"of a {value.python_type.__name__}")
    return fold(m, kind, [Constant(_Opaque.named(value.python_type))], {}, kind.__name__)


def _number_given(m: Machine, kind: type, method: str, result: Value) -> Value:
    """The number that a special method's result is."""
    if method != "__trunc__" and type(plain(result)) is kind:
        return result
    if method != "__index__" or kind is int:
        raise Break("FL104", what=kind.__name__, why=f"{method} gives no {kind.__name__}")
    return m.call(Known(kind), [result], {})


class _Opaque:
    """An instance of a class of the same name, for a builtin's TypeError."""

    @staticmethod
    def named(kind: type) -> Any:
        return type(kind.__name__, (), {})()


RULES[int] = _number(int, ("__int__", "__index__", "__trunc__"))
RULES[float] = _number(float, ("__float__", "__index__"))
RULES[complex] = _number(complex, ("__complex__", "__float__", "__index__"))


@rule(bool, operator.truth)
def _bool(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return Constant(False)
    truth = m.truth(args[0])
    if truth is None:
        value = m.use(args[0])
        if isinstance(value, (TensorValue, ArrayValue)) and m.tracer.takes_scalars:
            value = m.use(m.call(NamedMethod(operate(m, operator.ne, [value, Constant(0)]), "item"), [], {}))
        if isinstance(value, SymbolValue) and value.python_type is bool:
            return value
        raise Break("FL102", what=f"bool({args[0].describe()})")
    return Constant(truth)


@rule(operator.not_)
def _not(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    truth = _bool(m, args, kwargs)
    if not isinstance(truth, Constant):
        return m.tracer.call("call_function", torch.sym_not, (truth,), {}, "not")
    return Constant(not truth.value)


def _through(function: Any, method: str) -> Rule:
    """A builtin that asks an object's special method, and computes the rest."""

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        args = [m.use(a) for a in args]
        if args and isinstance(args[0], ArrayValue):
            return m.call(NamedMethod(args[0], method), args[1:], kwargs)
        if args and isinstance(args[0], (TensorValue, SymbolValue)):
            return operate(m, function, args, kwargs)
        if args and isinstance(args[0], ObjectValue):
            result = special(m, args[0], method, args[1:])
            if result is not None:
                return result
            held = attributes.content(m, args[0])
            if held is not None:
                return m.call(Known(function), [held, *args[1:]], kwargs)
            return fold(m, function, [Constant(_Opaque.named(args[0].python_type)), *args[1:]], kwargs, method)
        return fold(m, function, args, kwargs, function.__name__)

    return run


RULES[round] = _through(round, "__round__")
RULES[math.floor], RULES[math.ceil] = _through(math.floor, "__floor__"), _through(math.ceil, "__ceil__")
RULES[math.trunc] = _through(math.trunc, "__trunc__")


_magnitude = _through(abs, "__abs__")


@rule(abs, operator.abs)
def _abs(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0]) if len(args) == 1 else None
    if isinstance(value, SymbolValue):
        positive = m.decided(operate(m, operator.ge, [value, Constant(0)]), "abs()")
        return value if positive else operate(m, operator.neg, [value])
    return _magnitude(m, args, kwargs)


def _of_index(function: Any) -> Rule:
    """A builtin that takes what can be an index."""

    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        given = [
            Constant(index_of(m, a)) if isinstance(m.use(a), ObjectValue) else contents.index(m.tracer, a) or m.use(a)
            for a in args
        ]
        return fold(m, function, given, kwargs, function.__name__)

    return run


for _function in (bin, hex, oct, chr, range, operator.index):
    RULES[_function] = _of_index(_function)


@rule(divmod)
def _divmod(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    a, b = (m.use(v) for v in args)
    if isinstance(a, ArrayValue):
        return m.call(NamedMethod(a, "__divmod__"), [b], {})
    if isinstance(a, Constant) and isinstance(b, Constant):
        return fold(m, divmod, [a, b], {}, "divmod")
    if isinstance(a, TensorValue) or (isinstance(b, TensorValue) and not isinstance(a, ObjectValue)):
        kinds = f"'{a.python_type.__name__}' and '{b.python_type.__name__}'"
        raise raising(TypeError(f"unsupported operand type(s) for divmod(): {kinds}"))
    if isinstance(a, ObjectValue) or isinstance(b, ObjectValue):
        return _divmod_of_objects(m, a, b)
    pair = [binary(m, operator.floordiv, a, b, "//"), binary(m, operator.mod, a, b, "%")]
    return SequenceValue(pair, tuple)


def _divmod_of_objects(m: Machine, a: Value, b: Value) -> Value:
    kinds = a.python_type, b.python_type
    tries = [(a, "__divmod__", b), (b, "__rdivmod__", a)]
    if kinds[0] in kinds[1].__mro__[1:]:
        tries.reverse()
    for receiver, method, other in tries[: 1 if kinds[0] is kinds[1] else 2]:
        result = special(m, receiver, method, [other]) if isinstance(receiver, ObjectValue) else None
        if result is not None and not (isinstance(result, Constant) and result.value is NotImplemented):
            return result
    held = [attributes.content(m, v) if isinstance(v, ObjectValue) else v for v in (a, b)]
    if held[0] is not None and held[1] is not None:
        return fold(m, divmod, [held[0], held[1]], {}, "divmod")
    names = " and ".join(f"'{kind.__name__}'" for kind in kinds)
    raise raising(TypeError(f"unsupported operand type(s) for divmod(): {names}"))


@rule(pow)
def _pow(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    values = [m.use(a) for a in args]
    if len(values) == 2 and not kwargs:
        return binary(m, operator.pow, values[0], values[1], "**")
    return fold(m, pow, values, kwargs, "pow")


@rule(hash)
def _hash(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key = key_of(m, args[0], "")
    m.tracer.differs = "a hash"
    if isinstance(key, HashedKey):
        return Constant(hash(key))
    if holds_identity((key,)):
        value = m.use(args[0])
        return RuntimeNumber(hash, [value], key)
    return Constant(hash(key))
