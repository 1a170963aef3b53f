"""Bytecode for what tracing found: call the graph, do its effects, run the breaking instruction, go on elsewhere.

The replacement code of a frame calls the compiled graph on the gathered inputs, rebuilds from its outputs whatever
Python objects the frame still needs, and either returns or hands over to a *resume function*: the same code, entered in
the middle, with the live stack and locals as its arguments. Resume functions are captured in their turn.

Here is the shape of that code: one method for each way in which a frame goes on. ``rebuild`` makes the values in it.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import weakref
from collections.abc import Sequence
from typing import Any

from torch import fx

from ... import torch_private
from ..breaks import FrameUnsupported
from ..bytecode import emitters as emitters
from ..bytecode import instruction as bytecode
from ..bytecode.assembly import assemble
from ..bytecode.instruction import Instruction
from ..bytecode.micros import normalise
from ..bytecode.opcodes import RAISES
from ..hook import _hook
from ..machine import Machine
from ..program.draws import Rewind, drawn
from ..values.algebra import (
    NULL,
    CellValue,
    CombinedIterator,
    Constant,
    ContextExit,
    HandledException,
    IteratorValue,
    SequenceValue,
    Value,
)
from ..values.iterators import Recipe, recipe_of
from .break_shapes import (
    RETURNS,
    Slot,
    condition_of,
    group_start,
    handled_among,
    peeks,
    popping,
    stack_change,
    without_null,
)
from .code_builder import CodeBuilder
from .explore import explore_both
from .liveness import effects, iterators_in, live_names, shared_iterators
from .rebuild import GATHERED, OUTPUTS, Rebuilder
from .remaking import Kept
from .replay import replay, store_cells
from .resume_code import Resumes, body_start, cells_of, eager_retry, resume_code
from .resuming import END, RESUME_MARK, Tail, hand_on, next_or_end, run_tails


@dataclasses.dataclass(slots=True)
class Replacement:
    """Code that replaces a frame's, and the local slot where the hook puts the gathered inputs (-1: none)."""

    code: types.CodeType
    gather_slot: int


@dataclasses.dataclass(slots=True)
class _Resumption:
    """How a frame goes on at ``target``: its arguments are ``stack`` (NULLs left out), then the variables ``names``."""

    target: Instruction
    slots: list[Slot]
    stack: list[Value]
    names: list[str]
    variables: list[Value]


class Emitter:
    """Builds one replacement from the stopped (or finished) machine of a frame."""

    def __init__(
        self, machine: Machine, outputs: list[fx.Node], graph: Any, n_inputs: int, resumes: Resumes, grad_enabled: bool
    ) -> None:
        self.m = machine
        self.graph = graph
        self.n_inputs = n_inputs
        self.resumes = resumes
        self.grad_enabled = grad_enabled  # grad mode now: that of the frame's beginning, which the graph restores
        self.code = CodeBuilder(machine.instruction.position)
        self.rebuilder = Rebuilder(machine, outputs, self.code)
        self.resumed: list[tuple[types.CodeType, dict[str, Value]]] = []  # resume functions, and what they are given
        self.opaque_iterators = False

    # --- whole programs ------------------------------------------------------------------------------------

    def returning(self, value: Value) -> Replacement:
        replay(self.rebuilder)
        store_cells(self.rebuilder, self._parameters(), only_written=True)
        self._set_grad_mode(self.m.tracer.torch_state.grad_enabled)
        self.rebuilder.value(value)
        self.code.emit(emitters.return_value())
        return self._finish()

    def breaking(self, explore: bool) -> Replacement:
        """After the graph: the instruction at which the machine stopped, in plain bytecode, then a resume function."""
        hidden = next((v for v in self.m.stack if isinstance(v, CellValue)), None)
        if hidden is not None:
            why = "a comprehension hides it while a closure holds it"
            raise FrameUnsupported("FL109", None, what=f"variable {hidden.name}", why=why)
        self.opaque_iterators = self.resumes.repeats(self.m)
        if self.resumes.is_root(self.m.program):
            kept = Kept(self.resumes.family(self.m.program))
            self.code.emit([*emitters.load_const(kept), *emitters.pop_top()])
        replay(self.rebuilder)
        store_cells(self.rebuilder, self._parameters(), only_written=False)
        self._enter_contexts()
        index, instruction = self.m.at, self.m.instruction
        if condition_of(instruction) is not None and explore:
            self._explored(index)
        elif condition_of(instruction) is not None:
            self._conditional(index)
        elif instruction.op == "FOR_ITER":
            self._loop(index)
        elif instruction.target is None and instruction.op not in RETURNS:
            self._plain_then_resume(index)
        else:
            self._rest_eagerly(index)
        return self._finish()

    def _enter_contexts(self) -> None:
        """Enters the contexts whose exits are on the stack: they are entered from here on."""
        for value in self.m.stack:
            if isinstance(value, ContextExit) and not value.exited:
                self._set_grad_mode(bool(value.context.previous))
                self.rebuilder.value(value)
                self.code.emit(emitters.pop_top())
                self.grad_enabled = value.context.enabled
        self._set_grad_mode(self.m.tracer.torch_state.grad_enabled)

    def _set_grad_mode(self, enabled: bool) -> None:
        """Grad mode as the program has set it."""
        if enabled != self.grad_enabled:
            self.rebuilder.run(torch_private.set_grad_enabled, Constant(enabled))
            self.grad_enabled = enabled

    def _finish(self) -> Replacement:
        body, self.code.out = self.code.out, []
        self._prologue()  # now that it is known what else than graph inputs is gathered
        instructions = [*self.code.out, *body, *self.code.landings]
        original = self.m.code
        names = [*original.co_varnames, OUTPUTS, *self.code.temporaries]
        slot = -1
        if any(i.argval == GATHERED for i in instructions):
            slot = len(names)
            names.append(GATHERED)
        plain = {n: getattr(original, n).split(RESUME_MARK)[0] for n in ("co_name", "co_qualname")}  # for tracebacks
        made = assemble(original, instructions, self.code.handlers, co_varnames=tuple(names), **plain)
        return Replacement(made, slot)

    # --- the call of the graph -----------------------------------------------------------------------------

    def _prologue(self) -> None:
        """What the original code begins with (cells, RESUME), then the call of the graph."""
        emit, tracer, gathered = self.code.emit, self.m.tracer, self.m.tracer.guards.gathered
        instructions = self.m.program.instructions
        for instruction in instructions[: body_start(instructions)]:
            emit([instruction.copy()])
        if self.graph is None:
            return
        emit(emitters.prepare_call(emitters.load_const(self.graph)))
        # a frame whose guards gather nothing is given no tuple
        inputs = emitters.load_fast(GATHERED) if gathered else emitters.load_const(())
        rewind = ""
        if tracer.graphs.drawn:
            rewind = self.code.temporary()
            emit(
                [
                    *emitters.prepare_call(emitters.load_const(Rewind)),
                    *inputs,
                    *emitters.call(1),
                    *emitters.store_fast(rewind),
                ]
            )
            inputs = [*emitters.prepare_call(emitters.load_const(drawn)), *inputs, *emitters.call(1)]
        emit(inputs)
        if gathered != self.n_inputs:
            emit(emitters.load_const(slice(0, self.n_inputs)))
            emit(emitters.binary_subscr())
        called = emitters.call(1)
        emit(called)
        emit(emitters.store_fast(OUTPUTS) if self.rebuilder.outputs else emitters.pop_top())
        self._retry([*inputs, *called] if rewind else called, rewind)

    def _retry(self, called: list[Instruction], rewind: str) -> None:
        """Where the graph raises: the frame runs eagerly from its beginning, for eager's effects and traceback, and draws the same
        random numbers again if the variable ``rewind`` can put their generators back.

        A graph that has written to its inputs may not run twice; its exception is raised as it is.
        """
        emit, tracer = self.code.emit, self.m.tracer
        free = cells_of(self.m.code)
        names = [name for name in self._parameters() if name not in free]
        retry = eager_retry(self.m.code, tuple(names), tracer.config.strict, tracer.graphs.writes())
        with self.code.landing(called) as exception:
            emit(emitters.prepare_call(emitters.load_const(retry)))
            emit(emitters.load_fast(exception))
            emit(emitters.load_fast(rewind) if rewind else emitters.load_const(None))
            for name in free:
                emit(emitters.load_closure(name))
            emit(emitters.build_tuple(len(free)))
            for name in names:
                emit(emitters.load_fast(name))
            ran = emitters.call(3 + len(names))
            emit([*ran, *emitters.return_value()])
            self._passing(ran)

    def _parameters(self) -> tuple[str, ...]:
        code = self.m.code
        n = code.co_argcount + code.co_kwonlyargcount
        n += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        return code.co_varnames[:n]

    # --- shapes of breaks ----------------------------------------------------------------------------------

    def _plain_then_resume(self, index: int) -> None:
        """An instruction that does not jump: it runs as it is, and the frame goes on at the next."""
        program, stack = self.m.program.instructions, list(self.m.stack)
        group = program[group_start(program, index) : index + 1]
        popped, pushed = stack_change(program[index], group)
        keep = len(stack) - popped
        run, gives = without_null(group, pushed)
        below = stack[:keep] if peeks(group[-1]) else handled_among(stack[:keep])
        self._push(below)
        for value in stack[keep:]:
            self.rebuilder.value(value)
        self._unbind(run)
        results = self._protected(index, run, sum(s != "null" for s in gives), below)
        if group[-1].op not in RAISES:
            self._resume_at(program[index + 1], stack[:keep], results, gives)

    def _loop(self, index: int) -> None:
        """A ``for`` over an iterator that only the running program knows: one resume function for the body, one for after."""
        self.opaque_iterators = True  # it is advanced here
        below = handled_among(self.m.stack)
        self._push(below)
        self.code.emit(emitters.prepare_call(emitters.load_const(next_or_end)))
        self.rebuilder.value(self.m.stack[-1])
        (item,) = self._protected(index, emitters.call(1), 1, below)
        ended = emitters.nop()[0]
        self.code.emit([*emitters.load_fast(item), *emitters.load_const(END), *emitters.is_op()])
        self.code.emit(emitters.pop_jump_if(True, ended))
        with self.rebuilder.branch():
            self._resume_at(self.m.program.instructions[index + 1], self.m.stack, [item])
        self.code.emit([ended])
        (micro,) = normalise(self.m.instruction)
        self._resume_at(micro.arg, self.m.stack[:-1], [])

    def _sides(self, index: int) -> tuple[bool, list[tuple[Instruction, list[Value]]]]:
        """Of a conditional jump: when it jumps; where both sides go on and with which stack, falling through first."""
        micro = condition_of(self.m.instruction)
        assert micro is not None
        taken_when, jump = micro.arg
        stack = self.m.stack
        taken = stack if micro.op == "JUMP_IF_OR_POP" else stack[:-1]
        return taken_when, [(self.m.program.instructions[index + 1], stack[:-1]), (jump, taken)]

    def _conditional(self, index: int) -> None:
        """A jump on a value that only the running program knows: one resume function for each side."""
        taken_when, sides = self._sides(index)
        handled = handled_among(self.m.stack)
        self._push(handled)
        self.rebuilder.value(self.m.stack[-1])
        (negated,) = self._protected(index, emitters.unary_not(), 1, handled)
        label = emitters.nop()[0]
        self.code.emit([*emitters.load_fast(negated), *emitters.pop_jump_if(not taken_when, label)])
        for (target, stack), start in zip(sides, ([], [label]), strict=True):
            self.code.emit(start)
            with self.rebuilder.branch():
                self._resume_at(target, stack, [])

    def _explored(self, index: int) -> None:
        """A conditional jump whose both sides are captured, for a look at what they would be."""
        emit = self.code.emit
        taken_when, sides = self._sides(index)
        emit(emitters.prepare_call(emitters.load_const(explore_both)))
        self.rebuilder.value(self.m.stack[-1])
        emit(emitters.load_const(taken_when))
        emit(emitters.load_const((id(self.m.code), index)))
        for target, stack in sides:
            resumption = self._resumption(target, stack)
            emit(self._make_resume(resumption))
            values = [*resumption.stack, *resumption.variables]
            for v in values:
                self.rebuilder.value(v)
            emit(emitters.build_tuple(len(values)))
        emit(emitters.call(7))
        emit(emitters.return_value())

    def _rest_eagerly(self, index: int) -> None:
        """The breaking instruction cannot be cut out (it may jump): run the rest of the function as it is."""
        instructions = self.m.program.instructions
        resumption = self._resumption(instructions[group_start(instructions, index)], self.m.stack)
        code, _ = resume_code(self.m.program, resumption.target, resumption.slots, resumption.names)
        _hook.skip(code)
        self.code.emit(emitters.prepare_call(emitters.make_function(code, closure=cells_of(self.m.code))))
        values = [*resumption.stack, *resumption.variables]
        for v in values:
            self.rebuilder.value(v)
        self.code.emit(emitters.call(len(values)))
        self.code.emit(emitters.return_value())

    # --- the breaking instruction --------------------------------------------------------------------------

    def _push(self, below: list[Value]) -> None:
        """Puts on the stack what an instruction needs below its operands; exceptions being handled become current."""
        for value in below:
            if isinstance(value, HandledException):
                self.rebuilder.value(value.exception)
                self.code.emit([*emitters.push_exc_info(), *emitters.pop_top()])
            else:
                self.rebuilder.value(Constant(None) if value is NULL and not bytecode.POPS_NULL else value)

    def _unbind(self, instructions: list[Instruction]) -> None:
        """Unbinds variables that the program has unbound, where one of the instructions is about to find that out. Arguments,
        which this frame still has, are kept elsewhere: what handles the error may be made of them."""
        for micro in (m for i in instructions for m in normalise(i)):
            if micro.op in ("LOAD_FAST", "DELETE_FAST") and micro.arg not in self.m.locals | self.m.cells:
                if micro.arg in self._parameters():
                    kept = self.rebuilder.displaced[micro.arg] = self.code.temporary()
                    self.code.emit([*emitters.load_fast(micro.arg), *emitters.store_fast(kept)])
                self.code.emit([*emitters.load_const(None), *emitters.store_fast(micro.arg)])
                self.code.emit(emitters.delete_fast(micro.arg))

    def _protected(self, index: int, plain: list[Instruction], results: int, below: list[Value]) -> list[str]:
        """Runs ``plain``, whose operands are on the stack on top of ``below``, where the program's handlers see its
        exceptions and ``sys.exc_info`` is what it is there. Gives the variables in which its results are."""
        names = [self.code.temporary() for _ in range(results)]
        handler = self.m.program.handlers.get(index)
        self.code.emit(plain)
        for name in reversed(names):
            self.code.emit(emitters.store_fast(name))
        self.code.emit(popping(below))
        if handler is not None or handled_among(below):
            self._land(plain, handler, below)
        return names

    def _land(self, plain: list[Instruction], handler: bytecode.Handler | None, pushed: list[Value]) -> None:
        """Where an exception of the plain instruction goes: to the resume function at the program's handler."""
        with self.rebuilder.branch(), self.code.landing(plain, len(pushed)) as exception:
            self.code.emit(popping(pushed))
            if handler is None:
                self.code.emit([*emitters.load_fast(exception), *emitters.reraise()])
                return
            below: list[Value] = list(self.m.stack[: handler.depth])
            if handler.lasti:
                below.append(Constant(self.m.at))
            self._resume_at(handler.target, below, [exception])

    # --- resume functions ----------------------------------------------------------------------------------

    def _resumption(self, target: Instruction, stack: list[Value]) -> _Resumption:
        names = live_names(self.m, target)
        slots = [self._slot(v, names) for v in stack]
        passed = [_passed(v, s) for v, s in zip(stack, slots, strict=True) if s != "null"]
        return _Resumption(target, slots, passed, names, [self.m.locals[n] for n in names])

    def _slot(self, value: Value, names: list[str]) -> Slot:
        """How a stack entry reaches a resume function. Of an iterator it makes one that can be traced, unless something
        else holds the iterator too."""
        if value is NULL:
            return "null"
        if isinstance(value, HandledException):
            return "handled"
        if isinstance(value, (IteratorValue, CombinedIterator)) and not self.opaque_iterators:
            m = self.m
            cells = [c.contents for c in m.cells.values() if c.contents is not None]
            others = [*m.stack, *(m.locals[n] for n in names), *cells, *effects(m)]
            if not shared_iterators(others, m.tracer) & iterators_in(value):
                return Recipe(recipe_of(value, []))
        return "value"

    def _make_resume(self, resumption: _Resumption, pushed: Sequence[Slot] = ()) -> list[Instruction]:
        """Pushes the resume function; ``pushed`` are slots above the stack."""
        slots, names = [*resumption.slots, *pushed], resumption.names
        code = self.resumes.code(self.m, resumption.target, slots, names)
        self.resumed.append((code, dict(zip(names, resumption.variables, strict=True))))
        load = emitters.load_const(code)
        if not self.resumes.is_root(self.m.program):
            load = [*emitters.prepare_call(emitters.load_const(weakref.ref(code))), *emitters.call(0)]
        return emitters.make_function(load, closure=cells_of(self.m.code))

    def _resume_at(
        self, target: Instruction, stack: list[Value], pushed: list[str], shapes: list[Slot] | None = None
    ) -> None:
        """Hands over to the resume function that starts at ``target`` with ``stack`` and, above it, the variables
        ``pushed`` (``shapes``: among NULLs that it pushes itself)."""
        emit = self.code.emit
        resumption = self._resumption(target, stack)
        is_resumed = RESUME_MARK in self.m.code.co_name
        emit(emitters.prepare_call(emitters.load_const(Tail if is_resumed else run_tails)))
        emit(self._make_resume(resumption, shapes or ["value"] * len(pushed)))
        for value in resumption.stack:
            self.rebuilder.value(value)
        for name in pushed:
            emit(emitters.load_fast(name))
        for value in resumption.variables:
            self.rebuilder.value(value)
        called = emitters.call(1 + len(resumption.stack) + len(pushed) + len(resumption.variables))
        emit(called)
        emit(emitters.return_value())
        if not is_resumed:
            self._passing(called)

    def _passing(self, called: list[Instruction]) -> None:
        """What the rest of this frame raises, resumed or run as written, leaves the frame without a mark of it: eager has one
        frame, at the line that raised."""
        with self.code.landing(called) as exception:
            self.code.emit([*emitters.prepare_call(emitters.load_const(hand_on)), *emitters.load_fast(exception)])
            self.code.emit([*emitters.call(1), *emitters.pop_top(), *emitters.load_fast(exception)])
            self.code.emit(emitters.reraise())


def _passed(value: Value, slot: Slot) -> Value:
    """What a resume function is given for a stack entry."""
    if isinstance(value, HandledException):
        return value.exception
    if not isinstance(slot, Recipe):
        return value
    leaves: list[Value] = []
    recipe_of(value, leaves)
    return SequenceValue(leaves, tuple)
