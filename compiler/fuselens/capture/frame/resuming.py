"""What the generated code of replaced frames calls to go on in resume functions."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from ... import torch_private
from ..breaks import RanksError
from ..bytecode import emitters as emitters
from ..bytecode import instruction as bytecode
from ..bytecode.assembly import assemble
from ..hook import _hook

RESUME_MARK = " resumed at line "
OWN_MARK = " of the resumed frame"
"""Ends the names of free variables that hold the cells of a resume function's own variables."""
Place = tuple[types.CodeType, bytecode.Position]
"""A code object and the position of an instruction in it."""


class Tail:
    """What the replacement of a resume function returns to go on in another: its caller calls that, so that a loop with
    a break in it does not nest."""

    __slots__ = ("args", "function")

    def __init__(self, function: Any, *args: Any) -> None:
        self.function = function
        self.args = args


def run_tails(function: Any, *args: Any) -> Any:
    """The result of a resume function, and of those that it hands over to."""
    result = function(*args)
    while type(result) is Tail:
        result = result.function(*result.args)
    return result


def hand_on(exception: BaseException) -> None:
    """Takes the frame that called :func:`run_tails` or :class:`Retry`, and that of its own, out of a traceback that begins there.
    The caller's frame may follow once more: where it raised itself what a handler, resumed, has raised again."""
    trace = exception.__traceback__
    if trace is not None and trace.tb_frame is sys._getframe(1):
        trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_code in (run_tails.__code__, Retry.__call__.__code__):
        trace = trace.tb_next
    if trace is not None:
        exception.__traceback__ = trace


class AsWritten(Exception):
    """Raised by a graph, before it does anything, whose frame shall run as it was written in this call."""


END = object()


def next_or_end(iterator: Any) -> Any:
    """The next item, as a ``for`` loop takes it; :data:`END` at the end."""
    return next(iterator, END)


class Retry:
    """Runs a frame eagerly whose graph raised: eager's exception, at its line, after the effects that precede it.

    ``strict``: a graph that fails where eager does not is an error of the compiler, and raised. ``writes``: the graph
    may have written to its inputs, so that it can be followed by the frame only where it says :class:`AsWritten`, or where a
    check of values failed: what it wrote before that is undone.
    """

    __slots__ = ("_code", "_make", "_names", "_original", "_strict", "_writes")

    def __init__(
        self,
        original: Callable[[], types.CodeType | None],
        make: Callable[[types.CodeType, tuple[str, ...]], types.CodeType],
        names: tuple[str, ...],
        strict: bool,
        writes: bool,
    ) -> None:
        self._original = original
        self._make = make
        self._names = names
        self._strict = strict
        self._writes = writes
        self._code: types.CodeType | None = None

    @property
    def parts(self) -> tuple[tuple[str, ...], bool, bool]:
        """Its arguments, ``strict`` and ``writes``."""
        return self._names, self._strict, self._writes

    def __call__(
        self, error: BaseException, rewind: Callable[[], None] | None, closure: tuple[types.CellType, ...], *args: Any
    ) -> Any:
        wanted, failed_check = isinstance(error, AsWritten), torch_private.is_failed_check(error)
        written = self._writes and not failed_check
        if not wanted and (
            written
            or not isinstance(error, Exception)
            or isinstance(error, (torch_private.StopRecomputation, RanksError))
        ):
            raise error
        if self._code is None:
            original = self._original()
            if original is None:
                raise error
            self._code = self._make(original, self._names)
        function = types.FunctionType(self._code, sys._getframe(1).f_globals, None, None, closure)
        if rewind is not None:
            rewind()
        if failed_check or wanted:  # it is about to raise, or what it calls would be asked to run as written, too
            return _hook.disabled(function)(*args)
        try:
            result = function(*args)
        except Exception as raised:
            picture = getattr(error, "fuselens_picture", "")
            if picture and torch_private.is_out_of_memory(raised):
                raised.add_note(picture)
            raise
        if self._strict and not wanted:
            raise error
        return result


class Passed:
    """Gives an exception the traceback that it gets on its way through ``places``, outermost first.

    An exception that was raised while tracing is made anew after the graph, where nothing raises it. Frames cannot be
    made, so each place gets a function of its name that runs nothing but the instruction that asks for its frame.
    """

    __slots__ = ("_functions",)

    def __init__(self, places: list[Place]) -> None:
        self._functions = [types.FunctionType(_only_frame(*place), {}) for place in places]

    def __call__(self, exception: BaseException) -> None:
        for function in reversed(self._functions):
            frame = function()
            before = exception.__traceback__
            exception.__traceback__ = types.TracebackType(before, frame, frame.f_lasti, frame.f_lineno)


def _only_frame(code: types.CodeType, position: bytecode.Position) -> types.CodeType:
    call = [*emitters.prepare_call(emitters.load_const(sys._getframe)), *emitters.call(0)]
    body = [*emitters.resume(), *call, *emitters.return_value()]
    first = code.co_firstlineno
    for instruction in body:
        instruction.position = position if position[0] is not None else (first, first, None, None)
    made = assemble(
        code, body,
        co_consts=(None,), co_names=(), co_varnames=(), co_cellvars=(), co_freevars=(), co_flags=3,
        co_argcount=0, co_posonlyargcount=0, co_kwonlyargcount=0,
        co_name=code.co_name.split(RESUME_MARK)[0], co_qualname=code.co_qualname.split(RESUME_MARK)[0],
    )  # fmt: skip
    _hook.skip(made)
    return made
