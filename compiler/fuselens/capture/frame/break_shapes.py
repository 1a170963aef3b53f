"""What the instruction at which a trace stopped takes, gives and needs, so that it can be cut out of its code.

The instruction runs as it is, between the graph and a resume function. So it must be known how many values it pops and
pushes, whether it looks below them, and where it jumps.
"""

from __future__ import annotations

from ..bytecode import emitters as emitters
from ..bytecode import instruction as bytecode
from ..bytecode.instruction import Instruction
from ..bytecode.micros import Micro, effect, normalise
from ..hook import _hook
from ..values.algebra import HandledException, Value
from ..values.iterators import Recipe

Slot = str | Recipe
"""How a stack entry reaches a resume function: "null", "value", "handled", or by what it iterates over."""

RETURNS = ("RETURN_VALUE", "RETURN_CONST")


def condition_of(instruction: Instruction) -> Micro | None:
    """The micro-operation by which a conditional jump on truth jumps; None for other instructions."""
    for micro in normalise(instruction):
        if micro.op == "JUMP_IF_OR_POP" or (micro.op == "POP_JUMP_IF" and isinstance(micro.arg[0], bool)):
            return micro
    return None


def group_start(instructions: list[Instruction], index: int) -> int:
    """The first of the instructions that belong to the one at ``index`` (3.11 splits a call into KW_NAMES, PRECALL, CALL)."""
    while (
        index
        and instructions[index - 1].op in ("KW_NAMES", "PRECALL")
        and instructions[index].op in ("CALL", "PRECALL", "KW_NAMES")
    ):
        index -= 1
    return index


def without_null(instructions: list[Instruction], pushed: int) -> tuple[list[Instruction], list[Slot]]:
    """A copy of the instructions in which none pushes a NULL, which no function can be given, and what the copy pushes.

    A method is loaded as an attribute, a global alone; the NULL that then stands beside it is pushed by the resume function.
    """
    *before, last = (i.copy() for i in instructions)
    if not any(m.op in ("LOAD_METHOD", "LOAD_SUPER_METHOD", "PUSH_NULL") for m in normalise(last)):
        return [*before, last], ["value"] * pushed
    if last.op == "BEFORE_WITH":
        return [*before, *emitters.before_with(_hook.exit_of)], ["value", "null", "value"]
    if last.op == "LOAD_METHOD":
        (last,) = emitters.load_attr(last.argval)
    else:
        last.flag &= ~1
    return [*before, last], ["null", "value"] if bytecode.NULL_FIRST else ["value", "null"]


def handled_among(values: list[Value]) -> list[Value]:
    """The exceptions being handled among stack entries."""
    return [v for v in values if isinstance(v, HandledException)]


def popping(values: list[Value]) -> list[Instruction]:
    """Instructions that take ``values`` from the stack."""
    out: list[Instruction] = []
    for value in reversed(values):
        out += emitters.pop_except() if isinstance(value, HandledException) else emitters.pop_top()
    return out


def peeks(instruction: Instruction) -> bool:
    """Whether the instruction looks at stack entries below those that it pops."""
    return any(micro.op in _PEEKS for micro in normalise(instruction))


_PEEKS = {
    "LIST_APPEND", "SET_ADD", "MAP_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "CHECK_EXC_MATCH",
    "CHECK_EG_MATCH", "WITH_EXCEPT_START", "MATCH_MAPPING", "MATCH_SEQUENCE", "MATCH_KEYS", "COPY",
}  # fmt: skip


def stack_change(last: Instruction, group: list[Instruction]) -> tuple[int, int]:
    """(values popped, values pushed) by a group of instructions that ends with ``last``."""
    pushed = 1
    for micro in normalise(last):
        if micro.op == "UNPACK_SEQUENCE":
            pushed = micro.arg
        elif micro.op == "UNPACK_EX":
            pushed = (micro.arg & 0xFF) + 1 + (micro.arg >> 8)
        elif micro.op == "PUSH_NULL":
            pushed += 1
        elif micro.op in _PUSH_TWO:
            pushed = 2
        elif micro.op in _PUSH_NOTHING:
            pushed = 0
    change = sum(effect(micro) for i in group for micro in normalise(i))
    return pushed - change, pushed


_PUSH_TWO = {"LOAD_METHOD", "LOAD_SUPER_METHOD", "BEFORE_WITH", "IMPORT_FROM", "GET_LEN", "CHECK_EG_MATCH"}
_PUSH_NOTHING = {
    "POP_TOP", "STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE",
    "DELETE_FAST", "DELETE_DEREF", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_ATTR", "DELETE_SUBSCR", "LIST_APPEND",
    "SET_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "MAP_ADD", "POP_EXCEPT",
}  # fmt: skip
