"""Instructions that jump, iterate and return.

A jump on a truth that only the running program knows ends the graph: both sides go on in resume functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..breaks import Break, ConditionBreak, text_of
from ..bytecode import flow
from ..bytecode import instruction as bytecode
from ..values import iterators
from ..values import truth as truths
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
        truth = _truth_unless_it_raises(m, when, target)
        if truth is None or not truths.checked(m, value, truth):
            raise _condition(m)
    if truth == when:
        m.jump(target)


def _truth_unless_it_raises(m: Machine, when: bool, target: bytecode.Instruction) -> bool | None:
    """The truth with which the frame goes on, where the other makes it raise, as of an assertion; None for other jumps, and
    where exceptions are expected: around the jump a frame handles them."""
    machine: Machine | None = m
    while machine is not None:
        if machine.instruction.op == "FOR_ITER" or _is_tried(machine):
            return None
        machine = machine.parent
    code, index = m.program.instructions, m.program.index
    jumps, falls = (flow.only_raises(code, index, start) for start in (index[id(target)], m.at + 1))
    return None if jumps == falls else when if falls else not when


def _is_tried(m: Machine) -> bool:
    """Whether the instruction is in a ``try`` that may handle what it raises; a ``finally`` and a ``with`` let exceptions pass, and
    so does what a generator is in as a whole."""
    handler = m.program.handlers.get(m.at)
    if handler is None:
        return False
    start = m.program.index[id(handler.target)]
    if any(micro.arg == "INTRINSIC_STOPITERATION_ERROR" for micro in m.program.micros[start]):
        return False
    if flow.only_raises(m.program.instructions, m.program.index, start):
        return False
    return all(i.op != "WITH_EXCEPT_START" for i in m.program.instructions[start : start + 2])


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
