"""Which locals may still be read after an instruction: a backward data-flow analysis over bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .instruction import Handler, Instruction
from .micros import normalise
from .opcodes import TERMINAL, UNCONDITIONAL

_READS = {"LOAD_FAST", "LOAD_FAST_AND_CLEAR", "DELETE_FAST", "MAKE_CELL"}


def live_locals(
    instructions: Sequence[Instruction], handlers: Iterable[Handler] = ()
) -> dict[Instruction, frozenset[str]]:
    """Locals whose value before an instruction may still be read, also along exceptions.

    Of names, cell variables count until MAKE_CELL takes them over. LOAD_FAST_AND_CLEAR counts as a read, although the
    local may be unbound: whoever saves the live locals drops those that are.
    """
    bit, reads, keeps = _uses(instructions)
    live = _fixed_point(reads, keeps, *_flow(instructions, handlers))
    sets: dict[int, frozenset[str]] = {}
    for mask in live:
        if mask not in sets:
            sets[mask] = frozenset(name for name, b in bit.items() if mask & b)
    return {it: sets[live[i]] for i, it in enumerate(instructions)}


def _uses(instructions: Sequence[Instruction]) -> tuple[dict[str, int], list[int], list[int]]:
    """A bit for each local; for each instruction the locals that it reads, and those that it leaves as they are."""
    bit: dict[str, int] = {}
    reads, keeps = [0] * len(instructions), [-1] * len(instructions)
    for i, it in enumerate(instructions):
        for micro in reversed(normalise(it)):
            if micro.op in _READS or micro.op == "STORE_FAST":
                mask = bit.setdefault(micro.arg, 1 << len(bit))
                reads[i] = reads[i] | mask if micro.op in _READS else reads[i] & ~mask
                if micro.op != "LOAD_FAST":
                    keeps[i] &= ~mask
    return bit, reads, keeps


def _flow(instructions: Sequence[Instruction], handlers: Iterable[Handler]) -> tuple[list[list[int]], list[list[int]]]:
    """For each instruction those that may run next, and those at which its exceptions are handled."""
    index = {it: i for i, it in enumerate(instructions)}
    n = len(instructions)
    successors: list[list[int]] = [[] for _ in range(n)]
    for i, it in enumerate(instructions):
        if it.op not in TERMINAL and it.op not in UNCONDITIONAL and i + 1 < n:
            successors[i].append(i + 1)
        if it.target is not None and it.op != "END_ASYNC_FOR":
            successors[i].append(index[it.target])
    landing: list[list[int]] = [[] for _ in range(n)]
    for handler in handlers:
        for i in range(index[handler.start], index[handler.end] + 1):
            landing[i].append(index[handler.target])
    return successors, landing


def _fixed_point(
    reads: list[int], keeps: list[int], successors: list[list[int]], landing: list[list[int]]
) -> list[int]:
    """The locals that are live before each instruction: before = reads | after & keeps."""
    live = [0] * len(reads)
    changed = True
    while changed:
        changed = False
        for i in range(len(reads) - 1, -1, -1):
            after = 0
            for s in successors[i]:
                after |= live[s]
            before = reads[i] | after & keeps[i]
            for h in landing[i]:
                before |= live[h]
            if before != live[i]:
                live[i] = before
                changed = True
    return live
