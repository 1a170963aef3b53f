"""Where the control flow of code may lead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .instruction import Instruction
from .micros import normalise
from .opcodes import RAISES, TERMINAL, UNCONDITIONAL

_LONGEST = 500  # instructions that are looked at
_SUSPENDS = ("YIELD_VALUE", "SEND")


def only_raises(instructions: Sequence[Instruction], index: Mapping[int, int], start: int) -> bool:
    """Whether whatever runs from an instruction on ends in a ``raise``, without a loop; ``index`` is by the identity of
    instructions."""
    seen: set[int] = set()
    pending = [start]
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        instruction = instructions[at]
        seen.add(at)
        if instruction.op in RAISES:
            continue
        backwards = instruction.target is not None and index[id(instruction.target)] <= at
        if backwards or instruction.op in TERMINAL or len(seen) > _LONGEST:
            return False
        if any(micro.op in _SUSPENDS for micro in normalise(instruction)):
            return False
        if instruction.target is not None:
            pending.append(index[id(instruction.target)])
        if instruction.op not in UNCONDITIONAL:
            pending.append(at + 1)
    return True
