"""Bytecode for what tracing found: call the graph, rebuild values, run the breaking instruction, go on elsewhere.

The replacement code of a frame calls the compiled graph on the gathered inputs, rebuilds from its outputs whatever
Python objects the frame still needs, and either returns or hands over to a *resume function*: the same code, entered in
the middle, with the live stack and locals as its arguments. Resume functions are captured in their turn.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

from torch import fx

from . import _hook, bytecode
from .breaks import FrameUnsupported
from .bytecode import Instruction
from .explore import explore_both
from .iterators import Recipe, recipe_of, restored
from .machine import Machine, Program
from .sources import Source
from .values import (
    NULL,
    CellValue,
    CombinedIterator,
    Constant,
    ContextExit,
    DictValue,
    DictView,
    FunctionValue,
    GradModeContext,
    InstanceDict,
    IteratorValue,
    Known,
    Lazy,
    MadeFunction,
    MethodValue,
    NamedMethod,
    SequenceValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    TruthValue,
    Value,
)

GATHERED = "__fuselens_inputs"
OUTPUTS = "__fuselens_outputs"
RESUME_MARK = " resumed at line "
Slot = str | Recipe


@dataclasses.dataclass(slots=True)
class Replacement:
    """Code that replaces a frame's, and the local slot where the hook puts the gathered inputs (-1: none)."""

    code: types.CodeType
    gather_slot: int


def needed_nodes(values: list[Value]) -> list[fx.Node]:
    """Graph nodes whose values leave the graph when ``values`` are rebuilt, in first-use order."""
    found: dict[fx.Node, None] = {}
    seen: set[int] = set()

    def visit(value: Value | None) -> None:
        if value is None or id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, Lazy):
            return
        if isinstance(value, (TensorValue, SymbolValue)):
            if value.source is None:
                found[value.node] = None
        elif value.source is not None:
            return
        elif isinstance(value, SequenceValue):
            for v in value.items:
                visit(v)
        elif isinstance(value, DictValue):
            for v in value.items.values():
                visit(v)
        elif isinstance(value, DictView):
            visit(value.mapping)
        elif isinstance(value, (IteratorValue, CombinedIterator)):
            leaves: list[Value] = []
            recipe_of(value, leaves)
            for v in leaves:
                visit(v)
        elif isinstance(value, SliceValue):
            for v in value.parts:
                visit(v)
        elif isinstance(value, MethodValue):
            visit(value.function)
            visit(value.receiver)
        elif isinstance(value, (NamedMethod, SuperValue)):
            visit(value.receiver)
        elif isinstance(value, TruthValue):
            visit(value.tensor)
        elif isinstance(value, MadeFunction):
            visit(value.defaults)
            visit(value.kwdefaults)
            for cell in value.closure:
                visit(cell.contents)
        elif isinstance(value, CellValue):
            visit(value.contents)

    for v in values:
        visit(v)
    return list(found)


def shared_iterators(values: list[Value]) -> set[int]:
    """Ids of the iterators that ``values`` reach in more than one way: each must stay one object."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    pending: list[Value | None] = list(values)
    while pending:
        value = pending.pop()
        if isinstance(value, (IteratorValue, CombinedIterator)):
            found[id(value)] = found.get(id(value), 0) + 1
        if value is None or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, SequenceValue):
            pending += value.items
        elif isinstance(value, DictValue):
            pending += value.items.values()
        elif isinstance(value, CombinedIterator):
            pending += [*value.parts, value.extra]
        elif isinstance(value, IteratorValue):
            pending.append(value.over)
        elif isinstance(value, MethodValue):
            pending += [value.function, value.receiver]
        elif isinstance(value, NamedMethod):
            pending.append(value.receiver)
        elif isinstance(value, MadeFunction):
            pending += [value.defaults, value.kwdefaults, *value.closure]
        elif isinstance(value, CellValue):
            pending.append(value.contents)
    return {i for i, n in found.items() if n > 1}


def live_names(machine: Machine, target: Instruction) -> list[str]:
    """Local variables that are bound now and read at or after ``target``."""
    program = machine.program
    live = bytecode.live_locals(program.instructions, program.decoded.handlers)[target]
    cells = {*machine.code.co_cellvars, *machine.code.co_freevars}
    return [n for n in machine.locals if n in live and n not in cells]


def live_values(machine: Machine) -> list[Value]:
    """What the frame still needs where its machine stopped: the stack, and locals that are read from there on."""
    instructions = machine.program.instructions
    first = instructions[group_start(instructions, machine.at)]
    return [*machine.stack, *(machine.locals[n] for n in live_names(machine, first))]


class Emitter:
    """Builds one replacement from the stopped (or finished) machine of a frame."""

    def __init__(self, machine: Machine, outputs: list[fx.Node], graph: Any, n_inputs: int) -> None:
        self.m = machine
        self.code = machine.code
        self.outputs = {node: i for i, node in enumerate(outputs)}
        self.graph = graph
        self.n_inputs = n_inputs
        self.out: list[Instruction] = []
        self.temporaries: dict[int, str] = {}
        self.temporary_names: list[str] = []
        self.kept: list[Value] = []  # what temporaries know by id must not be collected
        self.resumed: list[tuple[types.CodeType, dict[str, Value]]] = []  # resume functions, and what they are given
        self.cell_names = set(self.code.co_cellvars) | set(self.code.co_freevars)

    # --- whole programs ------------------------------------------------------------------------------------

    def returning(self, value: Value) -> Replacement:
        self._replay()
        self._store_cells(only_written=True)
        self.value(value)
        self._emit(bytecode.return_value())
        return self._finish()

    def breaking(self, explore: bool) -> Replacement:
        """After the graph: the instruction at which the machine stopped, in plain bytecode, then a resume function."""
        index = self.m.at
        instruction = self.m.instruction
        self._replay()
        self._store_cells(only_written=False)
        if condition_of(instruction) is not None:
            self._conditional(index, explore)
        elif instruction.target is None and not self._handled(index) and instruction.op not in _TERMINAL:
            self._plain_then_resume(index)
        else:
            self._rest_eagerly(index)
        return self._finish()

    def _replay(self) -> None:
        """Brings existing containers and objects to the state that tracing left them in."""
        for container in self.m.tracer.mutated.values():
            if isinstance(container, SequenceValue):
                self._call_constant(_refill_list, container, SequenceValue(list(container.items), list))
            else:
                self._call_constant(_refill_dict, container, DictValue(dict(container.items)))
            self._emit(bytecode.pop_top())
        for (_, name), (owner, value) in self.m.tracer.attributes.items():
            self._call_constant(setattr, owner, Constant(name), value)
            self._emit(bytecode.pop_top())

    def _prologue(self) -> None:
        """What the original code begins with (cells, RESUME), then the call of the graph."""
        for instruction in self.m.program.instructions:
            if instruction.op not in ("COPY_FREE_VARS", "MAKE_CELL", "RESUME"):
                break
            self._emit([instruction.copy()])
        if self.graph is None:
            return
        self._emit(bytecode.prepare_call(bytecode.load_const(self.graph)))
        # a frame whose guards gather nothing is given no tuple
        self._emit(bytecode.load_fast(GATHERED) if self.m.tracer.guards.gathered else bytecode.load_const(()))
        if self.m.tracer.guards.gathered != self.n_inputs:
            self._emit(bytecode.load_const(slice(0, self.n_inputs)))
            self._emit(bytecode.binary_subscr())
        self._emit(bytecode.call(1))
        if self.outputs:
            self._emit(bytecode.store_fast(OUTPUTS))
        else:
            self._emit(bytecode.pop_top())

    def _store_cells(self, only_written: bool) -> None:
        """Brings real cells up to date: assigned nonlocals always, own variables when code that reads them follows."""
        for name, cell in self.m.cells.items():
            if cell.contents is None:
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

    def _plain_then_resume(self, index: int) -> None:
        first = group_start(self.m.program.instructions, index)
        instructions = self.m.program.instructions[first : index + 1]
        stack = list(self.m.stack)
        popped, pushed = stack_change(self.m.program.instructions[index], instructions)
        keep = len(stack) - popped
        target = self.m.program.instructions[index + 1]
        names = self._live(target)
        run, gives = without_null(instructions, pushed)
        slots = [*(self._slot(v, names) for v in stack[:keep]), *gives]
        self._emit(bytecode.prepare_call(self._make_resume(target, slots, names)))
        for i, value in enumerate(stack):
            if i >= keep:
                self.value(value)
            elif slots[i] != "null":  # a NULL below the operands is pushed by the resume function itself
                self.value(_passed(value, slots[i]))
        self._emit(run)
        for name in names:
            self.value(self.m.locals[name])
        self._emit(bytecode.call(sum(s != "null" for s in slots) + len(names)))
        self._emit(bytecode.return_value())

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
            key = (self.code, index)
            self._emit(bytecode.load_const(_Key(key)))
            for target, with_condition in sides:
                slots, values, names = self._arguments(target, below, condition if with_condition else None)
                self._emit(self._make_resume(target, slots, names))
                for v in values:
                    self.value(v)
                self._emit(bytecode.build_tuple(len(values)))
            self._emit(bytecode.call(7))
            self._emit(bytecode.return_value())
            return
        label = bytecode.nop()
        self.value(condition)
        self._emit(bytecode.pop_jump_if(taken_when, label[0]))
        for (target, with_condition), start in zip(sides, (None, label), strict=True):
            if start is not None:
                self._emit(start)
            made = dict(self.temporaries)  # what one side makes, the other has not
            slots, values, names = self._arguments(target, below, condition if with_condition else None)
            self._emit(bytecode.prepare_call(self._make_resume(target, slots, names)))
            for v in values:
                self.value(v)
            self._emit(bytecode.call(len(values)))
            self._emit(bytecode.return_value())
            self.temporaries = made

    def _arguments(
        self, target: Instruction, below: list[Value], extra: Value | None
    ) -> tuple[list[Slot], list[Value], list[str]]:
        stack = below if extra is None else [*below, extra]
        names = self._live(target)
        slots = [self._slot(v, names) for v in stack]
        values = [_passed(v, s) for v, s in zip(stack, slots, strict=True) if s != "null"]
        return slots, values + [self.m.locals[n] for n in names], names

    def _slot(self, value: Value, names: list[str]) -> Slot:
        """How a stack entry reaches a resume function: "null", "value", or by what it iterates over, of which the resume
        function makes an iterator that can be traced (unless something else holds the iterator too)."""
        if value is NULL:
            return "null"
        if isinstance(value, (IteratorValue, CombinedIterator)):
            m = self.m
            cells = [c.contents for c in m.cells.values() if c.contents is not None]
            if not shared_iterators([*m.stack, *(m.locals[n] for n in names), *cells, *effects(m)]) & iterators_in(
                value
            ):
                return Recipe(recipe_of(value, []))
        return "value"

    def _rest_eagerly(self, index: int) -> None:
        """The breaking instruction cannot be cut out (it may jump to a handler): run the rest of the function as it is."""
        first = group_start(self.m.program.instructions, index)
        target = self.m.program.instructions[first]
        slots, values, names = self._arguments(target, self.m.stack, None)
        self._emit(bytecode.prepare_call(self._make_resume(target, slots, names, eager=True)))
        for v in values:
            self.value(v)
        self._emit(bytecode.call(len(values)))
        self._emit(bytecode.return_value())

    def _handled(self, index: int) -> bool:
        program = self.m.program
        for handler in program.decoded.handlers:
            if program.index[id(handler.start)] <= index <= program.index[id(handler.end)]:
                return True
        return False

    def _live(self, target: Instruction) -> list[str]:
        return live_names(self.m, target)

    def _make_resume(
        self, target: Instruction, slots: list[Slot], names: list[str], eager: bool = False
    ) -> list[Instruction]:
        code = resume_code(self.m, target, slots, names)
        self.resumed.append((code, {n: self.m.locals[n] for n in names}))
        if eager:
            _hook.skip(code)
        return bytecode.make_function(code, closure=code.co_freevars)

    def _finish(self) -> Replacement:
        body, self.out = self.out, []
        self._prologue()  # now that it is known what else than graph inputs is gathered
        self.out += body
        names = list(self.code.co_varnames)
        uses_inputs = any(i.argval == GATHERED for i in self.out)
        names += [OUTPUTS, *self.temporary_names]
        slot = -1
        if uses_inputs:
            slot = len(names)
            names.append(GATHERED)
        code = bytecode.assemble(self.code, self.out, [], co_varnames=tuple(names))
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
        if value.source is not None and (
            not isinstance(value, (Constant, Known)) or value.source.kind == _hook.ROOT_LOCAL
        ):
            self._source(value.source)  # an argument, even an equal number, is the very object that was passed
            return
        temporary = self.temporaries.get(id(value))
        if temporary is not None:
            self._emit(bytecode.load_fast(temporary))
            return
        self._build(value)
        if isinstance(value, _MUTABLE):
            name = self.temporaries[id(value)] = f"__fuselens_object_{len(self.temporary_names)}"
            self.kept.append(value)
            self.temporary_names.append(name)
            self._emit(bytecode.copy(1))
            self._emit(bytecode.store_fast(name))

    def _source(self, source: Source) -> None:
        if source.kind == _hook.ROOT_LOCAL and source.text not in self.cell_names:
            self._emit(bytecode.load_fast(source.text))
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
        elif isinstance(value, (TensorValue, SymbolValue)):
            self._emit(bytecode.load_fast(OUTPUTS))
            self._emit(bytecode.load_const(self.outputs[value.node]))
            self._emit(bytecode.binary_subscr())
        elif isinstance(value, SequenceValue):
            self._sequence(value)
        elif isinstance(value, DictValue):
            for k, v in value.items.items():
                self._emit(bytecode.load_const(k))
                self.value(v)
            self._emit(bytecode.build_map(len(value.items)))
            if value.kind is not dict:
                raise FrameUnsupported("FL109", None, what="a dictionary subclass", why="it is made while tracing")
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
        elif isinstance(value, NamedMethod):
            self.value(value.receiver)
            self._emit(bytecode.load_attr(value.name))
        elif isinstance(value, InstanceDict):
            self._call_constant(object.__getattribute__, value.owner, Constant("__dict__"))
        elif isinstance(value, SuperValue):
            self._call_constant(super, Known(value.cls), value.receiver)
        elif isinstance(value, TruthValue):
            self._call_constant(bool, value.tensor)
        elif isinstance(value, GradModeContext):
            self._call_constant(value.maker)
        elif isinstance(value, ContextExit):
            self._call_constant(_entered_exit, Known(value.context.maker))
        elif isinstance(value, MadeFunction):
            self._function(value)
        elif isinstance(value, CellValue) and self.m.cells.get(value.name) is value:
            self._emit(bytecode.load_closure(value.name))
        else:
            raise FrameUnsupported("FL109", None, what=value.describe(), why="it cannot be rebuilt after the graph")

    def _sequence(self, value: SequenceValue) -> None:
        if value.kind in (list, tuple):
            for v in value.items:
                self.value(v)
            self._emit(
                bytecode.build_list(len(value.items)) if value.kind is list else bytecode.build_tuple(len(value.items))
            )
        elif hasattr(value.kind, "_fields"):
            self._call_constant(value.kind, *value.items)
        else:  # torch.Size and structseqs take one iterable
            self._call_constant(value.kind, SequenceValue(value.items, tuple))

    def _function(self, value: MadeFunction) -> None:
        if value.globals is not self.m.globals:
            raise FrameUnsupported(
                "FL109", None, what=value.describe(), why="a function of another module leaves the frame"
            )
        flags_parts: list[tuple[int, Value]] = []
        if value.defaults is not None:
            flags_parts.append((1, value.defaults))
        if value.kwdefaults is not None:
            flags_parts.append((2, value.kwdefaults))
        for cell in value.closure:
            if self.m.cells.get(cell.name) is not cell:
                raise FrameUnsupported(
                    "FL109", None, what=value.describe(), why="it closes over an inlined function's variable"
                )
        if flags_parts:
            raise FrameUnsupported(
                "FL109", None, what=value.describe(), why="a nested function with defaults leaves the frame"
            )
        self._emit(bytecode.make_function(value.code, closure=[cell.name for cell in value.closure]))


def _refill_list(target: list[Any], items: list[Any]) -> None:
    target[:] = items


def _refill_dict(target: dict[Any, Any], items: dict[Any, Any]) -> None:
    if list(target) != list(items):
        target.clear()
    target.update(items)


def effects(machine: Machine) -> list[Value]:
    """Values that existing objects must receive after the graph, whatever else the frame does."""
    found: list[Value] = [value for _, value in machine.tracer.attributes.values()]
    for container in machine.tracer.mutated.values():
        found += list(container.items if isinstance(container, SequenceValue) else container.items.values())
    return found


def iterators_in(value: Value | None) -> set[int]:
    """Ids of an iterator and of those that it consumes."""
    if isinstance(value, CombinedIterator):
        return {id(value)}.union(*(iterators_in(p) for p in value.parts))
    return {id(value)}


def _passed(value: Value, slot: Slot) -> Value:
    """What a resume function is given for a stack entry."""
    if not isinstance(slot, Recipe):
        return value
    leaves: list[Value] = []
    recipe_of(value, leaves)
    return SequenceValue(leaves, tuple)


_MUTABLE = (
    SequenceValue, DictValue, DictView, IteratorValue, CombinedIterator, MadeFunction, GradModeContext, ContextExit, NamedMethod,
)  # fmt: skip
_TERMINAL = ("RAISE_VARARGS", "RERAISE", "RETURN_VALUE", "RETURN_CONST")


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

    A method is loaded as an attribute; the NULL that then stands beside it is pushed by the resume function.
    """
    *before, last = (i.copy() for i in instructions)
    if not any(m.op in ("LOAD_METHOD", "LOAD_SUPER_METHOD") for m in bytecode.normalise(last)):
        return [*before, last], ["value"] * pushed
    if last.op == "LOAD_METHOD":
        (last,) = bytecode.load_attr(last.argval)
    else:
        last.flag &= ~1
    return [*before, last], ["null", "value"] if bytecode.NULL_FIRST else ["value", "null"]


def stack_change(last: Instruction, group: list[Instruction]) -> tuple[int, int]:
    """(values popped, values pushed) by a group of instructions that ends with ``last``."""
    pushed = 1
    for micro in bytecode.normalise(last):
        if micro.op == "UNPACK_SEQUENCE":
            pushed = micro.arg
        elif micro.op == "UNPACK_EX":
            pushed = (micro.arg & 0xFF) + 1 + (micro.arg >> 8)
        elif micro.op in ("LOAD_METHOD", "LOAD_SUPER_METHOD", "BEFORE_WITH", "IMPORT_FROM", "GET_LEN"):
            pushed = 2
        elif micro.op in _PUSH_NOTHING:
            pushed = 0
    effect = sum(bytecode.effect(micro) for i in group for micro in bytecode.normalise(i))
    return pushed - effect, pushed


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


_UNCONDITIONAL = ("JUMP", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")


def resume_code(machine: Machine, target: Instruction, slots: list[Slot], names: list[str]) -> types.CodeType:
    """Code that starts at ``target`` with the given stack: arguments are its values that are not NULL, then ``names``."""
    original = machine.code
    program = machine.program
    free = (*original.co_freevars, *original.co_cellvars)
    arguments = [f"__fuselens_stack_{i}" for i, slot in enumerate(slots) if slot != "null"]
    out: list[Instruction] = []
    if free:
        out += bytecode.copy_free_vars(len(free))
    out += bytecode.resume()
    position = iter(arguments)
    for slot in slots:
        if slot == "null":
            out += bytecode.push_null()
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
    body = [copies[id(i)] for i in program.instructions if i in live]
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
    variables = [*arguments, *names, *(v for v in original.co_varnames if v not in names and v not in free)]
    line = (target.position[0] if target.position else None) or original.co_firstlineno
    base = original.co_name.split(RESUME_MARK)[0]
    qualified = original.co_qualname.split(RESUME_MARK)[0]
    flags = original.co_flags & ~(0x04 | 0x08)
    return bytecode.assemble(
        original, out + body, handlers, co_varnames=tuple(variables), co_cellvars=(), co_freevars=free,
        co_argcount=len(arguments) + len(names), co_posonlyargcount=0, co_kwonlyargcount=0, co_flags=flags,
        co_name=f"{base}{RESUME_MARK}{line}", co_qualname=f"{qualified}{RESUME_MARK}{line}",
    )  # fmt: skip


def _between(program: Program, handler: Any) -> list[Instruction]:
    return program.instructions[program.index[id(handler.start)] : program.index[id(handler.end)] + 1]
