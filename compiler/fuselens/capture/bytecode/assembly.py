"""From instructions to a code object: constants, widths of jumps, caches, exception table, positions and stack size."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

from .instruction import NO_POSITION, VERSION, Decoded, Handler, Instruction, Position
from .opcodes import (
    BACKWARD,
    BINARY,
    CACHES,
    COMPARE_SHIFT,
    ENTER_WITH,
    EXTENDED_ARG,
    HAS_ARG,
    KIND,
    LOCAL_OPS,
    PAIR_OPS,
    SHIFT,
    TERMINAL,
    UNCONDITIONAL,
    pair_opcodes,
)


def _const_key(value: Any) -> Any:
    """Constants are one when types and values are, to the last bit and through tuples; other objects by identity."""
    kind = type(value)
    if kind in (int, bool, str, bytes, type(None), type(Ellipsis)):
        return kind, value
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is tuple:
        return kind, tuple(map(_const_key, value))
    return "identity", id(value)  # of frozensets too: equal ones differ in order


class _Pool:
    """Constants, names and slots of the code that is being assembled."""

    def __init__(self, template: CodeType, changes: dict[str, Any]) -> None:
        self.consts: list[Any] = list(changes.get("co_consts", template.co_consts))
        self.names: list[str] = list(changes.get("co_names", template.co_names))
        self.varnames: list[str] = list(changes.get("co_varnames", template.co_varnames))
        self.cellvars: list[str] = list(changes.get("co_cellvars", template.co_cellvars))
        self.freevars: list[str] = list(changes.get("co_freevars", template.co_freevars))
        self._const_index = {_const_key(v): i for i, v in reversed(list(enumerate(self.consts)))}
        self._name_index = {n: i for i, n in enumerate(self.names)}
        self.slots: list[str] = []
        self._local_slot: dict[str, int] = {}
        self._cell_slot: dict[str, int] = {}

    def add_locals(self, instructions: Iterable[Instruction]) -> None:
        """Gives every local an instruction names a slot, then fixes the slots."""
        known = {*self.varnames, *self.cellvars, *self.freevars}
        for it in instructions:
            if it.op in LOCAL_OPS or it.op in PAIR_OPS:
                for name in (it.argval,) if isinstance(it.argval, str) else it.argval:
                    if name not in known:
                        known.add(name)
                        self.varnames.append(name)
        local = set(self.varnames)
        self.slots = [*self.varnames, *(n for n in self.cellvars if n not in local), *self.freevars]
        self._cell_slot = {n: i for i, n in enumerate(self.slots)}  # the last one of a name: cells and free variables
        self._local_slot = {n: i for i, n in reversed(list(enumerate(self.slots)))}

    def const(self, value: Any, hint: int) -> int:
        if 0 <= hint < len(self.consts) and self.consts[hint] is value:
            return hint
        index = self._const_index.setdefault(_const_key(value), len(self.consts))
        if index == len(self.consts):
            self.consts.append(value)
        return index

    def name(self, name: str, hint: int) -> int:
        if 0 <= hint < len(self.names) and self.names[hint] == name:
            return hint
        index = self._name_index.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        return index

    def slot(self, name: str, hint: int, cell: bool) -> int:
        if 0 <= hint < len(self.slots) and self.slots[hint] == name:
            return hint
        slots = self._cell_slot if cell else self._local_slot
        if name not in slots:
            raise ValueError(f"variable {name!r} is neither cell nor free variable of the code")
        return slots[name]


class _Unit:
    """One instruction as it will be laid out: an argument that is final, or a jump."""

    __slots__ = ("arg", "backward", "caches", "instruction", "offset", "op", "size", "target")

    def __init__(self, op: int, arg: int, instruction: Instruction) -> None:
        self.op = op
        self.arg = arg
        self.instruction = instruction
        self.target: _Unit | None = None
        self.backward = False
        self.caches = CACHES[op]
        self.size = 1 + _extensions(arg) + self.caches
        self.offset = 0


def _extensions(arg: int) -> int:
    return 0 if arg < 1 << 8 else 1 if arg < 1 << 16 else 2 if arg < 1 << 24 else 3


def assemble(
    template: CodeType, instructions: Sequence[Instruction], handlers: Iterable[Handler] = (), **changes: Any
) -> CodeType:
    """A code object like the template with these instructions and handlers.

    `changes` are those of `CodeType.replace`. Constants, names and locals that the instructions use and the pools lack
    are added to them; so pass co_varnames, co_cellvars, co_freevars to change the layout, not to list what is new.
    Jumps may use any of a family of opcodes (or JUMP, POP_JUMP_IF_TRUE...): direction and width are found here. Raises
    ValueError for a jump out of the list or an undeclared cell variable.
    """
    pool = _Pool(template, changes)
    pool.add_locals(instructions)
    units, first, last = _select(instructions, pool)
    _lay_out(units)
    spans = [(first[h.start], last[h.end], first[h.target], h) for h in handlers]
    spans.sort(key=lambda span: span[0].offset)  # CPython looks an instruction up by halving the table
    firstlineno = changes.get("co_firstlineno", template.co_firstlineno)
    layout = {
        "co_code": _encode(units),
        "co_consts": tuple(pool.consts),
        "co_names": tuple(pool.names),
        "co_varnames": tuple(pool.varnames),
        "co_nlocals": len(pool.varnames),
        "co_cellvars": tuple(pool.cellvars),
        "co_freevars": tuple(pool.freevars),
        "co_linetable": _encode_positions(units, firstlineno),
        "co_exceptiontable": _encode_handlers(spans),
        "co_stacksize": _stack_size(units, spans),
    }
    return template.replace(**{**changes, **layout})


def _select(
    instructions: Sequence[Instruction], pool: _Pool
) -> tuple[list[_Unit], dict[Instruction, _Unit], dict[Instruction, _Unit]]:
    """Chooses opcodes and arguments: what is laid out, and each instruction's first and last unit."""
    index = {it: i for i, it in enumerate(instructions)}
    units: list[_Unit] = []
    first: dict[Instruction, _Unit] = {}
    last: dict[Instruction, _Unit] = {}
    jumps: list[tuple[_Unit, Instruction]] = []
    skips: list[tuple[_Unit, int]] = []  # jumps over the next instruction
    for i, it in enumerate(instructions):
        start = len(units)
        if it.target is not None:
            if it.target not in index:
                raise ValueError(f"{it!r} jumps out of the instructions given")
            backward = index[it.target] <= i
            names = _jump_opcodes(it.op, backward)
            for name in names:
                unit = _Unit(dis.opmap[name], 0, it)
                units.append(unit)
                jumps.append((unit, it.target))
                unit.backward = unit.op in BACKWARD
            if len(names) > 1:  # the first, inverted, jumps over the second
                jumps.pop(-2)
                skips.append((units[-2], len(units)))
        else:
            units.extend(_Unit(dis.opmap[name], arg, it) for name, arg in _arguments(it, pool))
        first[it], last[it] = units[start], units[-1]
    for unit, target in jumps:
        unit.target = first[target]
    for unit, over in skips:
        if over == len(units):
            raise ValueError("a conditional jump ends the code")
        unit.target = units[over]
    return units, first, last


_INVERSE = {
    "POP_JUMP_IF_TRUE": "POP_JUMP_IF_FALSE", "POP_JUMP_IF_FALSE": "POP_JUMP_IF_TRUE",
    "POP_JUMP_IF_NONE": "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE": "POP_JUMP_IF_NONE",
}  # fmt: skip


def _jump_opcodes(name: str, backward: bool) -> tuple[str, ...]:
    """The opcodes of this version that make the jump."""
    if name in UNCONDITIONAL:
        if not backward:
            return ("JUMP_FORWARD",)
        return (name if name.startswith("JUMP_BACKWARD") else "JUMP_BACKWARD",)
    if name.startswith("POP_JUMP"):
        condition = name.replace("FORWARD_", "").replace("BACKWARD_", "")
        if VERSION < (3, 12):
            return (condition.replace("JUMP_", "JUMP_BACKWARD_" if backward else "JUMP_FORWARD_"),)
        return (_INVERSE[condition], "JUMP_BACKWARD") if backward else (condition,)
    if backward and name != "END_ASYNC_FOR":
        raise ValueError(f"{name} cannot jump backwards")
    return (name,)


def _arguments(it: Instruction, pool: _Pool) -> list[tuple[str, int]]:
    """Opcode and raw argument of an instruction that does not jump; a pair whose slots do not fit nibbles gives two."""
    if it.op == "BEFORE_WITH" and it.op not in dis.opmap:
        return ENTER_WITH
    kind = KIND.get(it.op, "")
    if not kind:
        if isinstance(it.argval, int) and it.op in dis.opmap and dis.opmap[it.op] in HAS_ARG:
            return [(it.op, it.argval)]
        return [(it.op, it.arg or 0)]
    hint = -1 if it.arg is None else it.arg >> SHIFT.get(kind, 0)
    if kind == "const":
        return [(it.op, pool.const(it.argval, hint))]
    if kind == "local":
        return [(it.op, pool.slot(it.argval, hint, bool(it.flag)))]
    if kind == "cell":
        return [(it.op, pool.slot(it.argval, hint, True))]
    if kind.startswith("name"):
        shift = SHIFT.get(kind, 0)
        return [(it.op, pool.name(it.argval, hint) << shift | it.flag)]
    if kind == "compare":
        return [(it.op, dis.cmp_op.index(it.argval) << COMPARE_SHIFT | it.flag)]
    if kind == "binary":
        return [(it.op, BINARY.index(it.argval))]
    if kind == "pair":
        hints = (-1, -1) if it.arg is None else (it.arg >> 4, it.arg & 15)
        a, b = (pool.slot(name, h, False) for name, h in zip(it.argval, hints, strict=True))
        if a < 16 and b < 16:
            return [(it.op, a << 4 | b)]
        one, two = pair_opcodes(it.op)
        return [(one, a), (two, b)]
    raise ValueError(f"{it!r} needs a jump target")


def _lay_out(units: list[_Unit]) -> None:
    """Sets offsets, and arguments of jumps.

    A jump backwards spans its own EXTENDED_ARG, so layouts can have two fixed points. 3.13's compiler starts from the
    index of the target instruction as argument, older ones from 0: doing the same ends at the same layout. Widths may
    shrink at first, and after a few rounds only grow, so that this ends.
    """
    if VERSION >= (3, 13):
        index = {unit: i for i, unit in enumerate(units)}
        for unit in units:
            if unit.target is not None:
                unit.size += _extensions(index[unit.target])
    stable, rounds = False, 0
    while not stable:
        offset = 0
        for unit in units:
            unit.offset = offset
            offset += unit.size
        stable, rounds = True, rounds + 1
        for unit in units:
            if unit.target is not None:
                end = unit.offset + unit.size
                unit.arg = end - unit.target.offset if unit.backward else unit.target.offset - end
                size = 1 + _extensions(unit.arg) + unit.caches
                if rounds > 8:
                    size = max(size, unit.size)
                stable = stable and size == unit.size
                unit.size = size


def _encode(units: list[_Unit]) -> bytes:
    out = bytearray()
    for unit in units:
        for i in range(unit.size - unit.caches - 1, 0, -1):
            out += bytes((EXTENDED_ARG, unit.arg >> 8 * i & 255))
        out += bytes((unit.op, unit.arg & 255)) + bytes(2 * unit.caches)
    return bytes(out)


def _varint(value: int) -> bytes:
    """Little end first, six bits a byte (position table)."""
    out = bytearray()
    while value > 63:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)
    return bytes(out)


def _signed_varint(value: int) -> bytes:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)


def _encode_positions(units: list[_Unit], line: int) -> bytes:
    """Runs of units with one position (3.11: single units), at most eight code units an entry, as CPython does."""
    out = bytearray()
    i = 0
    while i < len(units):
        position = units[i].instruction.position or NO_POSITION
        size = units[i].size
        i += 1
        while VERSION >= (3, 12) and i < len(units) and (units[i].instruction.position or NO_POSITION) == position:
            size += units[i].size
            i += 1
        while size:
            line = _encode_position(out, position, min(size, 8), line)
            size -= min(size, 8)
    return bytes(out)


def _encode_position(out: bytearray, position: Position, size: int, line: int) -> int:
    """Appends one entry, returns the line that the next is relative to."""
    start, end, column, end_column = position
    first = 128 | size - 1  # a mark, the kind at bit 3, and the size
    if start is None:
        out.append(first | 15 << 3)
        return line
    delta = start - line
    if column is None or end_column is None:
        if end is None or end == start:
            out.append(first | 13 << 3)
            out += _signed_varint(delta)
            return start
    elif end == start:
        if delta == 0 and column < 80 and 0 <= end_column - column < 16:
            out += bytes((first | column >> 3 << 3, (column & 7) << 4 | end_column - column))
            return start
        if 0 <= delta < 3 and column < 128 and end_column < 128:
            out += bytes((first | 10 + delta << 3, column, end_column))
            return start
    out.append(first | 14 << 3)
    out += _signed_varint(delta) + _varint((start if end is None else end) - start)
    out += _varint(0 if column is None else column + 1) + _varint(0 if end_column is None else end_column + 1)
    return start


_Spans = list[tuple[_Unit, _Unit, _Unit, Handler]]


def _encode_handlers(spans: _Spans) -> bytes:
    out = bytearray()
    for first, last, target, handler in spans:
        fields = (
            first.offset,
            last.offset + last.size - first.offset,
            target.offset,
            handler.depth << 1 | handler.lasti,
        )
        for i, value in enumerate(fields):
            groups = [value & 63]
            while value := value >> 6:
                groups.append(64 | value & 63)
            groups.reverse()
            if i == 0:
                groups[0] |= 128
            out += bytes(groups)
    return bytes(out)


def _unit_effect(unit: _Unit, jump: bool) -> int:
    name = dis.opname[unit.op]
    if VERSION < (3, 12) and name in ("PRECALL", "CALL"):  # the table lets PRECALL take the arguments; CALL does
        return 0 if name == "PRECALL" else -1 - unit.arg
    if name == "RETURN_GENERATOR" and VERSION < (3, 13):
        return 1
    return dis.stack_effect(unit.op, unit.arg if unit.op in HAS_ARG else None, jump=jump)


def _stack_size(units: list[_Unit], spans: _Spans) -> int:
    """The greatest depth on any path from the start and from any handler."""
    index = {unit: i for i, unit in enumerate(units)}
    depth: list[int] = [-1] * len(units)
    work = [(0, 0)] if units else []
    work += [(index[target], h.depth + 1 + h.lasti) for _, _, target, h in spans]
    greatest = max((start for _, start in work), default=0)
    while work:
        i, here = work.pop()
        while i < len(units) and depth[i] < here:
            depth[i] = here
            unit = units[i]
            name = dis.opname[unit.op]
            if unit.target is not None and name != "END_ASYNC_FOR":
                there = here + _unit_effect(unit, True)
                greatest = max(greatest, there)
                work.append((index[unit.target], there))
            if name in UNCONDITIONAL or name in TERMINAL:
                break
            here += _unit_effect(unit, False)
            greatest = max(greatest, here)
            i += 1
    return greatest


def stack_depths(decoded: Decoded) -> dict[Instruction, int]:
    """Depth before each reachable instruction, by the interpreter's own table."""
    units, first, _ = _select(decoded.instructions, _pool_of(decoded))
    index = {unit: i for i, unit in enumerate(units)}
    depth: dict[int, int] = {}
    work = [(0, 0), *((index[first[h.target]], h.depth + 1 + h.lasti) for h in decoded.handlers)]
    while work:
        i, here = work.pop()
        while i not in depth and i < len(units):
            depth[i] = here
            unit = units[i]
            name = dis.opname[unit.op]
            if unit.target is not None and name != "END_ASYNC_FOR":
                work.append((index[unit.target], here + _unit_effect(unit, True)))
            if name in UNCONDITIONAL or name in TERMINAL:
                break
            here += _unit_effect(unit, False)
            i += 1
    return {it: depth[index[unit]] for it, unit in first.items() if index[unit] in depth}


def _pool_of(decoded: Decoded) -> _Pool:
    pool = _Pool(decoded.code, {})
    pool.add_locals(decoded.instructions)
    return pool
