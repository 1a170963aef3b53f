"""CPython bytecode of 3.11 to 3.14: what instructions are, for all versions.

Nothing but the modules ``bytecode/`` knows versions. ``bytecode/decoding.py`` gives instructions that refer to constants, names,
locals and jump targets themselves. ``bytecode/assembly.py`` interns them, and lays out caches and tables. ``bytecode/emitters.py``
gives instructions right for the running version. ``bytecode/micros.py`` splits one instruction into micro-operations, the
same on every version. ``bytecode/liveness.py`` says which locals are read later,
``bytecode/flow.py`` where control flow leads. ``bytecode/opcodes.py`` has the tables of opcodes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import CodeType
from typing import Any

VERSION = sys.version_info[:2]
NULL_FIRST = VERSION < (3, 13)
"""Whether a call's NULL lies below the callable (3.11, 3.12) or above it (from 3.13 on)."""
POPS_NULL = VERSION >= (3, 14)
"""Whether POP_TOP takes a NULL."""

Position = tuple["int | None", "int | None", "int | None", "int | None"]
"""(line, end line, column, end column), columns in UTF-8 bytes, as co_positions gives them."""
NO_POSITION: Position = (None, None, None, None)


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction.

    `argval` is what it refers to and decides what is assembled: a constant, a name, a local's name, an operator, a pair
    of names; `arg` is its raw argument, only a hint where argval says the same. `flag` holds the low bits that share an
    argument with a name or operator: LOAD_GLOBAL's and LOAD_ATTR's push-two bit, LOAD_SUPER_ATTR's two bits,
    COMPARE_OP's mask; for LOAD_FAST and its kin 1 when the slot is that of a cell or free variable. For FOR_ITER,
    argval is the instruction at which the loop is left, after the clean-up at `target`.
    """

    op: str
    arg: int | None = None
    argval: Any = None
    target: Instruction | None = None
    position: Position | None = None
    flag: int = 0

    def __repr__(self) -> str:
        what = (
            f" -> {self.target.op}" if self.target is not None else "" if self.argval is None else f" {self.argval!r}"
        )
        return f"<{self.op}{'' if self.arg is None else f' {self.arg}'}{what}>"

    def copy(self) -> Instruction:
        return Instruction(self.op, self.arg, self.argval, self.target, self.position, self.flag)


@dataclass(slots=True)
class Handler:
    """An exception raised from `start` to `end`, both included, goes to `target` with the stack cut to `depth`."""

    start: Instruction
    end: Instruction
    target: Instruction
    depth: int
    lasti: bool


@dataclass(slots=True)
class Decoded:
    instructions: list[Instruction]
    handlers: list[Handler]
    code: CodeType


def slot_names(code: CodeType) -> list[str]:
    """Names of the frame's slots: locals, then cells that are no arguments, then free variables."""
    local = set(code.co_varnames)
    return [*code.co_varnames, *(n for n in code.co_cellvars if n not in local), *code.co_freevars]
