"""Bytecode for what tracing found: call the graph, rebuild values, run the breaking instruction, go on elsewhere.

The replacement code of a frame calls the compiled graph on the gathered inputs, rebuilds from its outputs whatever
Python objects the frame still needs, and either returns or hands over to a *resume function*: the same code, entered in
the middle, with the live stack and locals as its arguments. Resume functions are captured in their turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any

from torch import fx

from ... import torch_private
from .. import classify
from ..breaks import CannotRebuild, FrameUnsupported
from ..bytecode import instruction as bytecode
from ..bytecode.instruction import Instruction
from ..hook import _hook
from ..machine import Machine, Program, program
from ..rules.torch_function import PLAIN
from ..tracing.sources import Source
from ..tracing.tracer import Tracer
from ..values.algebra import (
    NULL,
    ActiveValue,
    CellValue,
    CombinedIterator,
    Constant,
    ContextExit,
    DequeValue,
    DictValue,
    DictView,
    FunctionValue,
    GeneratorValue,
    GradModeContext,
    HandledException,
    InstanceDict,
    IteratorValue,
    Known,
    Lazy,
    MadeFunction,
    MethodValue,
    NamedMethod,
    ObjectValue,
    OpaqueValue,
    PartialValue,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    TorchContext,
    TruthValue,
    Value,
    change_set,
)
from ..values.attributes import DELETED
from ..values.iterators import Recipe, recipe_of, restored
from ..values.known import from_plain, hashed_keys, holds_identity, identity_values
from .explore import explore_both
from .resuming import END, OWN_MARK, RESUME_MARK, Passed, Retry, Tail, hand_on, next_or_end, run_tails

GATHERED = "__fuselens_inputs"
OUTPUTS = "__fuselens_outputs"
Slot = str | Recipe


@dataclasses.dataclass(slots=True)
class Replacement:
    """Code that replaces a frame's, and the local slot where the hook puts the gathered inputs (-1: none)."""

    code: types.CodeType
    gather_slot: int


def parts(value: Value, tracer: Tracer) -> list[Value]:
    """The values that ``value``, made while tracing, is rebuilt from."""
    found: list[Value | None] = []
    if isinstance(value, (SequenceValue, DictValue, SetValue)):
        found += contents(value, tracer)
    elif isinstance(value, DictView):
        found.append(value.mapping)
    elif isinstance(value, (IteratorValue, CombinedIterator)):
        leaves: list[Value] = []
        recipe_of(value, leaves)
        found += leaves
    elif isinstance(value, GeneratorValue):
        if value.started:
            raise CannotRebuild(value.born, value.describe(), "it is suspended in the middle")
        function, args, kwargs = value.call
        found += [function, *args, *kwargs.values()]
    elif isinstance(value, ObjectValue):
        held = value.content
        found += contents(held, tracer) if isinstance(held, (SequenceValue, DictValue, SetValue)) else []
        found += [v for _, v in tracer.attributes_of(value)]
        _, given, named = tracer.initialised.get(id(value.value), (None, (), {}))
        found += [*(given or ()), *named.values()]
    elif isinstance(value, TensorValue):
        found += [v for _, v in tracer.attributes_of(value)]
    elif isinstance(value, SliceValue):
        found += value.parts
    elif isinstance(value, RuntimeNumber):
        found += value.args
    elif isinstance(value, PartialValue):
        found += [value.function, *value.args, *value.kwargs.values()]
    elif isinstance(value, MethodValue):
        found += [value.function, value.receiver]
    elif isinstance(value, (NamedMethod, SuperValue)):
        found.append(value.receiver)
    elif isinstance(value, TruthValue):
        found.append(value.tensor)
    elif isinstance(value, MadeFunction):
        found += [
            value.defaults,
            value.kwdefaults,
            value.annotations,
            value.annotate,
            *value.closure,
            *value.attributes.values(),
        ]
    elif isinstance(value, CellValue):
        found.append(value.contents)
    elif isinstance(value, HandledException):
        found.append(value.exception)
    elif isinstance(value, InstanceDict):
        found.append(value.owner)
    elif isinstance(value, ActiveValue):
        found += value.parts
    return [v for v in found if v is not None]


def needed_nodes(values: list[Value], tracer: Tracer) -> list[fx.Node]:
    """Graph nodes whose values leave the graph when ``values`` are rebuilt, in first-use order."""
    found: dict[fx.Node, None] = {}
    seen: set[int] = set()
    pending = values[::-1]
    while pending:
        value = pending.pop()
        value = tracer.holders.get(id(value), value)
        if id(value) in seen or isinstance(value, Lazy):
            continue
        seen.add(id(value))
        if isinstance(value, (TensorValue, SymbolValue, OpaqueValue)):
            if value.source is None:
                found[value.node] = None
        if value.source is None:
            pending += reversed(parts(value, tracer))
    return list(found)


def contents(container: SequenceValue | DictValue | SetValue, tracer: Tracer) -> list[Value]:
    """The tracked objects that a container needs when it is made again."""
    if isinstance(container, SequenceValue):
        return list(container.items)
    _check_keys(container.items, tracer)
    if isinstance(container, SetValue):
        if container.origin is not None:
            return [operand for operand, _ in container.origin[1]]
        return identity_values(key for _, keys in container.steps for key in keys)
    found = [*identity_values(container.items), *container.items.values()]
    return found if container.factory is None else [container.factory, *found]


def _check_keys(keys: Iterable[Any], tracer: Tracer) -> None:
    """Refuses keys whose classes' own ``__hash__`` and ``__eq__`` may show that they are run again."""
    hashed = hashed_keys(keys)
    if hashed:
        hashes = Counter(map(hash, keys))
        for key in hashed:
            if not key.lasts(tracer) or hashes[hash(key)] > 1:
                why = "putting its keys into it again runs code of the program"
                raise CannotRebuild(key.born, "a dictionary or set", why)


def shared_iterators(values: list[Value], tracer: Tracer) -> set[int]:
    """Ids of the iterators that ``values`` reach in more than one way: each must stay one object."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, (IteratorValue, CombinedIterator)):
            found[id(value)] = found.get(id(value), 0) + 1
        if id(value) in seen or isinstance(value, Lazy):
            continue
        seen.add(id(value))
        if isinstance(value, CombinedIterator):
            pending += [*value.parts, *([value.extra] if value.extra is not None else [])]
        elif value.source is None or isinstance(value, (SequenceValue, DictValue, SetValue)):
            pending += parts(value, tracer)
    return {i for i, n in found.items() if n > 1}


def live_names(machine: Machine, target: Instruction) -> list[str]:
    """Local variables that are bound now and read at or after ``target``."""
    program = machine.program
    live = bytecode.live_locals(program.instructions, program.decoded.handlers)[target]
    cells = {*machine.code.co_cellvars, *machine.code.co_freevars}
    return sorted(n for n in machine.locals if n in live and n not in cells)


def live_values(machine: Machine) -> list[Value]:
    """What the frame still needs where its machine stopped: the stack, and locals that are read from there on."""
    instructions = machine.program.instructions
    first = instructions[group_start(instructions, machine.at)]
    return [*machine.stack, *(machine.locals[n] for n in live_names(machine, first))]


class Resumes:
    """The resume functions of one compiled function, each made once: what goes on at an instruction of some code, with
    a stack and variables of some form. They are known by where they come from, however many breaks led there."""

    def __init__(self) -> None:
        self._made: dict[Any, types.CodeType] = {}
        self._origins: dict[int, tuple[Program, dict[int, int]]] = {}
        self._kept: list[types.CodeType] = []
        self._families: dict[int, list[types.CodeType]] = {}
        self._passed: set[Any] = set()

    def origin(self, program: Program, index: int) -> tuple[Program, int]:
        """The code and instruction that the instruction ``index`` of a resume function is a copy of."""
        found = self._origins.get(id(program.code))
        if found is None or index not in found[1]:
            return program, index
        return found[0], found[1][index]

    def repeats(self, machine: Machine) -> bool:
        """Whether the frame, a resume function, breaks where the code it resumes broke before: in a loop."""
        program, index = self.origin(machine.program, machine.at)
        key = (id(program.code), index)
        repeated = key in self._passed and machine.program is not program
        self._passed.add(key)
        return repeated

    def code(self, machine: Machine, target: Instruction, slots: list[Slot], names: list[str]) -> types.CodeType:
        """Code that starts at ``target`` (of the machine's program) with the given stack and variables."""
        program, index = self.origin(machine.program, machine.program.index[id(target)])
        key = (id(program.code), index, tuple(slots), tuple(names))
        made = self._made.get(key)
        if made is None:
            made, copied = resume_code(program, program.instructions[index], slots, names)
            self._made[key] = made
            self._origins[id(made)] = (program, copied)
            self._kept += [made, program.code]
            self.family(program).append(made)
        return made

    def is_root(self, program: Program) -> bool:
        """Whether the code is no resume function that was made here."""
        return id(program.code) not in self._origins

    def family(self, root: Program) -> list[types.CodeType]:
        """All that resumes ``root``. Its replacement keeps them alive; they know each other weakly: no collector looks
        into code, and a loop resumes in itself."""
        return self._families.setdefault(id(root.code), [])


class Emitter:
    """Builds one replacement from the stopped (or finished) machine of a frame."""

    def __init__(
        self, machine: Machine, outputs: list[fx.Node], graph: Any, n_inputs: int, resumes: Resumes, grad_enabled: bool
    ) -> None:
        self.m = machine
        self.code = machine.code
        self.outputs = {node: i for i, node in enumerate(outputs)}
        self.graph = graph
        self.n_inputs = n_inputs
        self.resumes = resumes
        self.grad_enabled = grad_enabled  # grad mode now: that of the frame's beginning, which the graph restores
        self.out: list[Instruction] = []
        self.handlers: list[bytecode.Handler] = []
        self.landings: list[Instruction] = []  # where handlers go on: after everything else
        self.temporaries: dict[int, str] = {}
        self.temporary_names: list[str] = []
        self.displaced: dict[str, str] = {}  # arguments whose variables are unbound → the temporaries that have them
        self.building: set[int] = set()  # ids of values whose parts are being built
        self.kept: list[Value] = []  # what temporaries know by id must not be collected
        self.resumed: list[tuple[types.CodeType, dict[str, Value]]] = []  # resume functions, and what they are given
        self.cell_names = set(self.code.co_cellvars) | set(self.code.co_freevars)
        self.opaque_iterators = False

    # --- whole programs ------------------------------------------------------------------------------------

    def returning(self, value: Value) -> Replacement:
        self._replay()
        self._store_cells(only_written=True)
        self._set_grad_mode(self.m.tracer.grad_enabled)
        self.value(value)
        self._emit(bytecode.return_value())
        return self._finish()

    def breaking(self, explore: bool) -> Replacement:
        """After the graph: the instruction at which the machine stopped, in plain bytecode, then a resume function."""
        index = self.m.at
        instruction = self.m.instruction
        hidden = next((v for v in self.m.stack if isinstance(v, CellValue)), None)
        if hidden is not None:
            why = "a comprehension hides it while a closure holds it"
            raise FrameUnsupported("FL109", None, what=f"variable {hidden.name}", why=why)
        self.opaque_iterators = self.resumes.repeats(self.m)
        if self.resumes.is_root(self.m.program):
            kept = _Key(self.resumes.family(self.m.program))
            self._emit([*bytecode.load_const(kept), *bytecode.pop_top()])
        self._replay()
        self._store_cells(only_written=False)
        for value in self.m.stack:
            if isinstance(value, ContextExit) and not value.exited:  # entered from here on
                self._set_grad_mode(bool(value.context.previous))
                self.value(value)
                self._emit(bytecode.pop_top())
                self.grad_enabled = value.context.enabled
        self._set_grad_mode(self.m.tracer.grad_enabled)
        if condition_of(instruction) is not None:
            self._conditional(index, explore)
        elif instruction.op == "FOR_ITER":
            self._loop(index)
        elif instruction.target is None and instruction.op not in _RETURNS:
            self._plain_then_resume(index)
        else:
            self._rest_eagerly(index)
        return self._finish()

    def _set_grad_mode(self, enabled: bool) -> None:
        """Grad mode as the program has set it."""
        if enabled != self.grad_enabled:
            self._call_constant(torch_private.set_grad_enabled, Constant(enabled))
            self._emit(bytecode.pop_top())
            self.grad_enabled = enabled

    def _replay(self) -> None:
        """Brings existing containers, objects, cells and globals to the state that tracing left them in."""
        tracer = self.m.tracer
        for container in tracer.mutated.values():
            if isinstance(container, SequenceValue):
                self._call_constant(_refill_list, container, SequenceValue(list(container.items), list))
            elif isinstance(container, SetValue):
                self._call_constant(_replay_set, container, _steps(container.steps))
            else:
                self._call_constant(_refill_dict, container, DictValue(dict(container.items)))
            self._emit(bytecode.pop_top())
        for (_, name), (owner, value) in tracer.attributes.items():
            if owner.source is None:
                continue  # filled when it is built
            if value is DELETED:
                self._call_constant(_delete_attribute, owner, Constant(name))
            else:
                # the class's own __setattr__ was traced already
                direct = isinstance(owner, TensorValue) or owner.python_type is threading.local
                setter = setattr if direct else object.__setattr__
                self._call_constant(setter, owner, Constant(name), value)
            self._emit(bytecode.pop_top())
        for exception, _ in tracer.tracebacks.values():
            if exception.source is not None:
                self._pass(exception)
        for cell in tracer.written_cells.values():
            if self.m.cells.get(cell.name) is not cell and cell.contents is not None:
                self._call_constant(setattr, cell, Constant("cell_contents"), cell.contents)
                self._emit(bytecode.pop_top())
        for (_, name), (globals_, value) in tracer.written_globals.items():
            self._call_constant(_Globals(globals_).store, Constant(name), value)
            self._emit(bytecode.pop_top())
        left, entered = change_of_modes(tracer)
        if left or entered:
            self._call_constant(torch_private.change_modes, Constant(left), SequenceValue(entered, tuple))
            self._emit(bytecode.pop_top())

    def _prologue(self) -> None:
        """What the original code begins with (cells, RESUME), then the call of the graph."""
        instructions = self.m.program.instructions
        for instruction in instructions[: body_start(instructions)]:
            self._emit([instruction.copy()])
        if self.graph is None:
            return
        self._emit(bytecode.prepare_call(bytecode.load_const(self.graph)))
        # a frame whose guards gather nothing is given no tuple
        self._emit(bytecode.load_fast(GATHERED) if self.m.tracer.guards.gathered else bytecode.load_const(()))
        if self.m.tracer.guards.gathered != self.n_inputs:
            self._emit(bytecode.load_const(slice(0, self.n_inputs)))
            self._emit(bytecode.binary_subscr())
        called = bytecode.call(1)
        self._emit(called)
        if self.outputs:
            self._emit(bytecode.store_fast(OUTPUTS))
        else:
            self._emit(bytecode.pop_top())
        self._retry(called)

    def _retry(self, called: list[Instruction]) -> None:
        """Where the graph raises: the frame runs eagerly from its beginning, for eager's effects and traceback.

        A graph that has written to its inputs may not run twice; its exception is raised as it is.
        """
        free = cells_of(self.code)
        names = [name for name in self._parameters() if name not in free]
        landing, exception = bytecode.nop()[0], self._temporary()
        self.handlers.append(bytecode.Handler(called[0], called[-1], landing, 0, False))
        main, self.out = self.out, []
        self._emit([landing, *bytecode.store_fast(exception)])
        make = functools.partial(eager_code, names=tuple(names))
        retry = Retry(weakref.ref(self.code), make, self.m.tracer.config.strict, self.m.tracer.writes())
        self._emit(bytecode.prepare_call(bytecode.load_const(retry)))
        self._emit(bytecode.load_fast(exception))
        for name in free:
            self._emit(bytecode.load_closure(name))
        self._emit(bytecode.build_tuple(len(free)))
        for name in names:
            self._emit(bytecode.load_fast(name))
        self._emit([*bytecode.call(2 + len(names)), *bytecode.return_value()])
        self.landings += self.out
        self.out = main

    def _parameters(self) -> tuple[str, ...]:
        n = self.code.co_argcount + self.code.co_kwonlyargcount
        n += bool(self.code.co_flags & inspect.CO_VARARGS) + bool(self.code.co_flags & inspect.CO_VARKEYWORDS)
        return self.code.co_varnames[:n]

    def _store_cells(self, only_written: bool) -> None:
        """Brings real cells up to date: assigned nonlocals always, own variables when code that reads them follows."""
        for name, cell in self.m.cells.items():
            if name.endswith(OWN_MARK):
                continue
            if cell.contents is None:
                if cell.source is None and name in self._parameters():
                    self._emit(bytecode.delete_deref(name))
                continue
            free = cell.source is not None
            if free and not cell.written:
                continue
            if not free and only_written and not self._escapes():
                continue
            contents = cell.contents
            if isinstance(contents, Lazy) and contents.source is not None and contents.source.kind == _hook.ROOT_LOCAL:
                if not free and contents.source.text == name:
                    continue
            self.value(contents)
            self._emit(bytecode.store_deref(name))

    def _escapes(self) -> bool:
        return bool(self.code.co_cellvars)

    # --- breaks --------------------------------------------------------------------------------------------

    def _protected(self, index: int, plain: list[Instruction], results: int, below: list[Value]) -> list[str]:
        """Runs ``plain``, whose operands are on the stack on top of ``below``, where the program's handlers see its
        exceptions and ``sys.exc_info`` is what it is there. Gives the variables in which its results are."""
        names = [self._temporary() for _ in range(results)]
        handler = self.m.program.handlers.get(index)
        self._emit(plain)
        for name in reversed(names):
            self._emit(bytecode.store_fast(name))
        self._emit(_popping(below))
        if handler is not None or any(isinstance(v, HandledException) for v in below):
            landing = bytecode.nop()[0]
            self.handlers.append(bytecode.Handler(plain[0], plain[-1], landing, len(below), False))
            self._land(landing, handler, below)
        return names

    def _push(self, below: list[Value]) -> None:
        """Puts on the stack what an instruction needs below its operands; exceptions being handled become current."""
        for value in below:
            if isinstance(value, HandledException):
                self.value(value.exception)
                self._emit([*bytecode.push_exc_info(), *bytecode.pop_top()])
            else:
                self.value(Constant(None) if value is NULL and not bytecode.POPS_NULL else value)

    def _land(self, landing: Instruction, handler: bytecode.Handler | None, pushed: list[Value]) -> None:
        """Where an exception of the plain instruction goes: to the resume function at the program's handler."""
        main, self.out = self.out, []
        made = dict(self.temporaries)
        exception = self._temporary()
        self._emit([landing, *bytecode.store_fast(exception), *_popping(pushed)])
        if handler is None:
            self._emit([*bytecode.load_fast(exception), *bytecode.reraise()])
        else:
            below: list[Value] = list(self.m.stack[: handler.depth])
            if handler.lasti:
                below.append(Constant(self.m.at))
            self._resume_at(handler.target, below, [exception])
        self.temporaries = made
        self.landings += self.out
        self.out = main

    def _resume_at(
        self, target: Instruction, stack: list[Value], pushed: list[str], shapes: list[Slot] | None = None
    ) -> None:
        """Hands over to the resume function that starts at ``target`` with ``stack`` and, above it, the variables
        ``pushed`` (``shapes``: among NULLs that it pushes itself)."""
        names = live_names(self.m, target)
        slots = [self._slot(v, names) for v in stack]
        is_resumed = RESUME_MARK in self.code.co_name
        if is_resumed:
            self._emit(bytecode.prepare_call(bytecode.load_const(Tail)))
        else:
            self._emit(bytecode.prepare_call(bytecode.load_const(run_tails)))
        self._emit(self._make_resume(target, [*slots, *(shapes or ["value"] * len(pushed))], names))
        count = 1 + len(pushed) + len(names)
        for value, slot in zip(stack, slots, strict=True):
            if slot != "null":
                self.value(_passed(value, slot))
                count += 1
        for name in pushed:
            self._emit(bytecode.load_fast(name))
        for name in names:
            self.value(self.m.locals[name])
        called = bytecode.call(count)
        self._emit(called)
        self._emit(bytecode.return_value())
        if not is_resumed:
            self._passing(called)

    def _passing(self, called: list[Instruction]) -> None:
        """What a resume function raises leaves this frame without a mark of it: eager has one frame, at the line that raised."""
        landing, exception = bytecode.nop()[0], self._temporary()
        self.handlers.append(bytecode.Handler(called[0], called[-1], landing, 0, False))
        main, self.out = self.out, []
        self._emit([landing, *bytecode.store_fast(exception)])
        self._emit([*bytecode.prepare_call(bytecode.load_const(hand_on)), *bytecode.load_fast(exception)])
        self._emit([*bytecode.call(1), *bytecode.pop_top(), *bytecode.load_fast(exception), *bytecode.reraise()])
        self.landings += self.out
        self.out = main

    def _plain_then_resume(self, index: int) -> None:
        first = group_start(self.m.program.instructions, index)
        instructions = self.m.program.instructions[first : index + 1]
        stack = list(self.m.stack)
        popped, pushed = stack_change(self.m.program.instructions[index], instructions)
        keep = len(stack) - popped
        run, gives = without_null(instructions, pushed)
        below = stack[:keep] if peeks(instructions[-1]) else _handled(stack[:keep])
        self._push(below)
        for value in stack[keep:]:
            self.value(value)
        self._unbind(run)
        results = self._protected(index, run, sum(s != "null" for s in gives), below)
        if instructions[-1].op not in _RAISES:
            self._resume_at(self.m.program.instructions[index + 1], stack[:keep], results, gives)

    def _loop(self, index: int) -> None:
        """A ``for`` over an iterator that only the running program knows: one resume function for the body, one for after."""
        instruction = self.m.instruction
        iterator = self.m.stack[-1]
        self.opaque_iterators = True  # it is advanced here
        below = _handled(self.m.stack)
        self._push(below)
        self._emit(bytecode.prepare_call(bytecode.load_const(next_or_end)))
        self.value(iterator)
        (item,) = self._protected(index, bytecode.call(1), 1, below)
        ended = bytecode.nop()[0]
        self._emit([*bytecode.load_fast(item), *bytecode.load_const(END), *bytecode.is_op()])
        self._emit(bytecode.pop_jump_if(True, ended))
        made = dict(self.temporaries)
        self._resume_at(self.m.program.instructions[index + 1], self.m.stack, [item])
        self.temporaries = made
        self._emit([ended])
        (micro,) = bytecode.normalise(instruction)
        self._resume_at(micro.arg, self.m.stack[:-1], [])

    def _unbind(self, instructions: list[Instruction]) -> None:
        """Unbinds variables that the program has unbound, where one of the instructions is about to find that out. Arguments,
        which this frame still has, are kept elsewhere: what handles the error may be made of them."""
        for micro in (m for i in instructions for m in bytecode.normalise(i)):
            if micro.op in ("LOAD_FAST", "DELETE_FAST") and micro.arg not in self.m.locals | self.m.cells:
                if micro.arg in self._parameters():
                    kept = self.displaced[micro.arg] = self._temporary()
                    self._emit([*bytecode.load_fast(micro.arg), *bytecode.store_fast(kept)])
                self._emit([*bytecode.load_const(None), *bytecode.store_fast(micro.arg)])
                self._emit(bytecode.delete_fast(micro.arg))

    def _conditional(self, index: int, explore: bool) -> None:
        micro = condition_of(self.m.instruction)
        assert micro is not None
        taken_when, jump = micro.arg
        keeps = micro.op == "JUMP_IF_OR_POP"
        fall = self.m.program.instructions[index + 1]
        below = self.m.stack[:-1]
        condition = self.m.stack[-1]
        sides = [(fall, False), (jump, keeps)]
        if explore:
            self._emit(bytecode.prepare_call(bytecode.load_const(explore_both)))
            self.value(condition)
            self._emit(bytecode.load_const(taken_when))
            self._emit(bytecode.load_const((id(self.code), index)))
            for target, with_condition in sides:
                names = live_names(self.m, target)
                stack = [*below, condition] if with_condition else below
                slots = [self._slot(v, names) for v in stack]
                values = [_passed(v, s) for v, s in zip(stack, slots, strict=True) if s != "null"]
                values += [self.m.locals[n] for n in names]
                self._emit(self._make_resume(target, slots, names))
                for v in values:
                    self.value(v)
                self._emit(bytecode.build_tuple(len(values)))
            self._emit(bytecode.call(7))
            self._emit(bytecode.return_value())
            return
        handled = _handled(self.m.stack)
        self._push(handled)
        self.value(condition)
        (negated,) = self._protected(index, bytecode.unary_not(), 1, handled)
        label = bytecode.nop()[0]
        self._emit([*bytecode.load_fast(negated), *bytecode.pop_jump_if(not taken_when, label)])
        for (target, with_condition), start in zip(sides, (None, label), strict=True):
            if start is not None:
                self._emit([start])
            made = dict(self.temporaries)  # what one side makes, the other has not
            self._resume_at(target, [*below, condition] if with_condition else below, [])
            self.temporaries = made

    def _slot(self, value: Value, names: list[str]) -> Slot:
        """How a stack entry reaches a resume function: "null", "value", "handled", or by what it iterates over, of which
        the resume function makes an iterator that can be traced (unless something else holds the iterator too)."""
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

    def _rest_eagerly(self, index: int) -> None:
        """The breaking instruction cannot be cut out (it may jump): run the rest of the function as it is."""
        first = group_start(self.m.program.instructions, index)
        target = self.m.program.instructions[first]
        names = live_names(self.m, target)
        slots = [self._slot(v, names) for v in self.m.stack]
        code, _ = resume_code(self.m.program, target, slots, names)
        _hook.skip(code)
        self._emit(bytecode.prepare_call(bytecode.make_function(code, closure=cells_of(self.code))))
        passed = [_passed(v, s) for v, s in zip(self.m.stack, slots, strict=True) if s != "null"]
        for v in [*passed, *(self.m.locals[n] for n in names)]:
            self.value(v)
        self._emit(bytecode.call(len(passed) + len(names)))
        self._emit(bytecode.return_value())

    def _make_resume(self, target: Instruction, slots: list[Slot], names: list[str]) -> list[Instruction]:
        code = self.resumes.code(self.m, target, slots, names)
        self.resumed.append((code, {n: self.m.locals[n] for n in names}))
        load = bytecode.load_const(code)
        if not self.resumes.is_root(self.m.program):
            load = [*bytecode.prepare_call(bytecode.load_const(weakref.ref(code))), *bytecode.call(0)]
        return bytecode.make_function(load, closure=cells_of(self.code))

    def _temporary(self) -> str:
        name = f"__fuselens_object_{len(self.temporary_names)}"
        self.temporary_names.append(name)
        return name

    def _finish(self) -> Replacement:
        body, self.out = self.out, []
        self._prologue()  # now that it is known what else than graph inputs is gathered
        self.out += body + self.landings
        names = list(self.code.co_varnames)
        uses_inputs = any(i.argval == GATHERED for i in self.out)
        names += [OUTPUTS, *self.temporary_names]
        slot = -1
        if uses_inputs:
            slot = len(names)
            names.append(GATHERED)
        plain = {n: getattr(self.code, n).split(RESUME_MARK)[0] for n in ("co_name", "co_qualname")}  # for tracebacks
        code = bytecode.assemble(self.code, self.out, self.handlers, co_varnames=tuple(names), **plain)
        return Replacement(code, slot)

    # --- values --------------------------------------------------------------------------------------------

    def _emit(self, instructions: list[Instruction]) -> None:
        position = self.m.instruction.position
        for instruction in instructions:
            if instruction.position is None:
                instruction.position = position
            self.out.append(instruction)

    def value(self, value: Value) -> None:
        """Emits code that pushes the object that ``value`` stands for. Mutable objects are made once."""
        if value is NULL:
            self._emit(bytecode.push_null())
            return
        value = self.m.tracer.holders.get(id(value), value)
        if value.source is not None and (
            not isinstance(value, (Constant, Known)) or value.source.kind == _hook.ROOT_LOCAL
        ):
            self._source(value.source)  # an argument, even an equal number, is the very object that was passed
            return
        temporary = self.temporaries.get(id(value))
        if temporary is not None:
            self._emit(bytecode.load_fast(temporary))
            return
        if id(value) in self.building:
            raise FrameUnsupported("FL109", None, what=value.describe(), why="it holds itself")
        self.building.add(id(value))
        self._build(value)
        self.building.discard(id(value))
        if isinstance(value, _MUTABLE) or (isinstance(value, TensorValue) and self._is_dressed(value)):
            self._remember(value)
        self._fill(value)

    def _is_dressed(self, value: TensorValue) -> bool:
        """Whether the graph's tensor is given a class or attributes."""
        return value.kind not in PLAIN or id(value) in self.m.tracer.dressed

    def _remember(self, value: Value) -> None:
        """Keeps the object on top of the stack, which is ``value``, for when it is needed again."""
        name = self.temporaries[id(value)] = self._temporary()
        self.kept.append(value)
        self._emit(bytecode.copy(1))
        self._emit(bytecode.store_fast(name))

    def _fill(self, value: Value) -> None:
        """Gives an object its attributes, and a container what may refer to it, once it can be referred to."""
        if isinstance(value, (SequenceValue, DictValue)) and value.kind in (list, dict) and _holds_mutable(value):
            self._items(value)
            self._emit(bytecode.list_extend(1) if value.kind is list else bytecode.dict_update(1))
            return
        if isinstance(value, (ObjectValue, TensorValue)):
            initialised = self.m.tracer.initialised
            for name, attribute in self.m.tracer.attributes_of(value):
                if attribute is DELETED:
                    continue
                if name == "args" and isinstance(value.value, BaseException) and id(value.value) not in initialised:
                    continue
                self._call_constant(object.__setattr__, value, Constant(name), attribute)
                self._emit(bytecode.pop_top())
            if isinstance(value, ObjectValue):
                self._pass(value)
        elif isinstance(value, MadeFunction):
            for name, attribute in value.attributes.items():
                self._call_constant(setattr, value, Constant(name), attribute)
                self._emit(bytecode.pop_top())
            if value.annotations is not None and value.has_late_annotations():
                self.value(value.annotations)
                self._emit(bytecode.set_annotations(by_function=False))
        elif isinstance(value, CellValue) and value.contents is not None and self.m.cells.get(value.name) is not value:
            self._call_constant(setattr, value, Constant("cell_contents"), value.contents)
            self._emit(bytecode.pop_top())

    def _pass(self, exception: ObjectValue) -> None:
        """Gives an exception that was raised while tracing its traceback."""
        raised = self.m.tracer.tracebacks.get(id(exception.value))
        if raised is not None:
            self._call_constant(Passed(raised[1]), exception)
            self._emit(bytecode.pop_top())

    def _source(self, source: Source) -> None:
        if source.kind == _hook.ROOT_LOCAL and source.text not in self.cell_names:
            self._emit(bytecode.load_fast(self.displaced.get(source.text, source.text)))
            return
        position = self.m.tracer.guards.gather(source)
        self._emit(bytecode.load_fast(GATHERED))
        self._emit(bytecode.load_const(position))
        self._emit(bytecode.binary_subscr())

    def _call_constant(self, function: Any, *args: Value) -> None:
        self._emit(bytecode.prepare_call(bytecode.load_const(function)))
        for a in args:
            self.value(a)
        self._emit(bytecode.call(len(args)))

    def _build(self, value: Value) -> None:
        if isinstance(value, (Constant, Known)):
            self._emit(bytecode.load_const(value.value))
        elif isinstance(value, (TensorValue, SymbolValue, OpaqueValue)):
            dressed = isinstance(value, TensorValue) and value.kind not in PLAIN
            if dressed:
                self._emit(bytecode.prepare_call(bytecode.load_const(torch_private.set_class)))
            self._emit(bytecode.load_fast(OUTPUTS))
            self._emit(bytecode.load_const(self.outputs[value.node]))
            self._emit(bytecode.binary_subscr())
            if dressed:
                self._emit([*bytecode.load_const(value.python_type), *bytecode.call(2)])
        elif isinstance(value, SequenceValue):
            self._sequence(value)
        elif isinstance(value, DictValue):
            self._dict(value)
        elif isinstance(value, SetValue):
            self._set(value)
        elif isinstance(value, FunctionValue):
            self._emit(bytecode.load_const(value.function))
        elif isinstance(value, SliceValue):
            self._call_constant(slice, *value.parts)
        elif isinstance(value, DictView):
            self._call_constant(getattr(value.mapping.kind, value.which), value.mapping)
        elif isinstance(value, IteratorValue):
            leaves: list[Value] = []
            recipe = recipe_of(value, leaves)
            self._call_constant(restored, Known(Recipe(recipe)), SequenceValue(leaves, tuple))
        elif isinstance(value, CombinedIterator):
            first = [value.extra] if value.kind is map and value.extra is not None else []
            last = [value.extra] if value.kind is enumerate and value.extra is not None else []
            self._call_constant(value.kind, *first, *value.parts, *last)
        elif isinstance(value, MethodValue):
            function = value.function
            bound = function.value.__get__ if isinstance(function, Known) else None  # a C method binds in its own way
            arguments = [value.receiver] if bound is not None else [function, value.receiver]
            self._call_constant(bound or types.MethodType, *arguments)
        elif isinstance(value, RuntimeNumber):
            self._call_constant(value.function, *value.args)
        elif isinstance(value, PartialValue):
            args = SequenceValue([value.function, *value.args], tuple)
            self._call_constant(_applied, Known(functools.partial), args, DictValue(dict(value.kwargs)))
        elif isinstance(value, NamedMethod) and id(value.receiver) in self.m.tracer.holders:  # the builtin class's own
            self._call_constant(getattr(value.receiver.python_type, value.name).__get__, value.receiver)
        elif isinstance(value, NamedMethod):
            self.value(value.receiver)
            self._emit(bytecode.load_attr(value.name))
        elif isinstance(value, InstanceDict):
            self._call_constant(object.__getattribute__, value.owner, Constant("__dict__"))
        elif isinstance(value, SuperValue):
            self._call_constant(super, Known(value.cls), value.receiver)
        elif isinstance(value, TruthValue):
            self._call_constant(bool, value.tensor)
        elif isinstance(value, (GradModeContext, TorchContext)):
            self._call_constant(value.maker)
        elif isinstance(value, ContextExit):
            if value.exited:
                self._emit(bytecode.load_const(None))
            else:
                self._call_constant(_entered_exit, Known(value.context.maker))
        elif isinstance(value, MadeFunction):
            self._function(value)
        elif isinstance(value, CellValue):
            if self.m.cells.get(value.name) is value:
                self._emit(bytecode.load_closure(value.name))
            else:
                self._call_constant(types.CellType)
        elif isinstance(value, ObjectValue):
            self._object(value)
        elif isinstance(value, GeneratorValue):
            function, args, kwargs = value.call
            if value.started:
                raise CannotRebuild(value.born, value.describe(), "it is suspended in the middle")
            self._call_constant(_applied, function, SequenceValue(args, tuple), DictValue(dict(kwargs)))
        elif isinstance(value, ActiveValue) and value.maker is not None:
            self._call_constant(value.maker, *value.parts)
        else:
            raise FrameUnsupported("FL109", None, what=value.describe(), why="it cannot be rebuilt after the graph")

    def _items(self, value: SequenceValue | DictValue) -> None:
        """Builds a list, tuple or dict with what it holds."""
        if isinstance(value, DictValue):
            for k, v in value.items.items():
                if holds_identity((k,)):
                    self.value(from_plain(k, "a dictionary key"))
                else:
                    self._emit(bytecode.load_const(k))
                self.value(v)
            self._emit(bytecode.build_map(len(value.items)))
            return
        for v in value.items:
            self.value(v)
        n = len(value.items)
        self._emit(bytecode.build_list(n) if value.kind is list else bytecode.build_tuple(n))

    def _sequence(self, value: SequenceValue) -> None:
        if isinstance(value, DequeValue):
            self._call_constant(deque, SequenceValue(value.items, tuple), Constant(value.maxlen))
        elif value.kind is list and _holds_mutable(value):
            self._emit(bytecode.build_list(0))
        elif value.kind in (list, tuple):
            self._items(value)
        elif hasattr(value.kind, "_fields"):
            self._call_constant(value.kind, *value.items)
        else:  # torch.Size and structseqs take one iterable
            self._call_constant(value.kind, SequenceValue(value.items, tuple))

    def _object(self, value: ObjectValue) -> None:
        """A bare instance of the class, with what it holds as a builtin container; :meth:`_fill` gives it attributes."""
        cls, held = value.python_type, value.content
        if isinstance(value.value, BaseException):
            args = dict(self.m.tracer.attributes_of(value)).get("args")
            initialise, given, named = self.m.tracer.initialised.get(id(value.value), (None, None, {}))
            if args is None and given is None:
                given = [Constant(a) for a in value.value.args]
            new = args if given is None else SequenceValue(list(given), tuple)
            assert new is not None
            self._call_constant(_new_exception, Known(cls), new)
            if initialise is not None:
                self._remember(value)
                bound = SequenceValue([value, *(given or [])], tuple)
                self._call_constant(_applied, Known(initialise), bound, DictValue(dict(named)))
                self._emit(bytecode.pop_top())
        elif held is None:
            self._call_constant(object.__new__, Known(cls))
        elif isinstance(held, Constant):
            self._call_constant(type(held.value).__new__, Known(cls), held)
        else:
            items = DictValue(held.items) if isinstance(held, DictValue) else SequenceValue(held.items, tuple)  # type: ignore[attr-defined]
            self._call_constant(_new_container, Known(cls), Known(held.python_type), items)

    def _dict(self, value: DictValue) -> None:
        if value.kind is defaultdict:
            self._call_constant(defaultdict, value.factory or Constant(None), DictValue(value.items))
            return
        if value.kind is not dict:
            self._call_constant(value.kind, DictValue(value.items))
            return
        if _holds_mutable(value):
            self._emit(bytecode.build_map(0))
        else:
            self._items(value)

    def _set(self, value: SetValue) -> None:
        """The set, with the same order of iteration, which depends on how it came to be."""
        known = not holds_identity(value.items)
        steps = value.steps
        if not value.ordered and len(value.items) > 1:
            if value.origin is None or any(len(o.steps) != n for o, n in value.origin[1]):
                raise FrameUnsupported("FL109", None, what="a set", why="its order cannot be had again after the graph")
            function, operands = value.origin
            self._call_constant(function, *(operand for operand, _ in operands))
            return
        if known and isinstance(value.items, frozenset):
            self._emit(bytecode.load_const(value.items))
            return
        if known:
            ways = (steps, [("add", list(value.items))], [("update", [frozenset(value.items)])])
            same = (way for way in ways if list(_replay_set(set(), way)) == list(value.items))
            found = next(same, None)
            if found is None:
                raise FrameUnsupported("FL109", None, what="a set", why="its order cannot be had again after the graph")
            steps = found
        if len(steps) == 1 and steps[0][0] == "add":
            self._call_constant(type(value.items), from_plain(tuple(steps[0][1]), "a set"))
        else:
            self._call_constant(_replay_set, SetValue((), set), _steps(steps))

    def _function(self, value: MadeFunction) -> None:
        closure = [c for c in value.closure if self.m.cells.get(c.name) is c]
        annotations = None if value.has_late_annotations() else value.annotations
        if (
            value.globals is self.m.globals
            and len(closure) == len(value.closure)
            and not (value.defaults or value.kwdefaults or annotations)
        ):
            self._emit(bytecode.make_function(value.code, closure=[cell.name for cell in value.closure]))
        else:
            nothing = Constant(None)
            self._call_constant(
                _Globals(value.globals).function, Constant(value.code), value.defaults or nothing,
                value.kwdefaults or nothing, annotations or nothing, SequenceValue(list(value.closure), tuple),
            )  # fmt: skip
        if value.annotate is not None:
            self.value(value.annotate)
            self._emit(bytecode.set_annotations(by_function=True))


class _Globals:
    """A module's namespace as constants of generated code refer to it."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def store(self, name: str, value: Any) -> None:
        self.namespace[name] = value

    def function(self, code: Any, defaults: Any, kwdefaults: Any, annotations: Any, closure: Any) -> Any:
        """A function as ``def`` makes it."""
        made = types.FunctionType(code, self.namespace, code.co_name, defaults, closure)
        made.__kwdefaults__ = kwdefaults
        if annotations:
            pairs = annotations.items() if isinstance(annotations, dict) else zip(*[iter(annotations)] * 2, strict=True)
            made.__annotations__ = dict(pairs)
        return made


def _applied(function: Any, args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _delete_attribute(owner: Any, name: str) -> None:
    """Without the attribute the object may be already: the program may have assigned what it deleted."""
    with contextlib.suppress(AttributeError):
        object.__delattr__(owner, name)


def _new_exception(cls: Any, args: Any) -> Any:
    """An exception that the ``__new__`` of a builtin class makes of ``args``."""
    return classify.builtin_base(cls).__new__(cls, *args)


def _new_container(cls: Any, base: Any, items: Any) -> Any:
    """An instance of a subclass of ``base`` that holds ``items``, without running the subclass's own methods."""
    if base is tuple:
        return tuple.__new__(cls, items)
    made = base.__new__(cls)
    if issubclass(base, dict):
        for key, value in items.items():
            base.__setitem__(made, key, value)
    else:
        base.extend(made, items)
    return made


def _refill_list(target: Any, items: list[Any]) -> None:
    if isinstance(target, deque):
        deque.clear(target)
        deque.extend(target, items)
    else:
        list.__setitem__(target, slice(None), items)


def _refill_dict(target: dict[Any, Any], items: dict[Any, Any]) -> None:
    """Deletes and adds no more keys than the program did, where their order allows: something may iterate over it."""
    kind: Any = OrderedDict if isinstance(target, OrderedDict) else dict
    wanted = [key if type(key) is str else id(key) for key in items]
    kept = set(wanted)
    found = {key if type(key) is str else id(key): key for key in kind.keys(target)}
    for known in [k for k in found if k not in kept]:
        kind.__delitem__(target, found.pop(known))
    if list(found) != wanted[: len(found)]:
        kind.clear(target)
    for key, value in items.items():
        kind.__setitem__(target, key, value)


def _replay_set(target: set[Any], steps: Iterable[tuple[str, Sequence[Any]]]) -> set[Any]:
    for name, keys in steps:
        change_set(target, name, keys)
    return target


def _steps(steps: list[tuple[str, list[Any]]]) -> Value:
    return from_plain(tuple((name, tuple(keys)) for name, keys in steps), "a set")


def change_of_modes(tracer: Tracer) -> tuple[int, list[Value]]:
    """How many of the modes around the frame the program has left, and those that it has entered."""
    before, now = tracer.outer_modes, tracer.function_modes
    same = next(
        (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a is not b), min(len(before), len(now))
    )
    return len(before) - same, now[same:]


def effects(machine: Machine) -> list[Value]:
    """Values that existing objects must receive after the graph, whatever else the frame does."""
    tracer = machine.tracer
    found: list[Value] = [value for owner, value in tracer.attributes.values() if owner.source is not None]
    for container in tracer.mutated.values():
        if container.source is not None:
            found += contents(container, tracer)
    found += [value for _, value in tracer.written_globals.values()]
    found += change_of_modes(tracer)[1]
    found += [c.contents for c in tracer.written_cells.values() if c.contents is not None]
    return found


def _holds_mutable(value: SequenceValue | DictValue) -> bool:
    """Whether what a list or dict holds may refer back to it."""
    items = value.items if isinstance(value, SequenceValue) else value.items.values()
    return any(v.source is None and not isinstance(v, (Constant, Known, TensorValue, SymbolValue)) for v in items)


def iterators_in(value: Value | None) -> set[int]:
    """Ids of an iterator and of those that it consumes."""
    if isinstance(value, CombinedIterator):
        return {id(value)}.union(*(iterators_in(p) for p in value.parts))
    return {id(value)}


def _passed(value: Value, slot: Slot) -> Value:
    """What a resume function is given for a stack entry."""
    if isinstance(value, HandledException):
        return value.exception
    if not isinstance(slot, Recipe):
        return value
    leaves: list[Value] = []
    recipe_of(value, leaves)
    return SequenceValue(leaves, tuple)


_MUTABLE = (
    SequenceValue, DictValue, SetValue, DictView, IteratorValue, CombinedIterator, MadeFunction, GradModeContext, TorchContext,
    ContextExit, NamedMethod,
    ObjectValue, GeneratorValue, CellValue, MethodValue, ActiveValue, PartialValue,
)  # fmt: skip
_RAISES = ("RAISE_VARARGS", "RERAISE")
_RETURNS = ("RETURN_VALUE", "RETURN_CONST")
_TERMINAL = (*_RAISES, *_RETURNS)


class _Key:
    """A constant that keeps its parts' identity in co_consts."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _entered_exit(maker: Any) -> Any:
    """Enters a fresh context manager and gives its bound ``__exit__``, as ``with`` keeps it on the stack."""
    context = maker()
    context.__enter__()
    return context.__exit__


def condition_of(instruction: Instruction) -> bytecode.Micro | None:
    """The micro-operation by which a conditional jump on truth jumps; None for other instructions."""
    for micro in bytecode.normalise(instruction):
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
    if not any(m.op in ("LOAD_METHOD", "LOAD_SUPER_METHOD", "PUSH_NULL") for m in bytecode.normalise(last)):
        return [*before, last], ["value"] * pushed
    if last.op == "BEFORE_WITH":
        return [*before, *bytecode.before_with(_hook.exit_of)], ["value", "null", "value"]
    if last.op == "LOAD_METHOD":
        (last,) = bytecode.load_attr(last.argval)
    else:
        last.flag &= ~1
    return [*before, last], ["null", "value"] if bytecode.NULL_FIRST else ["value", "null"]


def _handled(values: list[Value]) -> list[Value]:
    return [v for v in values if isinstance(v, HandledException)]


def _popping(values: list[Value]) -> list[Instruction]:
    """Instructions that take ``values`` from the stack."""
    out: list[Instruction] = []
    for value in reversed(values):
        out += bytecode.pop_except() if isinstance(value, HandledException) else bytecode.pop_top()
    return out


def peeks(instruction: Instruction) -> bool:
    """Whether the instruction looks at stack entries below those that it pops."""
    return any(micro.op in _PEEKS for micro in bytecode.normalise(instruction))


_PEEKS = {
    "LIST_APPEND", "SET_ADD", "MAP_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "CHECK_EXC_MATCH",
    "CHECK_EG_MATCH", "WITH_EXCEPT_START", "MATCH_MAPPING", "MATCH_SEQUENCE", "MATCH_KEYS", "COPY",
}  # fmt: skip


def stack_change(last: Instruction, group: list[Instruction]) -> tuple[int, int]:
    """(values popped, values pushed) by a group of instructions that ends with ``last``."""
    pushed = 1
    for micro in bytecode.normalise(last):
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
    effect = sum(bytecode.effect(micro) for i in group for micro in bytecode.normalise(i))
    return pushed - effect, pushed


_PUSH_TWO = {"LOAD_METHOD", "LOAD_SUPER_METHOD", "BEFORE_WITH", "IMPORT_FROM", "GET_LEN", "CHECK_EG_MATCH"}
_PUSH_NOTHING = {
    "POP_TOP", "STORE_FAST", "STORE_DEREF", "STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE",
    "DELETE_FAST", "DELETE_DEREF", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_ATTR", "DELETE_SUBSCR", "LIST_APPEND",
    "SET_ADD", "LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE", "DICT_MERGE", "MAP_ADD", "POP_EXCEPT",
}  # fmt: skip


def reachable(program: Program, start: Instruction) -> set[Instruction]:
    """Instructions that can run once ``start`` does, handlers included."""
    instructions, index = program.instructions, program.index
    covering: dict[Instruction, list[Instruction]] = {}
    for handler in program.decoded.handlers:
        for i in _between(program, handler):
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
        if instruction.op not in _TERMINAL and instruction.op not in _UNCONDITIONAL:
            at = index[id(instruction)] + 1
            if at < len(instructions):
                pending.append(instructions[at])
    return found


def body_start(instructions: list[Instruction]) -> int:
    """The index of the first instruction after a function's prologue, which makes cells and ends with RESUME."""
    return next(i for i, instruction in enumerate(instructions) if instruction.op == "RESUME") + 1


def cells_of(code: types.CodeType) -> tuple[str, ...]:
    """The variables of a frame of ``code`` whose cells its resume functions close over: free ones, then its own."""
    return (*(name for name in code.co_freevars if not name.endswith(OWN_MARK)), *code.co_cellvars)


_UNCONDITIONAL = ("JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")


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
    out: list[Instruction] = []
    if free:
        out += bytecode.copy_free_vars(len(free))
    for name in own:  # its own variables stay that: CPython's errors tell them from free ones
        out += [*bytecode.load_closure(name + OWN_MARK), *bytecode.store_fast(name)]
    out += bytecode.resume()
    position = iter(arguments)
    for slot in slots:
        if slot == "null":
            out += bytecode.push_null()
        elif slot == "handled":
            out += [*bytecode.load_fast(next(position)), *bytecode.push_exc_info(), *bytecode.pop_top()]
        elif isinstance(slot, Recipe):
            out += bytecode.prepare_call(bytecode.load_const(restored))
            out += [*bytecode.load_const(slot), *bytecode.load_fast(next(position)), *bytecode.call(2)]
        else:
            out += bytecode.load_fast(next(position))
    copies = {id(i): i.copy() for i in program.instructions}
    for instruction in copies.values():
        if instruction.target is not None:
            instruction.target = copies[id(instruction.target)]
        if isinstance(instruction.argval, Instruction):  # where a FOR_ITER's loop is left
            instruction.argval = copies[id(instruction.argval)]
    live = reachable(program, target)
    out += bytecode.jump(copies[id(target)])
    for instruction in out:
        instruction.position = target.position
    kept = [n for n, i in enumerate(program.instructions) if i in live]
    body = [copies[id(program.instructions[n])] for n in kept]
    handlers = []
    for handler in program.decoded.handlers:
        covered = [i for i in _between(program, handler) if i in live]
        if covered and handler.target in live:
            handlers.append(
                dataclasses.replace(
                    handler,
                    start=copies[id(covered[0])],
                    end=copies[id(covered[-1])],
                    target=copies[id(handler.target)],
                )
            )
    variables = [*arguments, *names, *(v for v in original.co_varnames if v not in names and v not in cells)]
    line = (target.position[0] if target.position else None) or original.co_firstlineno
    base = original.co_name.split(RESUME_MARK)[0]
    qualified = original.co_qualname.split(RESUME_MARK)[0]
    flags = original.co_flags & ~(0x04 | 0x08)
    made = bytecode.assemble(
        original, out + body, handlers, co_varnames=tuple(variables), co_cellvars=own, co_freevars=free,
        co_argcount=len(arguments) + len(names), co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=flags,
        co_name=f"{base}{RESUME_MARK}{line}", co_qualname=f"{qualified}{RESUME_MARK}{line}",
    )  # fmt: skip
    return made, {len(out) + n: index for n, index in enumerate(kept)}


def eager_code(code: types.CodeType, names: tuple[str, ...]) -> types.CodeType:
    """A copy of ``code`` that is never captured, for a frame whose cells exist: its arguments are ``names``."""
    whole = program(code)
    first = whole.instructions[body_start(whole.instructions)]
    copy, _ = resume_code(whole, first, [], list(names))
    copy = copy.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    _hook.skip(copy)
    return copy


def _between(program: Program, handler: Any) -> list[Instruction]:
    return program.instructions[program.index[id(handler.start)] : program.index[id(handler.end)] + 1]
