"""Instructions that raise and handle exceptions, and those of ``with`` statements.

Exceptions are objects of the trace: a handler in a traced frame is reached without leaving the graph.
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from ..breaks import Break, FrameUnsupported, Raised, raising
from ..rules import contexts, torch_calls
from ..values import assignments, attributes, known
from ..values.algebra import (
    Constant,
    ContextExit,
    DictValue,
    FunctionValue,
    GradModeContext,
    HandledException,
    Known,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Traceback,
    Value,
)
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("RAISE_VARARGS")
def _raise(m: Machine, n: int) -> None:
    cause = m.pop() if n == 2 else None
    if n == 0:
        handled = m.handled_exception()
        if handled is None:
            raise raising(RuntimeError("No active exception to reraise"))
        raise Raised(exception_of(m, handled), chains=False)
    exception = exception_of(m, m.pop())
    if cause is not None:
        none = isinstance(cause, Constant) and cause.value is None
        cause = cause if none else exception_of(m, cause, "exception causes must derive from BaseException")
        assignments.store_directly(m, exception, "__cause__", cause)
    raise Raised(exception)


def exception_of(m: Machine, value: Value, otherwise: str = "exceptions must derive from BaseException") -> ObjectValue:
    """The instance that ``raise value`` raises."""
    if isinstance(value, Known) and isinstance(value.value, type) and issubclass(value.value, BaseException):
        value = m.use(m.call(value, [], {}))
    if isinstance(value, ObjectValue) and isinstance(value.value, BaseException):
        return value
    if isinstance(value, (Constant, Known, SequenceValue, DictValue, FunctionValue, TensorValue)):
        raise raising(TypeError(otherwise))
    raise Break("FL105", what="raise", why=f"of {value.describe()}")


@handles("RERAISE")
def _reraise(m: Machine, with_position: Any) -> None:
    exception = exception_of(m, m.pop())
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
    classes, exception = known.plain(known.deep_use(m, m.take())), exception_of(m, m.use(m.stack[-1]))
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
    exception, leave = exception_of(m, m.use(m.stack[-1])), m.stack[-depth]
    m.push(m.call(leave, [Known(exception.python_type), exception, Traceback()], {}))


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
        m.push(contexts.given(context, value))
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
