"""Calls of standard library functions whose result is known while tracing, or that tracing would not get through."""

from __future__ import annotations

import inspect
import types
from typing import TYPE_CHECKING

from . import _hook, attributes
from . import sources as src
from .breaks import Break
from .rules import rule
from .values import FunctionValue, Known, MethodValue, Value

if TYPE_CHECKING:
    from .machine import Machine


@rule(inspect.signature)
def _signature(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The signature of an existing function; guards its defaults and what it wraps."""
    value = m.use(args[0])
    function = m.use(value.function) if isinstance(value, MethodValue) else value
    if not isinstance(function, FunctionValue) or len(args) != 1 or kwargs:
        raise Break("FL104", what="inspect.signature", why=f"of {value.describe()}")
    described = function
    while described.source is not None:
        for kind, part in ((_hook.FUNC_DEFAULTS, "__defaults__"), (_hook.FUNC_KWDEFAULTS, "__kwdefaults__")):
            m.tracer.guard_identity(src.part(described.source, kind, part), getattr(described.function, part))
        if attributes.own_attribute(m, described, "__signature__") is not None:
            raise Break("FL104", what="inspect.signature", why=f"{described.describe()} has one of its own")
        wrapped = attributes.own_attribute(m, described, "__wrapped__")
        if not isinstance(wrapped, FunctionValue):
            break
        described = wrapped
    if isinstance(value, MethodValue):
        return Known(inspect.signature(types.MethodType(function.function, object())))
    return Known(inspect.signature(function.function))
