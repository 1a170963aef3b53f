"""From a code object to instructions, and the rewritings that make code of all versions look alike."""

from __future__ import annotations

import dis
from types import CodeType

from .emitters import load_deref, load_fast
from .instruction import VERSION, Decoded, Handler, Instruction, slot_names
from .opcodes import (
    BACKWARD,
    BINARY,
    CACHES,
    COMPARE_SHIFT,
    ENTER_WITH,
    EXTENDED_ARG,
    HAS_ARG,
    KINDS,
    PAIR_OPS,
    pair_opcodes,
)


def decode(code: CodeType) -> Decoded:
    """The code's instructions, without caches and EXTENDED_ARG, and its exception table."""
    raw = code.co_code
    positions = list(code.co_positions())
    slots = slot_names(code)
    is_cell = [i >= code.co_nlocals or n in code.co_cellvars for i, n in enumerate(slots)]
    consts, names = code.co_consts, code.co_names
    instructions: list[Instruction] = []
    at: dict[int, Instruction] = {}
    jumps: list[tuple[Instruction, int]] = []
    unit, n_units = 0, len(raw) // 2
    while unit < n_units:
        start, arg = unit, 0
        while raw[2 * unit] == EXTENDED_ARG:
            arg = (arg | raw[2 * unit + 1]) << 8
            unit += 1
        op = raw[2 * unit]
        arg |= raw[2 * unit + 1]
        position = positions[unit]
        unit += 1 + CACHES[op]
        it = Instruction(dis.opname[op], arg if op in HAS_ARG else None, None, None, position)
        kind = KINDS[op]
        if not kind:
            it.argval = it.arg
        elif kind == "const":
            it.argval = consts[arg]
        elif kind == "local":
            it.argval, it.flag = slots[arg], int(is_cell[arg])
        elif kind == "name":
            it.argval = names[arg]
        elif kind == "name1":
            it.argval, it.flag = names[arg >> 1], arg & 1
        elif kind == "jump":
            jumps.append((it, unit - arg if op in BACKWARD else unit + arg))
        elif kind == "cell":
            it.argval = slots[arg]
        elif kind == "binary":
            it.argval = BINARY[arg]
        elif kind == "compare":
            it.argval, it.flag = dis.cmp_op[arg >> COMPARE_SHIFT], arg & ((1 << COMPARE_SHIFT) - 1)
        elif kind == "pair":
            it.argval = (slots[arg >> 4], slots[arg & 15])
        else:
            it.argval, it.flag = names[arg >> 2], arg & 3
        at[start] = it
        instructions.append(it)
    for it, offset in jumps:
        it.target = at[offset]
    _find_loop_exits(instructions)
    return Decoded(instructions, _decode_handlers(code, at, n_units), code)


def spell_out_super(decoded: Decoded) -> None:
    """Gives each ``super()`` the arguments that CPython takes from the frame, whose first variable a resume function lacks."""
    code = decoded.code
    if "super" not in code.co_names or "__class__" not in code.co_freevars or not code.co_argcount:
        return
    first = code.co_varnames[0]
    load_first = load_deref if first in code.co_cellvars else load_fast
    found: list[Instruction] = []
    previous = None
    for it in decoded.instructions:
        if it.op in ("CALL", "PRECALL") and it.argval == 0 and previous is not None:
            if previous.op == "LOAD_GLOBAL" and previous.argval == "super":
                arguments = [*load_deref("__class__"), *load_first(first)]
                for argument in arguments:
                    argument.position = it.position
                found += arguments
                it.arg = it.argval = 2
            elif previous.op == "PRECALL" and previous.argval == 2:
                it.arg = it.argval = 2
        found.append(it)
        previous = it
    decoded.instructions[:] = found


def join_with(decoded: Decoded) -> None:
    """Makes one BEFORE_WITH, as older versions have it, of the instructions by which 3.14 enters a context. `assemble`
    makes them of it again."""
    if VERSION < (3, 14):
        return
    joined: dict[Instruction, Instruction] = {}
    found: list[Instruction] = []
    for it in decoded.instructions:
        found.append(it)
        last = found[-len(ENTER_WITH) :]
        if it.op == "CALL" and [(i.op, i.arg) for i in last] == ENTER_WITH:
            first = last[0]
            del found[-len(ENTER_WITH) + 1 :]
            first.op, first.arg, first.argval = "BEFORE_WITH", None, None
            joined.update(dict.fromkeys(last, first))
    for handler in decoded.handlers:
        handler.start = joined.get(handler.start, handler.start)
        handler.end = joined.get(handler.end, handler.end)
    decoded.instructions[:] = found


def own_loads(decoded: Decoded) -> None:
    """Makes plain loads of those that borrow from the local: 3.14's compiler has proved that the local keeps the value
    for so long, which need not hold where the instructions are to run among others."""
    if VERSION < (3, 14):
        return
    for it in decoded.instructions:
        it.op = it.op.replace("_BORROW", "")


def split_pairs(decoded: Decoded) -> None:
    """Makes two instructions of each that handles two locals: `assemble` would, where a slot is too high for a pair, and
    what is made of these instructions is to decode to as many."""
    if VERSION < (3, 13):
        return
    split: dict[Instruction, Instruction] = {}
    found: list[Instruction] = []
    for it in decoded.instructions:
        found.append(it)
        if it.op in PAIR_OPS:
            (first, name), (second, other) = zip(pair_opcodes(it.op), it.argval, strict=True)
            it.op, it.arg, it.argval = first, None, name
            split[it] = Instruction(second, None, other, None, it.position)
            found.append(split[it])
    for handler in decoded.handlers:
        handler.end = split.get(handler.end, handler.end)
    decoded.instructions[:] = found


def _find_loop_exits(instructions: list[Instruction]) -> None:
    """3.12 ends a loop with END_FOR, 3.13 with END_FOR and POP_TOP, 3.14 with END_FOR and POP_ITER; an exhausted FOR_ITER
    has the effect of both."""
    index: dict[Instruction, int] | None = None
    for it in instructions:
        if it.op == "FOR_ITER":
            exit_ = it.target
            if exit_ is not None and exit_.op == "END_FOR":
                index = index or {other: i for i, other in enumerate(instructions)}
                exit_ = instructions[index[exit_] + (1 if VERSION < (3, 13) else 2)]
            it.argval = exit_


def _decode_handlers(code: CodeType, at: dict[int, Instruction], n_units: int) -> list[Handler]:
    table = iter(code.co_exceptiontable)

    def number(byte: int) -> int:
        value = byte & 63
        while byte & 64:
            byte = next(table)
            value = value << 6 | byte & 63
        return value

    handlers: list[Handler] = []
    last_before: dict[int, Instruction] = {}
    if code.co_exceptiontable:
        previous: Instruction | None = None
        for offset, it in at.items():
            if previous is not None:
                last_before[offset] = previous
            previous = it
        if previous is not None:
            last_before[n_units] = previous
    for byte in table:
        start, length, target, depth = number(byte), number(next(table)), number(next(table)), number(next(table))
        handlers.append(Handler(at[start], last_before[start + length], at[target], depth >> 1, bool(depth & 1)))
    return handlers
