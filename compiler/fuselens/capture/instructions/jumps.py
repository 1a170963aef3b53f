"""Instructions that jump, iterate and return.

A jump on a truth that only the running program knows ends the graph: both sides go on in resume functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..breaks import Break, ConditionBreak, text_of
from ..bytecode import instruction as bytecode
from ..values import iterators
from ..values.algebra import Constant
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("JUMP")
def _jump(m: Machine, target: bytecode.Instruction) -> None:
    m.jump(target)


@handles("POP_JUMP_IF")
def _pop_jump_if(m: Machine, arg: Any) -> None:
    when, target = arg
    value = m.pop()
    if when in ("none", "not_none"):
        is_none = isinstance(value, Constant) and value.value is None
        if is_none == (when == "none"):
            m.jump(target)
        return
    truth = m.truth(value)
    if truth is None:
        raise _condition(m)
    if truth == when:
        m.jump(target)


@handles("JUMP_IF_OR_POP")
def _jump_if_or_pop(m: Machine, arg: Any) -> None:
    when, target = arg
    truth = m.truth(m.stack[-1])
    if truth is None:
        raise _condition(m)
    if truth == when:
        m.jump(target)
    else:
        m.take()


def _condition(m: Machine) -> Break:
    return ConditionBreak("FL101", what=text_of(m.tracer.span) or "if")


@handles("GET_ITER")
def _get_iter(m: Machine, arg: Any) -> None:
    m.push(iterators.iterator(m, m.pop()))


@handles("FOR_ITER")
def _for_iter(m: Machine, target: bytecode.Instruction) -> None:
    iterator = m.use(m.stack[-1])
    item = iterators.advance(m, iterator)
    if item is not None:
        m.push(item)
        return
    m.take()
    m.jump(target)


@handles("RETURN_VALUE")
def _return_value(m: Machine, arg: Any) -> None:
    m.result = m.take()
