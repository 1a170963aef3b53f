"""Calls of what programs marked (see ``marks``), and of functions that ask for something of the compiler itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break, UsageError
from ..hook import _hook
from ..program import marks
from ..tracing import sources as src
from ..values.algebra import (
    Constant,
    DictValue,
    FunctionValue,
    Known,
    MadeFunction,
    MethodValue,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
)
from ..values.known import UNKNOWN, deep_use, plain
from .table import rule

if TYPE_CHECKING:
    from ..machine import Machine


def marked(m: Machine, value: Value, obj: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The result of calling ``obj`` when the program said what that means; None when it did not."""
    mark = marks.mark_of(obj)
    if mark is None:
        function = marks.polyfill(obj)
        return None if function is None else m.call(FunctionValue(function, None), args, kwargs)
    name = getattr(obj, "__qualname__", None) or type(obj).__qualname__
    if mark == marks.IGNORED:
        return Constant(None)
    if mark == marks.NODE:
        return m.tracer.call("call_function", obj, tuple(args), kwargs, name)
    if mark == marks.CONSTANT:
        return _constant(m, obj, name, args, kwargs)
    if mark == marks.COMPILED:
        original = torch_private.original_attribute(obj)
        source = src.attribute(value.source or src.constant(obj, name), original)
        return m.call(m.tracer.lazy(getattr(obj, original), source), args, kwargs)
    if mark == marks.BREAK and classify.is_library_file(m.code.co_filename):
        return Constant(None)  # optimisers split graphs where the peer needs that
    if mark == marks.BREAK:
        said = plain(m.use(args[0])) if args else ""
        raise Break("FL111", what=f"{name}()", why=f": {said}" if isinstance(said, str) and said else "")
    if mark == marks.FORBIDDEN:
        raise UsageError(f"{name} cannot be called inside compiled code")
    raise Break("FL114", what=name, why=reason(obj))


def told(m: Machine, obj: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """The result of calling ``obj`` where torch's settings name it as one that only tells somebody something; else None."""
    ignored, reorderable = m.tracer.logging_functions
    if not (ignored or reorderable):
        return None
    if obj in ignored:
        return Constant(None)
    known = all(isinstance(m.use(v), (Constant, TensorValue)) for v in (*args, *kwargs.values()))
    if obj not in reorderable or not known or m.tracer.graphs.nested:
        return None
    given = SequenceValue([m.use(a) for a in args], tuple), DictValue({k: m.use(v) for k, v in kwargs.items()})
    m.tracer.effects.calls.append((_call, (Known(obj), *given)))
    return Constant(None)


_call = _hook.disabled(lambda function, args, kwargs: function(*args, **kwargs))


def reason(obj: Any) -> str:
    """The reason that was given to ``disable``, for the diagnostic."""
    said = getattr(obj, "__fuselens_reason__", None) or getattr(obj, "_torchdynamo_disable_msg", None)
    return f": {said}" if isinstance(said, str) else ""


def _constant(m: Machine, obj: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Calls ``obj`` now, on the real arguments; its result is part of the compiled code."""
    m.tracer.differs = f"what {name} gave"
    real = [_real(m, a, name) for a in args]
    real_kwargs = {k: _real(m, v, name) for k, v in kwargs.items()}
    try:
        result = obj(*real, **real_kwargs)
    except Exception as e:  # noqa: BLE001 - whatever it is, the program raises it again by itself
        raise Break("FL104", what=name, why=f"it raises {type(e).__name__}: {e}") from None
    return m.use(m.tracer.lazy(result, src.constant(result, f"{name}(…)")))


def _real(m: Machine, value: Value, name: str) -> Any:
    value = deep_use(m, value)
    known = value.value if isinstance(value, ObjectValue) else plain(value)
    if known is UNKNOWN:
        raise Break("FL104", what=name, why=f"its argument {value.describe()} is not known while tracing")
    return known


@rule(torch.compile)
def compiles(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``torch.compile(f)`` in compiled code: what it returns does what ``f`` does, and is compiled where it is called."""
    given = m.use((*args, *(v for k, v in kwargs.items() if k == "model"), Constant(None))[0])
    if not isinstance(given, (FunctionValue, MadeFunction, MethodValue, ObjectValue)):
        raise Break("FL104", what="torch.compile", why="what it is given is not known while tracing")
    return given


@rule(torch.compiler.is_dynamo_compiling)
def _true(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(True)


@rule(torch.compiler.cudagraph_mark_step_begin)
def _nothing(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(None)


@rule(torch.compiler.set_stance)
def _set_stance(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise UsageError("set_stance cannot be called inside compiled code")
