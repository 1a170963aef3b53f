"""Instructions of operators, comparisons and subscripts; what they mean is in ``operators``."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ..breaks import Break
from ..values import identity, operators, subscripts
from ..values.algebra import Constant, SliceValue, TruthValue, Value
from .table import HANDLERS, Handler, handles

if TYPE_CHECKING:
    from ..machine import Machine


UNARY: dict[str, Any] = {
    "UNARY_NEGATIVE": operator.neg, "UNARY_INVERT": operator.invert, "UNARY_POSITIVE": operator.pos,
}  # fmt: skip


@handles("BINARY_OP")
def _binary_op(m: Machine, symbol: str) -> None:
    right, left = m.pop(), m.pop()
    m.push(operators.binary(m, operators.BINARY[symbol], left, right, symbol))


def _unary_of(function: Any) -> Handler:
    def run(m: Machine, arg: Any) -> None:
        m.push(operators.operate(m, function, [m.pop()]))

    return run


for _name, _function in UNARY.items():
    HANDLERS[_name] = _unary_of(_function)


@handles("UNARY_NOT")
def _unary_not(m: Machine, arg: Any) -> None:
    value = m.pop()
    truth = m.truth(value)
    if truth is None:
        raise Break("FL102", what=f"not {value.describe()}")
    m.push(Constant(not truth))


@handles("TO_BOOL")
def _to_bool(m: Machine, arg: Any) -> None:
    value = m.pop()
    truth = m.truth(value)
    if truth is not None:
        m.push(Constant(truth))
    else:
        m.push(value if isinstance(value, TruthValue) else TruthValue(value))


@handles("COMPARE")
def _compare(m: Machine, symbol: str) -> None:
    right, left = m.pop(), m.pop()
    m.push(operators.binary(m, operators.COMPARE[symbol], left, right, symbol))


@handles("IS_OP")
def _is_op(m: Machine, invert: Any) -> None:
    right, left = m.pop(), m.pop()
    same = identity.identical(m, left, right)
    if same is None:
        raise Break("FL105", what=f"`{left.describe()} is {right.describe()}`", why="identity is not tracked here")
    m.push(Constant(same != bool(invert)))


@handles("CONTAINS_OP")
def _contains_op(m: Machine, invert: Any) -> None:
    container, member = m.pop(), m.pop()
    m.push(Constant(subscripts.contains(m, container, member) != bool(invert)))


@handles("BINARY_SUBSCR")
def _binary_subscr(m: Machine, arg: Any) -> None:
    key, container = m.pop(), m.pop()
    m.push(subscripts.subscript(m, container, key))


@handles("BINARY_SLICE")
def _binary_slice(m: Machine, arg: Any) -> None:
    stop, start, container = m.pop(), m.pop(), m.pop()
    m.push(subscripts.subscript(m, container, make_slice([start, stop, Constant(None)])))


@handles("STORE_SLICE")
def _store_slice(m: Machine, arg: Any) -> None:
    stop, start, container, value = m.pop(), m.pop(), m.pop(), m.pop()
    subscripts.store_subscript(m, container, make_slice([start, stop, Constant(None)]), value)


@handles("STORE_SUBSCR")
def _store_subscr(m: Machine, arg: Any) -> None:
    key, container, value = m.pop(), m.pop(), m.take()
    subscripts.store_subscript(m, container, key, value)


@handles("DELETE_SUBSCR")
def _delete_subscr(m: Machine, arg: Any) -> None:
    key, container = m.pop(), m.pop()
    subscripts.delete_subscript(m, container, key)


def make_slice(parts: list[Value]) -> Value:
    if all(isinstance(p, Constant) for p in parts):
        return Constant(slice(*(p.value for p in parts)))  # type: ignore[attr-defined]
    return SliceValue(parts)
