"""The symbolic machine: executes normalised instructions over tracked values.

One :class:`Machine` runs one code object; calls of Python functions run another on top of it. What an instruction
means is in :data:`HANDLERS`, one entry per micro-operation of ``bytecode.normalise``; what a call means is in
``calls``; what an attribute means is in ``attributes``. A handler that cannot go on raises :class:`Break`.
"""

from __future__ import annotations

import builtins
import importlib.util
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import torch_private
from ..record.report import Frame, Span
from . import classify
from .bodies import autograd_functions, control_flow, function_transforms, gradients
from .breaks import Break, ConditionBreak, FrameUnsupported, Raised, raising
from .bytecode import instruction as bytecode
from .calls import calls
from .hook import _hook
from .rules import builtin_calls, contexts, copying, library, pytree, templates, torch_calls, torch_function
from .tracing import sources as src
from .tracing.sources import Source
from .tracing.tracer import Tracer, specialise
from .values import attributes, iterators, known, operators, text
from .values.algebra import (
    NULL,
    ActiveValue,
    CellValue,
    Constant,
    ContextExit,
    DictValue,
    DictView,
    FunctionValue,
    GeneratorValue,
    GradModeContext,
    HandledException,
    Known,
    MadeFunction,
    MethodValue,
    Null,
    ObjectValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    Traceback,
    TruthValue,
    Value,
)

MAXIMUM_STEPS = 400_000
MAXIMUM_DEPTH = 150
_KEEP_TRACEBACK = (("RERAISE", 0), ("RERAISE", 1), ("RERAISE", 2), ("RAISE_VARARGS", 0))  # these add no entry
Handler = Callable[["Machine", Any], None]
HANDLERS: dict[str, Handler] = {}

UNARY: dict[str, Any] = {
    "UNARY_NEGATIVE": operator.neg, "UNARY_INVERT": operator.invert, "UNARY_POSITIVE": operator.pos,
}  # fmt: skip


def handles(*names: str) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = function
        return function

    return register


def too_deep(code: types.CodeType) -> Break:
    """The break of a recursion that is not followed to its end; from now on its function runs as it is."""
    _hook.skip(code)
    return Break("FL121", what=code.co_qualname, why=f"calls nest deeper than {MAXIMUM_DEPTH}, or than Python allows")


class Program:
    """A decoded code object and what is derived from it, made once per code object."""

    __slots__ = ("code", "decoded", "instructions", "micros", "index", "fixed", "library", "handlers")

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.decoded = bytecode.decode(code)
        bytecode.join_with(self.decoded)
        bytecode.own_loads(self.decoded)
        bytecode.split_pairs(self.decoded)
        bytecode.spell_out_super(self.decoded)
        self.instructions = self.decoded.instructions
        self.micros = [bytecode.normalise(i) for i in self.instructions]
        self.index = {id(instruction): n for n, instruction in enumerate(self.instructions)}
        self.library = classify.is_library_file(code.co_filename)
        self.fixed = self.library and not classify.is_made_at_run_time(code.co_filename)
        self.handlers: dict[int, bytecode.Handler] = {}
        """By instruction: where an exception in it goes."""
        for handler in self.decoded.handlers:
            for i in range(self.index[id(handler.start)], self.index[id(handler.end)] + 1):
                self.handlers.setdefault(i, handler)

    def span(self, instruction: bytecode.Instruction) -> Span | None:
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


_programs: dict[types.CodeType, Program] = {}


def program(code: types.CodeType) -> Program:
    """The decoded form of ``code``. Library code is remembered; user code is not, so that it can be collected."""
    found = _programs.get(code)
    if found is None:
        found = Program(code)
        if found.fixed:
            _programs[code] = found
    return found


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
        self.call_span: Span | None = tracer.span
        self.steps = 0
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
        while True:
            if self.steps == stop_at:
                return False
            self.steps += 1
            tracer.steps += 1
            if tracer.steps > MAXIMUM_STEPS:
                raise FrameUnsupported(
                    "FL109", self.call_span, what=self.code.co_qualname,
                    why=f"more than {MAXIMUM_STEPS} instructions were unrolled",
                )  # fmt: skip
            self.set_span()
            self.next = self.at + 1
            try:
                for micro in micros[self.at]:
                    handler = HANDLERS.get(micro.op)
                    if handler is None:
                        raise Break("FL105", what=f"instruction {micro.op}", why="not traced")
                    handler(self, micro.arg)
            except Break as b:
                self._locate(b)
                raise
            except Raised as r:
                self._locate(r)
                self._handle(r)
            if self.result is not None:
                return True
            self.at = self.next
            if self.yielded is not None:
                return False

    def _locate(self, event: Break | Raised) -> None:
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
        first = self.tracer.raised_at.setdefault(id(raised.value), (self.tracer.now, raised))
        if (self.instruction.op, self.instruction.argval) not in _KEEP_TRACEBACK:
            places = self.tracer.tracebacks.setdefault(id(raised.value.value), (raised.value, []))[1]
            places.insert(0, (self.code, self.instruction.position or bytecode.NO_POSITION))
        if handler is None:
            if self.depth:
                raise raised
            escape = Break("FL116", what=describe_exception(raised.value))
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
            self.tracer.span = self.call_span
        else:
            self.tracer.span = self.program.span(self.instruction) or self.tracer.span

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
        truth = self.truth(value)
        if truth is None:
            raise Break("FL102", what=what)
        return truth

    # --- truth ---------------------------------------------------------------------------------------------

    def truth(self, value: Value) -> bool | None:
        """Python truth of a value; None when only the running program knows."""
        value = self.use(value)
        if isinstance(value, Constant):
            return bool(value.value)
        if isinstance(value, (TensorValue, TruthValue)):
            return None
        if isinstance(value, SymbolValue):
            number = value.node.meta["val"]
            try:
                return bool(number if isinstance(number, (torch.SymInt, torch.SymBool)) else specialise(value))
            except Exception as e:
                if torch_private.needs_data(e):
                    return None
                raise
        if isinstance(value, SequenceValue):
            return bool(value.items)
        if isinstance(value, (DictValue, SetValue)):
            return bool(value.items)
        if isinstance(value, DictView):
            return bool(value.mapping.items)
        if isinstance(value, (FunctionValue, MadeFunction, MethodValue, ActiveValue, *iterators.ITERATORS)):
            return True
        if isinstance(value, Known):
            if isinstance(value.value, known.PURE):
                return bool(value.value)
            if isinstance(value.value, (type, types.ModuleType)) or callable(value.value):
                return True
        if isinstance(value, ObjectValue):
            kind = type(value.value)
            for name in ("__bool__", "__len__"):
                method, _ = attributes.class_member(self, kind, name)
                if method is not attributes.ABSENT:
                    result = self.call(attributes.load(self, value, name), [], {})
                    return self.truth(result)
            return True
        raise Break("FL105", what=f"the truth of {value.describe()}", why="not traced")


# what the code between a handler's start and its raising again consists of
_TESTS = {
    "PUSH_EXC_INFO", "LOAD_GLOBAL", "BUILD_TUPLE", "CHECK_EXC_MATCH", "POP_JUMP_IF", "JUMP", "COPY", "POP_EXCEPT",
    "RERAISE", "NOP", "SWAP", "POP_TOP", "CLEANUP_THROW",
}  # fmt: skip
_CONVERTS = (bytecode.Micro("CALL_INTRINSIC_1", "INTRINSIC_STOPITERATION_ERROR"),)


# --- variables --------------------------------------------------------------------------------------------------


@handles("NOP")
def _nop(m: Machine, arg: Any) -> None:
    pass


@handles("LOAD_CONST")
def _load_const(m: Machine, arg: Any) -> None:
    if type(arg) is tuple:
        m.push(SequenceValue([Constant(v) if type(v) is not tuple else _constant_tuple(v) for v in arg], tuple))
    elif type(arg) is frozenset:
        m.push(SetValue(arg, frozenset))
    elif isinstance(arg, (types.CodeType, types.FunctionType, iterators.Recipe)):
        m.push(Known(arg))
    else:
        m.push(Constant(arg))


def _constant_tuple(values: tuple[Any, ...]) -> Value:
    return SequenceValue([_constant_tuple(v) if type(v) is tuple else Constant(v) for v in values], tuple)


@handles("LOAD_FAST", "LOAD_FAST_CHECK")
def _load_fast(m: Machine, name: str) -> None:
    value = m.locals.get(name)
    if value is None:
        cell = m.cells.get(name)
        if cell is not None:  # 3.13 loads cells with LOAD_FAST
            m.push(cell)
            return
        raise _unbound_local(name)
    m.push(value)


@handles("LOAD_FAST_AND_CLEAR")
def _load_fast_and_clear(m: Machine, name: str) -> None:
    """Saves what an inlined comprehension (3.12) hides: a value, or the cell of a captured variable."""
    if name in m.locals:
        m.push(m.locals.pop(name))
    else:
        m.push(m.cells.pop(name, NULL))


@handles("STORE_FAST")
def _store_fast(m: Machine, name: str) -> None:
    value = m.take()
    if value is NULL or isinstance(value, CellValue):
        m.locals.pop(name, None)
        m.cells.pop(name, None)
        if isinstance(value, CellValue):
            m.cells[name] = value
        return
    m.locals[name] = value
    if not m.program.library and isinstance(value, TensorValue):
        m.tracer.remember_shape(name, m.program.span(m.instruction), value)


@handles("DELETE_FAST")
def _delete_fast(m: Machine, name: str) -> None:
    if m.locals.pop(name, None) is None:
        raise _unbound_local(name)


def _unbound_local(name: str) -> Raised:
    return raising(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"))


@handles("MAKE_CELL")
def _make_cell(m: Machine, name: str) -> None:
    m.cells[name] = CellValue(name, m.locals.pop(name, None))


@handles("COPY_FREE_VARS")
def _copy_free_vars(m: Machine, n: int) -> None:
    for name, cell in zip(m.code.co_freevars, m.free, strict=True):
        m.cells[name] = cell


@handles("LOAD_CLOSURE")
def _load_closure(m: Machine, name: str) -> None:
    m.push(m.locals[name] if name in m.locals else m.cells[name])  # a comprehension's variable may have a cell's place


@handles("LOAD_DEREF", "LOAD_CLASSDEREF")
def _load_deref(m: Machine, name: str) -> None:
    m.push(read_cell(m, m.cells[name], name))


def read_cell(m: Machine, cell: CellValue, name: str) -> Value:
    """What a cell holds; an existing cell is read from the frame's closure on first use."""
    if cell.contents is None and cell.cell is not None and not cell.written:
        try:
            contents = cell.cell.cell_contents
        except ValueError:
            raise Break("FL105", what=f"free variable `{name}`", why="it is unbound here") from None
        assert cell.source is not None
        cell.contents = m.tracer.lazy(contents, src.cell_contents(cell.source, name))
    if cell.contents is None:
        if name in m.code.co_cellvars:
            raise _unbound_local(name)
        raise raising(
            NameError(
                f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            )
        )
    return cell.contents


@handles("STORE_DEREF")
def _store_deref(m: Machine, name: str) -> None:
    cell = m.cells[name]
    m.tracer.touch(cell, f"assignment to `{name}`")
    cell.contents = m.take()
    cell.written = True
    if cell.source is not None:
        m.tracer.written_cells[id(cell)] = cell
    if not m.program.library and isinstance(cell.contents, TensorValue):
        m.tracer.remember_shape(name, m.program.span(m.instruction), cell.contents)


@handles("DELETE_DEREF")
def _delete_deref(m: Machine, name: str) -> None:
    cell = m.cells[name]
    if cell.source is not None:
        raise Break("FL110", what=f"`del {name}`", why="it is an enclosing function's variable")
    read_cell(m, cell, name)
    cell.contents = None


@handles("LOAD_GLOBAL", "LOAD_NAME")
def _load_global(m: Machine, name: str) -> None:
    written = m.tracer.written_globals.get((id(m.globals), name))
    if written is not None:
        m.push(written[1])
        return
    found = m.globals.get(name, classify)
    if found is not classify:
        if m.program.fixed and isinstance(
            found, (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
        ):
            m.push(FunctionValue(found, None) if type(found) is types.FunctionType else Known(found))
            return
        m.push(m.tracer.lazy(found, src.dict_item(m.globals_source, name, name)))
        return
    builtins_ = m.globals.get("__builtins__", {})
    table = builtins_.__dict__ if isinstance(builtins_, types.ModuleType) else builtins_
    if name not in table:
        m.tracer.guard(m.globals_source, _hook.MISSING, name, name="MISSING", text=f"no global is named {name}")
        raise raising(NameError(f"name '{name}' is not defined", name=name))
    found = table[name]
    if not m.program.fixed:
        m.tracer.guard(
            m.globals_source, _hook.MISSING, name, name="MISSING", text=f"no global is named like the builtin {name}"
        )
        m.tracer.guard_identity(src.dict_item(src.frame_builtins(), name, f"builtins.{name}"), found)
    m.push(attributes.static_value(found))


@handles("STORE_GLOBAL")
def _store_global(m: Machine, name: str) -> None:
    m.tracer.touch(None, f"assignment to global `{name}`")
    m.tracer.written_globals[id(m.globals), name] = (m.globals, m.take())


@handles("DELETE_GLOBAL", "STORE_NAME", "DELETE_NAME")
def _delete_global(m: Machine, name: str) -> None:
    raise Break("FL110", what=f"`del {name}`", why="global variables are deleted eagerly")


# --- stack ------------------------------------------------------------------------------------------------------


@handles("POP_TOP")
def _pop_top(m: Machine, arg: Any) -> None:
    m.take()


@handles("PUSH_NULL")
def _push_null(m: Machine, arg: Any) -> None:
    m.push(NULL)


@handles("SWAP")
def _swap(m: Machine, n: int) -> None:
    m.stack[-1], m.stack[-n] = m.stack[-n], m.stack[-1]


@handles("COPY")
def _copy(m: Machine, n: int) -> None:
    m.push(m.stack[-n])


# --- operators --------------------------------------------------------------------------------------------------


@handles("BINARY_OP")
def _binary_op(m: Machine, symbol: str) -> None:
    right, left = m.pop(), m.pop()
    m.push(operators.binary(m, operators.BINARY[symbol], left, right, symbol))


def _unary_of(function: Any) -> Handler:
    def run(m: Machine, arg: Any) -> None:
        m.push(operators.operate(m, function, [m.pop()]))

    return run


for _name, _function in UNARY.items():
    HANDLERS[_name] = _unary_of(_function)


@handles("UNARY_NOT")
def _unary_not(m: Machine, arg: Any) -> None:
    value = m.pop()
    truth = m.truth(value)
    if truth is None:
        raise Break("FL102", what=f"not {value.describe()}")
    m.push(Constant(not truth))


@handles("TO_BOOL")
def _to_bool(m: Machine, arg: Any) -> None:
    value = m.pop()
    truth = m.truth(value)
    m.push(
        TruthValue(value)
        if truth is None and not isinstance(value, TruthValue)
        else value
        if truth is None
        else Constant(truth)
    )


@handles("COMPARE")
def _compare(m: Machine, symbol: str) -> None:
    right, left = m.pop(), m.pop()
    m.push(operators.binary(m, operators.COMPARE[symbol], left, right, symbol))


@handles("IS_OP")
def _is_op(m: Machine, invert: Any) -> None:
    right, left = m.pop(), m.pop()
    same = operators.identical(m, left, right)
    if same is None:
        raise Break("FL105", what=f"`{left.describe()} is {right.describe()}`", why="identity is not tracked here")
    m.push(Constant(same != bool(invert)))


@handles("CONTAINS_OP")
def _contains_op(m: Machine, invert: Any) -> None:
    container, member = m.pop(), m.pop()
    m.push(Constant(operators.contains(m, container, member) != bool(invert)))


@handles("BINARY_SUBSCR")
def _binary_subscr(m: Machine, arg: Any) -> None:
    key, container = m.pop(), m.pop()
    m.push(operators.subscript(m, container, key))


@handles("BINARY_SLICE")
def _binary_slice(m: Machine, arg: Any) -> None:
    stop, start, container = m.pop(), m.pop(), m.pop()
    m.push(operators.subscript(m, container, make_slice([start, stop, Constant(None)])))


@handles("STORE_SLICE")
def _store_slice(m: Machine, arg: Any) -> None:
    stop, start, container, value = m.pop(), m.pop(), m.pop(), m.pop()
    operators.store_subscript(m, container, make_slice([start, stop, Constant(None)]), value)


@handles("STORE_SUBSCR")
def _store_subscr(m: Machine, arg: Any) -> None:
    key, container, value = m.pop(), m.pop(), m.take()
    operators.store_subscript(m, container, key, value)


@handles("DELETE_SUBSCR")
def _delete_subscr(m: Machine, arg: Any) -> None:
    key, container = m.pop(), m.pop()
    operators.delete_subscript(m, container, key)


def make_slice(parts: list[Value]) -> Value:
    if all(isinstance(p, Constant) for p in parts):
        return Constant(slice(*(p.value for p in parts)))  # type: ignore[attr-defined]
    return SliceValue(parts)


# --- building ---------------------------------------------------------------------------------------------------


@handles("BUILD_TUPLE")
def _build_tuple(m: Machine, n: int) -> None:
    m.push(SequenceValue(m.take_many(n), tuple))


@handles("BUILD_LIST")
def _build_list(m: Machine, n: int) -> None:
    m.push(SequenceValue(m.take_many(n), list))


@handles("BUILD_SET")
def _build_set(m: Machine, n: int) -> None:
    m.push(SetValue([known.key_of(m, v, known.ELEMENT) for v in m.take_many(n)]))


@handles("BUILD_MAP")
def _build_map(m: Machine, n: int) -> None:
    flat = m.take_many(2 * n)
    m.push(DictValue({known.key_of(m, k): v for k, v in zip(flat[::2], flat[1::2], strict=True)}))


@handles("BUILD_CONST_KEY_MAP")
def _build_const_key_map(m: Machine, n: int) -> None:
    keys = m.pop()
    assert isinstance(keys, SequenceValue)
    m.push(DictValue(dict(zip([known.key_of(m, k) for k in keys.items], m.take_many(n), strict=True))))


@handles("BUILD_SLICE")
def _build_slice(m: Machine, n: int) -> None:
    parts = [m.use(v) for v in m.take_many(n)]
    m.push(make_slice(parts + [Constant(None)] * (3 - n)))


@handles("BUILD_STRING")
def _build_string(m: Machine, n: int) -> None:
    parts = [m.use(v) for v in m.take_many(n)]
    if not all(isinstance(p, Constant) for p in parts):
        raise Break("FL105", what="an f-string", why="it formats a value that is not known yet")
    m.push(Constant("".join(p.value for p in parts)))  # type: ignore[attr-defined]


@handles("CONVERT_VALUE")
def _convert_value(m: Machine, arg: Any) -> None:
    m.push(text.text(m, {1: str, 2: repr, 3: ascii}[arg], m.pop()))


@handles("FORMAT_SIMPLE")
def _format_simple(m: Machine, arg: Any) -> None:
    m.push(text.text(m, format, m.pop()))


@handles("FORMAT_WITH_SPEC")
def _format_with_spec(m: Machine, arg: Any) -> None:
    spec = known.plain(m.pop())
    if spec is known.UNKNOWN:
        raise Break("FL105", what="an f-string", why="its format is not known yet")
    m.push(text.text(m, format, m.pop(), spec))


@handles("BUILD_INTERPOLATION")
def _build_interpolation(m: Machine, flags: int) -> None:
    spec = m.pop() if flags & 1 else Constant("")
    text_, value = m.pop(), m.take()
    m.push(templates.interpolation(value, text_, flags, spec))


@handles("BUILD_TEMPLATE")
def _build_template(m: Machine, arg: Any) -> None:
    interpolations, strings = m.pop(), m.pop()
    assert isinstance(strings, SequenceValue) and isinstance(interpolations, SequenceValue)
    m.push(templates.TemplateValue(strings, interpolations))


def _list_below(m: Machine, depth: int) -> SequenceValue:
    """The list that a comprehension or display is filling; across a break (3.12 inlines comprehensions) it is an argument."""
    target = m.use(m.stack[-depth])
    if not isinstance(target, SequenceValue):
        raise Break("FL105", what="a list display", why=f"it fills {target.describe()}")
    m.tracer.mutate(target)
    return target


def _dict_below(m: Machine, depth: int) -> DictValue:
    """The dictionary that a comprehension or display is filling; see :func:`_list_below`."""
    target = m.use(m.stack[-depth])
    if not isinstance(target, DictValue):
        raise Break("FL105", what="a dictionary display", why=f"it fills {target.describe()}")
    m.tracer.mutate(target)
    return target


def _set_below(m: Machine, depth: int) -> SetValue:
    """The set that a comprehension or display is filling; see :func:`_list_below`."""
    target = m.use(m.stack[-depth])
    if not isinstance(target, SetValue):
        raise Break("FL105", what="a set display", why=f"it fills {target.describe()}")
    m.tracer.mutate(target)
    return target


@handles("LIST_APPEND")
def _list_append(m: Machine, depth: int) -> None:
    value = m.take()
    _list_below(m, depth).items.append(value)


@handles("MAP_ADD")
def _map_add(m: Machine, depth: int) -> None:
    value, key = m.take(), m.pop()
    _dict_below(m, depth).items[known.key_of(m, key)] = value


@handles("SET_ADD")
def _set_add(m: Machine, depth: int) -> None:
    value = m.take()
    _set_below(m, depth).change("add", [known.key_of(m, value, known.ELEMENT)])


@handles("LIST_EXTEND")
def _list_extend(m: Machine, depth: int) -> None:
    value = m.pop()
    kind = value.python_type
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise raising(TypeError(f"Value after * must be an iterable, not {kind.__name__}"))
    items = iterators.iterate(m, value)
    _list_below(m, depth).items.extend(items)


@handles("SET_UPDATE")
def _set_update(m: Machine, depth: int) -> None:
    value = m.pop()
    operators.change_set(m, _set_below(m, depth), "union", [value])


@handles("DICT_UPDATE")
def _dict_update(m: Machine, depth: int) -> None:
    value = m.pop()
    _dict_below(m, depth).items.update(operators.mapping_items(m, value))


@handles("DICT_MERGE")
def _dict_merge(m: Machine, depth: int) -> None:
    value = m.pop()
    target, added = _dict_below(m, depth), operators.mapping_items(m, value)
    twice = [k for k in added if k in target.items]
    if twice:
        raise Break("FL105", what="keyword unpacking", why=f"{twice[0]!r} is given twice")
    target.items.update(added)


@handles("LIST_TO_TUPLE")
def _list_to_tuple(m: Machine, arg: Any) -> None:
    value = m.pop()
    assert isinstance(value, SequenceValue)
    m.push(SequenceValue(list(value.items), tuple))


def _unpacked(m: Machine, value: Value) -> list[Value]:
    """The items of a value that names are bound to."""
    kind = value.python_type
    if (
        isinstance(value, (Constant, ObjectValue))
        and not hasattr(kind, "__iter__")
        and not hasattr(kind, "__getitem__")
    ):
        raise raising(TypeError(f"cannot unpack non-iterable {kind.__name__} object"))
    return iterators.iterate(m, value)


@handles("UNPACK_SEQUENCE")
def _unpack_sequence(m: Machine, n: int) -> None:
    value = m.pop()
    items = _unpacked(m, value)
    if len(items) > n:
        counted = sys.version_info >= (3, 14) and value.python_type in (list, tuple, dict)
        raise raising(ValueError(f"too many values to unpack (expected {n}{f', got {len(items)}' if counted else ''})"))
    if len(items) < n:
        raise raising(ValueError(f"not enough values to unpack (expected {n}, got {len(items)})"))
    m.stack.extend(reversed(items))


@handles("UNPACK_EX")
def _unpack_ex(m: Machine, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    items = _unpacked(m, m.pop())
    if len(items) < before + after:
        wanted = before + after
        raise raising(ValueError(f"not enough values to unpack (expected at least {wanted}, got {len(items)})"))
    middle = SequenceValue(items[before : len(items) - after], list)
    m.stack.extend(reversed([*items[:before], middle, *items[len(items) - after :]]))


# --- attributes -------------------------------------------------------------------------------------------------


@handles("LOAD_ATTR")
def _load_attr(m: Machine, name: str) -> None:
    m.push(attributes.load(m, m.pop(), name))


@handles("LOAD_METHOD")
def _load_method(m: Machine, name: str) -> None:
    _push_callable(m, attributes.load(m, m.pop(), name))


def _push_callable(m: Machine, value: Value) -> None:
    """A callable and its NULL, in this version's order."""
    m.stack.extend((NULL, value) if bytecode.NULL_FIRST else (value, NULL))


@handles("LOAD_SUPER_ATTR")
def _load_super_attr(m: Machine, arg: tuple[str, bool]) -> None:
    m.push(_super_attribute(m, arg[0]))


@handles("LOAD_SUPER_METHOD")
def _load_super_method(m: Machine, arg: tuple[str, bool]) -> None:
    _push_callable(m, _super_attribute(m, arg[0]))


def _super_attribute(m: Machine, name: str) -> Value:
    receiver, cls, function = m.pop(), m.pop(), m.pop()
    if not isinstance(function, Known) or function.value is not super or not isinstance(cls, Known):
        raise Break("FL105", what="super()", why="the name super or the class is not what it usually is")
    return attributes.load(m, SuperValue(cls.value, receiver), name)


@handles("STORE_ATTR")
def _store_attr(m: Machine, name: str) -> None:
    owner, value = m.pop(), m.take()
    attributes.store(m, owner, name, value)


@handles("DELETE_ATTR")
def _delete_attr(m: Machine, name: str) -> None:
    attributes.delete(m, m.pop(), name)


# --- control ----------------------------------------------------------------------------------------------------


@handles("JUMP")
def _jump(m: Machine, target: bytecode.Instruction) -> None:
    m.jump(target)


@handles("POP_JUMP_IF")
def _pop_jump_if(m: Machine, arg: Any) -> None:
    when, target = arg
    value = m.pop()
    if when in ("none", "not_none"):
        is_none = isinstance(value, Constant) and value.value is None
        if is_none == (when == "none"):
            m.jump(target)
        return
    truth = m.truth(value)
    if truth is None:
        raise _condition(m)
    if truth == when:
        m.jump(target)


@handles("JUMP_IF_OR_POP")
def _jump_if_or_pop(m: Machine, arg: Any) -> None:
    when, target = arg
    truth = m.truth(m.stack[-1])
    if truth is None:
        raise _condition(m)
    if truth == when:
        m.jump(target)
    else:
        m.take()


def _condition(m: Machine) -> Break:
    return ConditionBreak("FL101", what=_source_text(m) or "if")


def _source_text(m: Machine) -> str:
    span = m.tracer.span
    if span is None or span.line != span.end_line:
        return ""
    import linecache

    line = linecache.getline(span.file, span.line).encode()
    return line[span.column : span.end_column].decode(errors="replace")


@handles("GET_ITER")
def _get_iter(m: Machine, arg: Any) -> None:
    m.push(iterators.iterator(m, m.pop()))


@handles("FOR_ITER")
def _for_iter(m: Machine, target: bytecode.Instruction) -> None:
    iterator = m.use(m.stack[-1])
    item = iterators.advance(m, iterator)
    if item is not None:
        m.push(item)
        return
    m.take()
    m.jump(target)


@handles("RETURN_VALUE")
def _return_value(m: Machine, arg: Any) -> None:
    m.result = m.take()


@handles("RAISE_VARARGS")
def _raise(m: Machine, n: int) -> None:
    cause = m.pop() if n == 2 else None
    if n == 0:
        handled = m.handled_exception()
        if handled is None:
            raise raising(RuntimeError("No active exception to reraise"))
        raise Raised(_exception(m, handled), chains=False)
    exception = _exception(m, m.pop())
    if cause is not None:
        none = isinstance(cause, Constant) and cause.value is None
        cause = cause if none else _exception(m, cause, "exception causes must derive from BaseException")
        attributes.store_directly(m, exception, "__cause__", cause)
    raise Raised(exception)


def _exception(m: Machine, value: Value, otherwise: str = "exceptions must derive from BaseException") -> ObjectValue:
    """The instance that ``raise value`` raises."""
    if isinstance(value, Known) and isinstance(value.value, type) and issubclass(value.value, BaseException):
        value = m.use(m.call(value, [], {}))
    if isinstance(value, ObjectValue) and isinstance(value.value, BaseException):
        return value
    if isinstance(value, (Constant, Known, SequenceValue, DictValue, FunctionValue, TensorValue)):
        raise raising(TypeError(otherwise))
    raise Break("FL105", what="raise", why=f"of {value.describe()}")


def describe_exception(value: ObjectValue) -> str:
    return f"`{value.python_type.__name__}`"


@handles("RERAISE")
def _reraise(m: Machine, with_position: Any) -> None:
    exception = _exception(m, m.pop())
    raise Raised(exception, chains=False)


@handles("PUSH_EXC_INFO")
def _push_exc_info(m: Machine, arg: Any) -> None:
    exception = m.take()
    m.push(HandledException(exception))
    m.push(exception)


@handles("POP_EXCEPT")
def _pop_except(m: Machine, arg: Any) -> None:
    m.take()


@handles("CHECK_EXC_MATCH")
def _check_exc_match(m: Machine, arg: Any) -> None:
    classes, exception = known.plain(known.deep_use(m, m.take())), _exception(m, m.use(m.stack[-1]))
    several = classes if isinstance(classes, tuple) else (classes,)
    if classes is known.UNKNOWN:
        raise Break("FL105", what="except", why="the class is not known while tracing")
    if not all(isinstance(c, type) and issubclass(c, BaseException) for c in several):
        raise raising(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    m.push(Constant(any(c in exception.python_type.__mro__ for c in several)))  # a metaclass is not asked


@handles("CHECK_EG_MATCH")
def _check_eg_match(m: Machine, arg: Any) -> None:
    """Splitting a group changes the exception being handled, in ways that no plain instruction repeats."""
    if m.depth:
        raise Break("FL105", what="except*", why="exception groups are split eagerly")
    raise FrameUnsupported("FL109", m.tracer.span, what=m.code.co_qualname, why="`except*` splits an exception group")


@handles("WITH_EXCEPT_START")
def _with_except_start(m: Machine, depth: int) -> None:
    exception, leave = _exception(m, m.use(m.stack[-1])), m.stack[-depth]
    m.push(m.call(leave, [Known(exception.python_type), exception, Traceback()], {}))


# --- generators -------------------------------------------------------------------------------------------------


@handles("RETURN_GENERATOR")
def _return_generator(m: Machine, arg: Any) -> None:
    m.push(NULL)  # the generator object; the frame of a running generator pops it


@handles("YIELD_VALUE")
def _yield_value(m: Machine, arg: Any) -> None:
    m.yielded = m.take()


@handles("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(m: Machine, arg: Any) -> None:
    m.push(iterators.iterator(m, m.pop()))


@handles("SEND")
def _send(m: Machine, arg: Any) -> None:
    target, pops = arg
    sent, receiver = m.pop(), m.use(m.stack[-1])
    if not isinstance(receiver, iterators.ITERATORS):
        raise Break("FL105", what="yield from", why=f"of {receiver.describe()}")
    nothing = isinstance(sent, Constant) and sent.value is None
    if isinstance(receiver, GeneratorValue):
        item = iterators.resume_generator(m, receiver, sent)
    elif nothing:
        item = iterators.advance(m, receiver)
    else:
        raise Break("FL105", what="yield from", why=f"sends a value to {receiver.describe()}")
    if item is not None:
        m.push(item)
        return
    returned = receiver.returned if isinstance(receiver, GeneratorValue) else None
    if pops:
        m.take()
    m.push(returned or Constant(None))
    m.jump(target)


@handles("END_SEND")
def _end_send(m: Machine, arg: Any) -> None:
    value = m.take()
    m.take()
    m.push(value)


@handles("CLEANUP_THROW")
def _cleanup_throw(m: Machine, arg: Any) -> None:
    exception = _exception(m, m.pop())
    if not issubclass(exception.python_type, StopIteration):
        raise Raised(exception, chains=False)
    m.take()
    m.take()
    m.push(NULL)
    m.push(attributes.load(m, exception, "value"))


@handles("LOAD_BUILD_CLASS")
def _load_build_class(m: Machine, arg: Any) -> None:
    m.push(Known(builtins.__build_class__))


@handles("LOAD_ASSERTION_ERROR")
def _load_assertion_error(m: Machine, arg: Any) -> None:
    m.push(Known(AssertionError))


# --- match ------------------------------------------------------------------------------------------------------


@handles("GET_LEN")
def _get_len(m: Machine, arg: Any) -> None:
    m.push(m.call(Known(len), [m.stack[-1]], {}))


_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
"""Flags of types: how ``match`` takes their instances."""


@handles("MATCH_SEQUENCE")
def _match_sequence(m: Machine, arg: Any) -> None:
    m.push(Constant(bool(m.use(m.stack[-1]).python_type.__flags__ & _SEQUENCE)))


@handles("MATCH_MAPPING")
def _match_mapping(m: Machine, arg: Any) -> None:
    m.push(Constant(bool(m.use(m.stack[-1]).python_type.__flags__ & _MAPPING)))


@handles("MATCH_KEYS")
def _match_keys(m: Machine, arg: Any) -> None:
    keys, subject = m.use(m.stack[-1]), m.use(m.stack[-2])
    found: list[Value] = []
    seen: set[Any] = set()
    missing = SetValue((), set)  # a marker that nothing else is
    for key in iterators.iterate(m, keys):
        known_key = known.key_of(m, key)
        if known_key in seen:
            raise raising(ValueError(f"mapping pattern checks duplicate key ({known.plain(m.use(key))!r})"))
        seen.add(known_key)
        item = m.use(m.call(attributes.load(m, subject, "get"), [key, missing], {}))
        if item is missing:
            m.push(Constant(None))
            return
        found.append(item)
    m.push(SequenceValue(found, tuple))


def _are_names(names: list[Any]) -> bool:
    """Whether they are strings, no two the same."""
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


_MATCHED_AS_THEMSELVES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@handles("MATCH_CLASS")
def _match_class(m: Machine, n: int) -> None:
    names, cls, subject = m.pop(), m.pop(), m.pop()
    assert isinstance(names, SequenceValue)
    matches = m.call(Known(isinstance), [subject, cls], {})
    if m.truth(matches) is not True:
        m.push(Constant(None))
        return
    wanted = [known.plain(m.use(name)) for name in names.items]
    found: list[Value] = []
    if n:
        assert isinstance(cls, Known)
        fields = getattr(cls.value, "__match_args__", None)
        if fields is None and issubclass(cls.value, _MATCHED_AS_THEMSELVES) and n == 1:
            found.append(subject)
        elif isinstance(fields, tuple) and len(fields) >= n and _are_names([*fields[:n], *wanted]):
            attributes.class_member(m, cls.value, "__match_args__")
            wanted = [*fields[:n], *wanted]
        else:
            raise Break("FL105", what="a class pattern", why="its positional patterns do not fit the class")
    for name in wanted:
        item = attributes.load_or_none(m, subject, name)
        if item is None:
            m.push(Constant(None))
            return
        found.append(item)
    m.push(SequenceValue(found, tuple))


# --- calls ------------------------------------------------------------------------------------------------------


@handles("KW_NAMES")
def _kw_names(m: Machine, names: tuple[str, ...]) -> None:
    m.keyword_names = names


@handles("CALL")
def _call(m: Machine, n: int) -> None:
    names, m.keyword_names = m.keyword_names, ()
    _call_with(m, n, names)


@handles("CALL_KW")
def _call_kw(m: Machine, n: int) -> None:
    names = m.pop()
    assert isinstance(names, SequenceValue)
    _call_with(m, n, tuple(v.value for v in names.items))  # type: ignore[attr-defined]


def _call_with(m: Machine, n: int, names: tuple[str, ...]) -> None:
    args = m.take_many(n)
    second, first = m.take(), m.take()
    if isinstance(first, Null):
        function = second
    elif isinstance(second, Null):
        function = first
    else:
        function, args = first, [second, *args]
    split = len(args) - len(names)
    m.push(m.call(function, args[:split], dict(zip(names, args[split:], strict=True))))


@handles("CALL_FUNCTION_EX")
def _call_function_ex(m: Machine, flags: int) -> None:
    kwargs = m.pop() if flags & 1 else NULL
    args = iterators.iterate(m, m.pop())
    if bytecode.NULL_FIRST:
        function = m.take()
        m.take()
    else:
        m.take()
        function = m.take()
    if kwargs is NULL:
        kwargs = DictValue({})
    if not isinstance(kwargs, DictValue):
        raise Break("FL105", what="keyword unpacking", why=f"of {kwargs.describe()}")
    if not all(isinstance(name, str) for name in kwargs.items):
        raise raising(TypeError("keywords must be strings"))
    m.push(m.call(function, args, dict(kwargs.items)))


@handles("MAKE_FUNCTION")
def _make_function(m: Machine, flags: int | None) -> None:
    code = m.pop()
    assert isinstance(code, Known)
    made = MadeFunction(code.value, m.globals, m.globals_source)
    flags = flags or 0
    if flags & 8:
        closure = m.take()
        assert isinstance(closure, SequenceValue)
        made.closure = [c for c in closure.items if isinstance(c, CellValue)]
    if flags & 4:
        made.annotations = m.take()
    if flags & 2:
        made.kwdefaults = m.take()
    if flags & 1:
        made.defaults = m.take()
    m.push(made)


@handles("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(m: Machine, flag: int) -> None:
    made, value = m.take(), m.take()
    assert isinstance(made, MadeFunction)
    if flag == 8:
        assert isinstance(value, SequenceValue)
        made.closure = [c for c in value.items if isinstance(c, CellValue)]
    elif flag == 4:
        made.annotations = value
    elif flag == 16:
        made.annotate = value
    elif flag == 2:
        made.kwdefaults = value
    else:
        made.defaults = value
    m.push(made)


@handles("CALL_INTRINSIC_1")
def _call_intrinsic_1(m: Machine, arg: Any) -> None:
    if arg == "INTRINSIC_STOPITERATION_ERROR":
        exception = _exception(m, m.pop())
        if issubclass(exception.python_type, StopIteration):
            error = raising(RuntimeError("generator raised StopIteration"))
            attributes.store_directly(m, error.value, "__cause__", exception)
            attributes.assign(m, error.value, "__context__", exception)
            exception = error.value
        m.push(exception)
        return
    raise Break("FL105", what=f"intrinsic {arg}", why="not traced")


# --- with -------------------------------------------------------------------------------------------------------


def _no_context(kind: type, missed: str) -> str:
    """What CPython says of an object of ``kind`` that a ``with`` statement is given and that lacks ``missed``."""
    if sys.version_info < (3, 14):
        what = f"'{kind.__qualname__}' object does not support the context manager protocol"
        return f"{what} (missed __exit__ method)" if missed == "__exit__" else what
    what = f"'{known.full_name(kind)}' object does not support the context manager protocol (missed {missed} method)"
    if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
        what += " but it supports the asynchronous context manager protocol. Did you mean to use 'async with'?"
    return what


@handles("BEFORE_WITH")
def _before_with(m: Machine, arg: Any) -> None:
    value = m.pop()
    if isinstance(value, GradModeContext):
        value.previous = torch.is_grad_enabled()
        torch_calls.set_grad_enabled(m, value.enabled)
        m.contexts.append(value)
        m.push(ContextExit(value))
        m.push(Constant(None))
        return
    context = contexts.context_of(m, value)
    if context is not None:
        contexts.enter(m, context)
        m.push(ContextExit(context))
        m.push(Constant(None))
        return
    if not isinstance(value, ObjectValue):
        raise Break("FL113", what=value.describe(), why="it is no object that is known while tracing")
    found = {}
    for name in ("__enter__", "__exit__") if sys.version_info < (3, 14) else ("__exit__", "__enter__"):
        member, place = attributes.class_member(m, value.python_type, name)
        if member is attributes.ABSENT:
            raise raising(TypeError(_no_context(value.python_type, name)))
        if type(member) is not types.FunctionType:
            raise Break("FL113", what=value.describe(), why=f"its {name} is not a Python function")
        found[name] = attributes.bind(m, member, value, name, place)
    m.push(found["__exit__"])
    m.push(m.call(found["__enter__"], [], {}))


# --- imports ----------------------------------------------------------------------------------------------------


@handles("IMPORT_NAME")
def _import_name(m: Machine, name: str) -> None:
    names, level = known.plain(known.deep_use(m, m.pop())), known.plain(m.pop())
    package = m.globals.get("__package__") or m.globals.get("__name__", "").rpartition(".")[0]
    absolute = importlib.util.resolve_name("." * level + name, package) if level else name
    wanted = [absolute, *(f"{absolute}.{n}" for n in names or ())]
    if absolute not in sys.modules or "*" in (names or ()):
        raise Break("FL105", what=f"import of {absolute}", why="the module is not imported yet, and importing runs it")
    module = sys.modules[absolute]
    for submodule in wanted[1:]:
        if submodule not in sys.modules and not hasattr(module, submodule.rpartition(".")[2]):
            raise Break("FL105", what=f"import of {submodule}", why="the module is not imported yet, or is missing")
    m.push(Known(module if names else sys.modules[absolute if level else absolute.partition(".")[0]]))


@handles("IMPORT_FROM")
def _import_from(m: Machine, name: str) -> None:
    module = m.use(m.stack[-1])
    assert isinstance(module, Known)
    full = f"{module.value.__name__}.{name}"
    if name not in vars(module.value) and full in sys.modules:
        m.push(Known(sys.modules[full]))
        return
    m.push(attributes.load(m, module, name))
