"""Resume functions: copies of a frame's code that are entered in the middle, with a stack and variables as arguments.

Each begins with instructions that put the stack back, then jumps into the copy. Only what can still run is copied. Resume
functions are captured in their turn; what they call at run time is in ``resuming``.
"""

from __future__ import annotations

import dataclasses
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from ..bytecode import emitters as emitters
from ..bytecode import instruction as bytecode
from ..bytecode.assembly import assemble
from ..bytecode.instruction import Instruction
from ..bytecode.opcodes import RAISES
from ..hook import _hook
from ..machine import Machine, Program, program
from ..values.iterators import Recipe, restored
from .break_shapes import RETURNS, Slot
from .resuming import OWN_MARK, RESUME_MARK, Retry

Place = tuple[Program, int, tuple[Slot, ...], tuple[str, ...]]
"""Where a resume function starts, in the code that it is a copy of, with which stack and which variables."""


class Resumes:
    """The resume functions of one compiled function, each made once: what goes on at an instruction of some code, with
    a stack and variables of some form. They are known by where they come from, however many breaks led there."""

    def __init__(self) -> None:
        self._made: dict[Any, types.CodeType] = {}
        self._origins: dict[int, tuple[Program, dict[int, int]]] = {}
        self._kept: list[types.CodeType] = []
        self._families: dict[int, list[types.CodeType]] = {}
        self._passed: set[Any] = set()
        self._places: dict[int, Place] = {}

    def whole(self, program: Program) -> Program:
        """The code that a resume function is of; other code itself."""
        found = self._origins.get(id(program.code))
        return program if found is None else found[0]

    def origin(self, program: Program, index: int) -> tuple[Program, int]:
        """The code and instruction that the instruction ``index`` of a resume function is a copy of."""
        found = self._origins.get(id(program.code))
        if found is None or index not in found[1]:
            return program, index
        return found[0], found[1][index]

    def repeats(self, machine: Machine) -> bool:
        """Whether the frame, a resume function, breaks where the code it resumes broke before: in a loop."""
        program, index = self.origin(machine.program, machine.at)
        return self.broke(program, index) and machine.program is not program

    def broke(self, program: Program, index: int) -> bool:
        """Notes a break at an instruction; whether there was one before."""
        key = (id(program.code), index)
        before = key in self._passed
        self._passed.add(key)
        return before

    def code(self, machine: Machine, target: Instruction, slots: list[Slot], names: list[str]) -> types.CodeType:
        """Code that starts at ``target`` (of the machine's program) with the given stack and variables."""
        return self.at(*self.origin(machine.program, machine.program.index[id(target)]), slots, names)

    def at(self, program: Program, index: int, slots: Sequence[Slot], names: Sequence[str]) -> types.CodeType:
        """Code that starts at the instruction ``index`` of a program."""
        key = (id(program.code), index, tuple(slots), tuple(names))
        made = self._made.get(key)
        if made is None:
            made, copied = resume_code(program, program.instructions[index], list(slots), list(names))
            self._made[key] = made
            self._places[id(made)] = program, index, tuple(slots), tuple(names)
            self._origins[id(made)] = (program, copied)
            self._kept += [made, program.code]
            self.family(program).append(made)
        return made

    def place(self, code: types.CodeType) -> Place | None:
        """What :meth:`at` was given for a resume function; None for other code."""
        return self._places.get(id(code))

    def is_root(self, program: Program) -> bool:
        """Whether the code is no resume function that was made here."""
        return id(program.code) not in self._origins

    def family(self, program: Program) -> list[types.CodeType]:
        """All that resumes the root that ``program`` is, or that it goes back to: what a resume function puts on the stack before
        it goes on can break, too. The root's replacement keeps them alive; they know each other weakly: no collector looks into
        code, and a loop resumes in itself."""
        while (found := self._origins.get(id(program.code))) is not None:
            program = found[0]
        return self._families.setdefault(id(program.code), [])


def body_start(instructions: list[Instruction]) -> int:
    """The index of the first instruction after a function's prologue, which makes cells and ends with RESUME."""
    return next(i for i, instruction in enumerate(instructions) if instruction.op == "RESUME") + 1


def cells_of(code: types.CodeType) -> tuple[str, ...]:
    """The variables of a frame of ``code`` whose cells its resume functions close over: free ones, then its own."""
    return (*(name for name in code.co_freevars if not name.endswith(OWN_MARK)), *code.co_cellvars)


def resume_code(
    program: Program, target: Instruction, slots: list[Slot], names: list[str]
) -> tuple[types.CodeType, dict[int, int]]:
    """Code that starts at ``target`` with the given stack: arguments are its values that are not NULL, then ``names``.

    Also gives, by index of its instructions, those of ``program`` that they are copies of.
    """
    original = program.code
    own, cells = original.co_cellvars, cells_of(original)
    free = tuple(name + OWN_MARK if name in own else name for name in cells)
    arguments = [f"__fuselens_stack_{i}" for i, slot in enumerate(slots) if slot != "null"]
    copies = _copies(program)
    live = reachable(program, target)
    out = [*_entry(own, free), *_stack(slots, iter(arguments)), *emitters.jump(copies[id(target)])]
    for instruction in out:
        instruction.position = target.position
    kept = [n for n, i in enumerate(program.instructions) if i in live]
    body = [copies[id(program.instructions[n])] for n in kept]
    variables = [*arguments, *names, *(v for v in original.co_varnames if v not in names and v not in cells)]
    line = (target.position[0] if target.position else None) or original.co_firstlineno
    base = original.co_name.split(RESUME_MARK)[0]
    qualified = original.co_qualname.split(RESUME_MARK)[0]
    flags = original.co_flags & ~(0x04 | 0x08)
    made = assemble(
        original, out + body, _live_handlers(program, live, copies), co_varnames=tuple(variables), co_cellvars=own,
        co_freevars=free, co_argcount=len(arguments) + len(names), co_posonlyargcount=0, co_kwonlyargcount=0,
        co_flags=flags, co_name=f"{base}{RESUME_MARK}{line}", co_qualname=f"{qualified}{RESUME_MARK}{line}",
    )  # fmt: skip
    return made, {len(out) + n: index for n, index in enumerate(kept)}


def resumed_at(program: Program) -> Instruction:
    """The instruction at which a resume function goes on: its stack is put back, and it jumps there."""
    begin = body_start(program.instructions)
    jump = next(i for i in program.instructions[begin:] if i.op.startswith("JUMP") and i.target is not None)
    assert jump.target is not None
    return jump.target


def eager_retry(code: types.CodeType, names: tuple[str, ...], strict: bool, writes: bool) -> Retry:
    """What runs a frame of ``code`` eagerly whose graph raised. The replacement that holds it is kept by the code itself."""
    return Retry(weakref.ref(code), eager_code, names, strict, writes)


def eager_code(code: types.CodeType, names: tuple[str, ...]) -> types.CodeType:
    """A copy of ``code`` that is never captured, for a frame whose cells exist: its arguments are ``names``."""
    whole = program(code)
    first = whole.instructions[body_start(whole.instructions)]
    copy, _ = resume_code(whole, first, [], list(names))
    copy = copy.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    _hook.skip(copy)
    return copy


def _entry(own: tuple[str, ...], free: tuple[str, ...]) -> list[Instruction]:
    """The prologue; cells of the resumed frame become the variables that they were."""
    out = list(emitters.copy_free_vars(len(free))) if free else []
    for name in own:  # its own variables stay that: CPython's errors tell them from free ones
        out += [*emitters.load_closure(name + OWN_MARK), *emitters.store_fast(name)]
    return [*out, *emitters.resume()]


def _stack(slots: list[Slot], arguments: Iterator[str]) -> list[Instruction]:
    """Puts the stack back, of arguments."""
    out: list[Instruction] = []
    for slot in slots:
        if slot == "null":
            out += emitters.push_null()
        elif slot == "handled":
            out += [*emitters.load_fast(next(arguments)), *emitters.push_exc_info(), *emitters.pop_top()]
        elif isinstance(slot, Recipe):
            out += emitters.prepare_call(emitters.load_const(restored))
            out += [*emitters.load_const(slot), *emitters.load_fast(next(arguments)), *emitters.call(2)]
        else:
            out += emitters.load_fast(next(arguments))
    return out


def _copies(program: Program) -> dict[int, Instruction]:
    """Copies of all instructions, which refer to each other, by the ids of the originals."""
    copies = {id(i): i.copy() for i in program.instructions}
    for instruction in copies.values():
        if instruction.target is not None:
            instruction.target = copies[id(instruction.target)]
        if isinstance(instruction.argval, Instruction):  # where a FOR_ITER's loop is left
            instruction.argval = copies[id(instruction.argval)]
    return copies


def _live_handlers(program: Program, live: set[Instruction], copies: dict[int, Instruction]) -> list[bytecode.Handler]:
    """The handlers of instructions that can run, for the copies."""
    found = []
    for handler in program.decoded.handlers:
        covered = [i for i in _covered(program, handler) if i in live]
        if covered and handler.target in live:
            start, end, to = (copies[id(i)] for i in (covered[0], covered[-1], handler.target))
            found.append(dataclasses.replace(handler, start=start, end=end, target=to))
    return found


_UNCONDITIONAL = ("JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_NEVER_FALL_THROUGH = (*RAISES, *RETURNS, *_UNCONDITIONAL)


def reachable(program: Program, start: Instruction) -> set[Instruction]:
    """Instructions that can run once ``start`` does, handlers included."""
    instructions, index = program.instructions, program.index
    covering: dict[Instruction, list[Instruction]] = {}
    for handler in program.decoded.handlers:
        for i in _covered(program, handler):
            covering.setdefault(i, []).append(handler.target)
    found: set[Instruction] = set()
    pending = [start]
    while pending:
        instruction = pending.pop()
        if instruction in found:
            continue
        found.add(instruction)
        pending += covering.get(instruction, ())
        if instruction.target is not None:
            pending.append(instruction.target)
        if instruction.op not in _NEVER_FALL_THROUGH:
            at = index[id(instruction)] + 1
            if at < len(instructions):
                pending.append(instructions[at])
    return found


def _covered(program: Program, handler: bytecode.Handler) -> list[Instruction]:
    """The instructions whose exceptions go to ``handler``."""
    return program.instructions[program.index[id(handler.start)] : program.index[id(handler.end)] + 1]
