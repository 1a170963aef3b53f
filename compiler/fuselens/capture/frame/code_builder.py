"""A frame's replacement code while it grows: instructions, names of temporaries, and what exceptions are handled by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..bytecode import emitters as emitters
from ..bytecode.instruction import Handler, Instruction, Position


class CodeBuilder:
    """``out`` grows; instructions without a position get ``position``. Landings, where handlers go on, come after all else."""

    def __init__(self, position: Position | None) -> None:
        self.position = position
        self.out: list[Instruction] = []
        self.handlers: list[Handler] = []
        self.landings: list[Instruction] = []
        self.temporaries: list[str] = []

    def emit(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if instruction.position is None:
                instruction.position = self.position
            self.out.append(instruction)

    def temporary(self) -> str:
        """The name of a new local variable."""
        name = f"__fuselens_object_{len(self.temporaries)}"
        self.temporaries.append(name)
        return name

    @contextmanager
    def landing(self, covered: list[Instruction], depth: int = 0) -> Iterator[str]:
        """Inside is emitted what an exception of ``covered`` goes to, ``depth`` values below it. Gives the variable in
        which it is."""
        first, exception = emitters.nop()[0], self.temporary()
        self.handlers.append(Handler(covered[0], covered[-1], first, depth, False))
        main, self.out = self.out, []
        self.emit([first, *emitters.store_fast(exception)])
        yield exception
        self.landings += self.out
        self.out = main
