"""The symbolic machine: executes normalised instructions over tracked values.

One :class:`Machine` runs one code object; calls of Python functions run another on top of it. Here are its state, the
loop over instructions, and where exceptions go. What an instruction means is in ``instructions/``; what a
call means is in ``calls/``; what a value answers is in ``values/``.
"""

from __future__ import annotations

import contextlib
import linecache
import types
from collections.abc import Iterator
from typing import Any

from ..record import logs
from ..record.report import Frame, Span
from . import classify, registered
from .breaks import Break, FrameUnsupported, Raised, raising
from .bytecode import instruction as bytecode
from .bytecode.decoding import decode, join_with, own_loads, spell_out_super, split_pairs
from .bytecode.micros import Micro, normalise
from .calls import calls
from .hook import _hook
from .instructions.table import HANDLERS
from .tracing.sources import Source
from .tracing.tracer import Tracer
from .values import attributes, truth
from .values.algebra import (
    CellValue,
    Constant,
    GradModeContext,
    HandledException,
    ObjectValue,
    Value,
)

registered.load()
MAXIMUM_STEPS = 400_000
MAXIMUM_DEPTH = 150
_KEEP_TRACEBACK = (("RERAISE", 0), ("RERAISE", 1), ("RERAISE", 2), ("RAISE_VARARGS", 0))  # these add no entry


def too_deep(code: types.CodeType) -> Break:
    """The break of a recursion that is not followed to its end; from now on its function runs as it is."""
    _hook.skip(code)
    return Break("FL121", what=code.co_qualname, why=f"calls nest deeper than {MAXIMUM_DEPTH}, or than Python allows")


class Program:
    """A decoded code object and what is derived from it, made once per code object."""

    __slots__ = ("code", "decoded", "instructions", "micros", "index", "fixed", "library", "handlers", "_spans")

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.decoded = decode(code)
        join_with(self.decoded)
        own_loads(self.decoded)
        split_pairs(self.decoded)
        spell_out_super(self.decoded)
        self.instructions = self.decoded.instructions
        self.micros = [normalise(i) for i in self.instructions]
        self.index = {id(instruction): n for n, instruction in enumerate(self.instructions)}
        self.library = classify.is_library_file(code.co_filename)
        self.fixed = self.library and not classify.is_made_at_run_time(code.co_filename)
        self.handlers: dict[int, bytecode.Handler] = {}
        """By instruction: where an exception in it goes."""
        for handler in self.decoded.handlers:
            for i in range(self.index[id(handler.start)], self.index[id(handler.end)] + 1):
                self.handlers.setdefault(i, handler)
        self._spans: dict[int, Span | None] = {}

    def span(self, instruction: bytecode.Instruction) -> Span | None:
        """Where an instruction of this program stands in its file."""
        key = id(instruction)
        if key not in self._spans:
            self._spans[key] = self._span(instruction)
        return self._spans[key]

    def _span(self, instruction: bytecode.Instruction) -> Span | None:
        if instruction.op == "BEFORE_WITH":  # 3.11 gives it the whole statement
            instruction = self.instructions[self.index[id(instruction)] - 1]
        p = instruction.position
        if p is None:
            return None
        line, end_line, column, end_column = p
        if line is None:
            return None
        if column is None or end_column is None or end_line is None:
            return Span(self.code.co_filename, line, 0, line, 0)
        return Span(self.code.co_filename, line, column, end_line, end_column)


_programs: dict[int, Program] = {}
"""By the identity of the code object, which its program keeps alive."""


def program(code: types.CodeType) -> Program:
    """The decoded form of ``code``: library code's is remembered for good, other code's inside :func:`remembering_code`."""
    found = _programs.get(id(code))
    if found is None:
        found = _programs[id(code)] = Program(code)
    return found


@contextlib.contextmanager
def remembering_code() -> Iterator[None]:
    """One compilation. Afterwards the code that is no library's is let go of, so that it is collected with its functions."""
    try:
        yield
    finally:
        for key in [key for key, one in _programs.items() if not one.fixed]:
            del _programs[key]


class Machine:
    """One frame of symbolic execution."""

    def __init__(
        self,
        tracer: Tracer,
        code: types.CodeType,
        locals_: dict[str, Value],
        free: list[CellValue],
        globals_: dict[str, Any],
        globals_source: Source,
        parent: Machine | None = None,
    ) -> None:
        self.tracer = tracer
        self.program = program(code)
        self.code = code
        if not self.program.fixed:
            tracer.inlined[id(code)] = tracer.overlay.installed(code)
        self.locals = locals_
        self.cells: dict[str, CellValue] = {}
        self.free = free
        self.globals = globals_
        self.globals_source = globals_source
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.stack: list[Value] = []
        self.at = 0
        self.next = 0
        self.keyword_names: tuple[str, ...] = ()
        self.result: Value | None = None
        self.yielded: Value | None = None
        self.contexts: list[GradModeContext] = []
        self.call_place = tracer.place
        self.steps = 0
        self.most_in_call = 0  # operations of the call that has most, for a frame that is captured
        if self.depth > MAXIMUM_DEPTH:
            raise too_deep(code)

    # --- running -------------------------------------------------------------------------------------------

    @property
    def instruction(self) -> bytecode.Instruction:
        return self.program.instructions[self.at]

    def run(self, stop_at: int = -1) -> bool:
        """Runs to the return (True; see ``result``), to a ``yield`` (False; see ``yielded``), or until ``stop_at``
        instructions have run (False)."""
        prog, tracer = self.program, self.tracer
        micros = prog.micros
        told = self._line if logs.wanted("trace_source") else None
        while True:
            if self.steps == stop_at:
                return False
            self.steps += 1
            tracer.steps += 1
            if tracer.steps > MAXIMUM_STEPS:
                raise FrameUnsupported(
                    "FL109", self.tracer.span, what=self.code.co_qualname,
                    why=f"more than {MAXIMUM_STEPS} instructions were unrolled",
                )  # fmt: skip
            self.set_span()
            if told is not None:
                told()
            self.next = self.at + 1
            try:
                for micro in micros[self.at]:
                    handler = HANDLERS.get(micro.op)
                    if handler is None:
                        raise Break("FL105", what=f"instruction {micro.op}", why="not traced")
                    handler(self, micro.arg)
            except Break as b:
                self.locate(b)
                raise
            except Raised as r:
                self.locate(r)
                self._handle(r)
            if self.result is not None:
                return True
            self.at = self.next
            if self.yielded is not None:
                return False

    def _line(self) -> None:
        """Says, once, which line is traced now."""
        span = self.tracer.span
        if span is None or span.file != self.code.co_filename or self.instruction.op == "RESUME":
            return
        if (span.file, span.line) != self.tracer.told_line:
            self.tracer.told_line = (span.file, span.line)
            text = linecache.getline(span.file, span.line).strip()
            logs.line(self.code.co_qualname, span.file, span.line, self.depth, text)

    def locate(self, event: Break | Raised) -> None:
        if event.span is None:
            event.span = self.tracer.span
            event.stack = self.user_stack()
            event.inner = self.code.co_qualname if self.depth else ""

    def _handle(self, raised: Raised) -> None:
        """Goes on at the handler that covers this instruction; the exception goes to the caller when there is none.

        What leaves the outermost frame is raised by eager's own instruction, so there it is a break.
        """
        handler = self.program.handlers.get(self.at)
        self.set_span()
        if raised.chains:
            raised.chains = False
            self._chain(raised.value)
        first = self.tracer.exceptions.raised_at.setdefault(id(raised.value), (self.tracer.now, raised))
        if (self.instruction.op, self.instruction.argval) not in _KEEP_TRACEBACK:
            places = self.tracer.exceptions.tracebacks.setdefault(id(raised.value.value), (raised.value, []))[1]
            places.insert(0, (self.code, self.instruction.position or bytecode.NO_POSITION))
        if handler is None:
            if self.depth:
                raise raised
            escape = Break("FL116", what=f"`{raised.value.python_type.__name__}`")
            escape.step, raised = first
            escape.span, escape.stack, escape.inner = raised.span, raised.stack, raised.inner
            raise escape from None
        del self.stack[handler.depth :]
        if handler.lasti:
            self.push(Constant(self.at))
        self.push(raised.value)
        self.keyword_names = ()
        self.jump(handler.target)

    def _chain(self, exception: ObjectValue) -> None:
        """Makes the exception being handled the context of one that is raised; their chain must not become a circle."""
        handled = self.handled_exception()
        if not isinstance(handled, ObjectValue) or handled.value is exception.value:
            return
        link, passed = handled, {id(handled.value)}
        while isinstance(context := attributes.context_of(self, link), ObjectValue) and id(context.value) not in passed:
            passed.add(id(context.value))
            if context.value is exception.value:
                attributes.assign(self, link, "__context__", Constant(None))
                break
            link = context
        attributes.assign(self, exception, "__context__", handled)

    def throw(self, raised: Raised) -> None:
        """Raises an exception at the instruction that ran last (a ``yield``), before going on."""
        self.at -= 1
        self._handle(raised)
        self.at = self.next

    def closes_quietly(self) -> bool:
        """Whether closing this suspended generator's frame runs nothing but tests of the exception's type."""
        try:
            self.throw(raising(GeneratorExit()))
            while all(micro in _CONVERTS or micro.op in _TESTS for micro in self.program.micros[self.at]):
                self.next = self.at + 1
                try:
                    for micro in self.program.micros[self.at]:
                        if micro not in _CONVERTS:
                            HANDLERS[micro.op](self, micro.arg)
                except Raised as raised:
                    self._handle(raised)
                self.at = self.next
        except Raised as raised:
            return raised.kind is GeneratorExit
        except Break:
            pass
        return False

    def handled_exception(self) -> Value | None:
        """What ``sys.exc_info`` and a bare ``raise`` refer to."""
        machine: Machine | None = self
        while machine is not None:
            for value in reversed(machine.stack):
                if isinstance(value, HandledException):
                    return self.use(value.exception)
            machine = machine.parent
        return None

    def set_span(self) -> None:
        """The tracer's position: this instruction in user code, the call in library code."""
        if self.program.library and self.parent is not None:
            self.tracer.place = self.call_place
        else:
            instruction = self.program.instructions[self.at]
            if instruction.position is not None and instruction.position[0] is not None:
                self.tracer.place = self.program, instruction

    def user_stack(self) -> tuple[Frame, ...]:
        frames: list[Frame] = []
        machine: Machine | None = self
        while machine is not None:
            span = machine.program.span(machine.instruction)
            if span is not None and not machine.program.library:
                frames.append(Frame(machine.code.co_qualname, span))
            machine = machine.parent
        return tuple(reversed(frames))

    def jump(self, target: bytecode.Instruction) -> None:
        self.next = self.program.index[id(target)]

    # --- stack ---------------------------------------------------------------------------------------------

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        """The top value, looked at: its guards are owed."""
        return self.tracer.use(self.stack.pop())

    def take(self) -> Value:
        """The top value as it is: moving an object around needs no guard."""
        return self.stack.pop()

    def take_many(self, n: int) -> list[Value]:
        if n == 0:
            return []
        taken = self.stack[-n:]
        del self.stack[-n:]
        return taken

    def use(self, value: Value) -> Value:
        return self.tracer.use(value)

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        result = calls.call(self, self.use(function), args, kwargs)
        self.set_span()
        return result

    def decided(self, value: Value, what: str) -> bool:
        """The truth of a value that tracing cannot go on without."""
        found = self.truth(value)
        if found is None:
            raise Break("FL102", what=what)
        return found

    # --- truth ---------------------------------------------------------------------------------------------

    def truth(self, value: Value) -> bool | None:
        """Python truth of a value; None when only the running program knows."""
        return truth.truth(self, value)


# what the code between a handler's start and its raising again consists of
_TESTS = {
    "PUSH_EXC_INFO", "LOAD_GLOBAL", "BUILD_TUPLE", "CHECK_EXC_MATCH", "POP_JUMP_IF", "JUMP", "COPY", "POP_EXCEPT",
    "RERAISE", "NOP", "SWAP", "POP_TOP", "CLEANUP_THROW", "LOAD_CONST", "STORE_FAST", "DELETE_FAST",
}  # fmt: skip
_CONVERTS = (Micro("CALL_INTRINSIC_1", "INTRINSIC_STOPITERATION_ERROR"),)
