"""Context managers of torch: which are entered while tracing, and how the graph enters and leaves them."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.attention

from ... import torch_private
from .. import classify
from ..breaks import Break, raising
from ..tracing import sources as src
from ..tracing.torch_state import TorchState
from ..values import attributes
from ..values.algebra import (
    ActiveValue,
    Constant,
    DeviceSwitch,
    DictValue,
    FunctionSwitch,
    GradModeContext,
    LastingContext,
    ObjectValue,
    SequenceValue,
    TorchContext,
    Value,
)
from ..values.known import UNKNOWN, plain
from .table import rule
from .torch_calls import set_grad_enabled

if TYPE_CHECKING:
    from ..machine import Machine

_PROFILERS = (torch.autograd.profiler.record_function, torch.autograd.profiler.profile, torch.profiler.profile)


def _maker(m: Machine, function: Callable[..., Any], args: list[Value], kwargs: dict[str, Value]) -> Callable[[], Any]:
    given = [_argument(m, a) for a in args]
    keywords = {k: _argument(m, v) for k, v in kwargs.items()}
    if any(v is UNKNOWN for v in (*given, *keywords.values())):
        raise Break("FL113", what=function.__name__, why="its arguments are not known while tracing")
    return functools.partial(function, *given, **keywords)


def _argument(m: Machine, value: Value) -> Any:
    value = m.use(value)
    if isinstance(value, SequenceValue) and value.kind in (list, tuple):
        items = [_argument(m, v) for v in value.items]
        return UNKNOWN if any(i is UNKNOWN for i in items) else value.kind(items)
    if isinstance(value, ObjectValue) and value.source is not None:
        if classify.is_library_module(type(value.value).__module__):  # an enumeration implemented in C
            m.tracer.guard_identity(value.source, value.value)
            return value.value
    return plain(value)


def _is_entered(m: Machine) -> bool:
    """Whether the result of this call goes to a ``with`` statement at once."""
    return any(micro.op == "BEFORE_WITH" for micro in m.program.micros[m.next])


def _is_dropped(m: Machine) -> bool:
    """Whether nothing is done with the result of this call."""
    return any(micro.op == "POP_TOP" for micro in m.program.micros[m.next])


def _traced(function: Any) -> None:
    @rule(function)
    def make(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if function is torch.autograd.set_multithreading_enabled and not _is_entered(m):
            raise Break("FL113", what=function.__name__, why="the mode stays changed, so it is changed eagerly")
        return TorchContext(_maker(m, function, args, kwargs), active=function not in _PROFILERS)


for _function in (
    torch.autocast, torch.cpu.amp.autocast, torch.cuda.amp.autocast, torch.inference_mode, torch.nn.attention.sdpa_kernel,
    torch.autograd.set_multithreading_enabled, torch.backends.cuda.sdp_kernel, torch.backends.cudnn.flags,
    torch.backends.mkldnn.flags, *_PROFILERS,
):  # fmt: skip
    _traced(_function)


@rule(torch.set_grad_enabled)
def _set_grad_enabled(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    maker = _maker(m, torch.set_grad_enabled, args, kwargs)
    enabled = plain(m.use(args[0] if args else kwargs["mode"]))
    if _is_dropped(m):
        return _set_grad_mode(m, [Constant(enabled)], {})
    if not _is_entered(m) or type(enabled) is not bool:
        raise Break("FL104", what="torch.set_grad_enabled", why="the mode stays changed, so it is changed eagerly")
    return GradModeContext(enabled, maker)


@rule(torch_private.SET_GRAD_ENABLED)
def _set_grad_mode(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    enabled = plain(m.use(args[0])) if len(args) == 1 else UNKNOWN
    if type(enabled) is not bool or m.tracer.graphs.nested:
        raise Break("FL104", what="torch.set_grad_enabled", why="the mode stays changed, so it is changed eagerly")
    set_grad_enabled(m, enabled)
    return Constant(None)


class TokenValue(ActiveValue):
    """What setting a context variable gave: the value before; None where it was unset."""

    __slots__ = ("variable", "before")

    def __init__(self, variable: ObjectValue, before: Value | None) -> None:
        super().__init__(None)
        self.variable = variable
        self.before = before

    @property
    def python_type(self) -> type:
        return contextvars.Token


class _Value:
    """What a context variable holds, when guards are checked; ``_UNSET`` where that is nothing."""

    __name__ = "value_of"

    def __call__(self, variable: contextvars.ContextVar[Any]) -> Any:
        return variable.get(_UNSET)


class _Default:
    """The default that a context variable was made with."""

    __name__ = "default_of"

    def __call__(self, variable: contextvars.ContextVar[Any]) -> Any:
        return contextvars.Context().run(variable.get)


class _Unset:
    """Stands for no value, and is equal to itself alone."""


_UNSET, _VALUE, _DEFAULT = _Unset, _Value(), _Default()


def variable_method(
    m: Machine, variable: ObjectValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value | None:
    """A method of a ``ContextVar``: what is set is set again after the graph. None where there is no rule."""
    if variable.source is None or kwargs or m.tracer.graphs.nested:
        return None
    calls = m.tracer.effects.calls
    mine = [i for i, (function, given) in enumerate(calls) if function is _set_variable and given[0] is variable]
    if name == "set" and len(args) == 1:
        before = _value_of(m, variable, mine)
        calls.append((_set_variable, (variable, args[0])))
        return TokenValue(variable, before)
    token = m.use(args[0]) if name == "reset" and len(args) == 1 else None
    if isinstance(token, TokenValue) and token.variable is variable:
        if token.before is not None:
            calls.append((_set_variable, (variable, token.before)))
        else:
            calls[:] = [call for i, call in enumerate(calls) if i not in mine]  # it is as it was when the frame began
        return Constant(None)
    if name != "get" or len(args) > 1:
        return None
    found = _value_of(m, variable, mine)
    if found is not None:
        return found
    if args:
        return args[0]
    try:
        default = variable.value.get()
    except LookupError as error:
        raise raising(error) from None
    return m.use(m.tracer.lazy(default, src.applied(_DEFAULT, variable.source)))


def _value_of(m: Machine, variable: ObjectValue, mine: list[int]) -> Value | None:
    if mine:
        return m.use(m.tracer.effects.calls[mine[-1]][1][1])
    assert variable.source is not None
    found = variable.value.get(_UNSET)
    held = m.use(m.tracer.lazy(found, src.applied(_VALUE, variable.source)))
    return None if found is _UNSET else held


def _set_variable(variable: contextvars.ContextVar[Any], value: Any) -> None:
    variable.set(value)


class Changed:
    """A context in which a setting of torch is as ``change(*args)`` makes it; ``read`` gives the arguments that undo that."""

    def __init__(self, change: Callable[..., Any], read: Callable[[], tuple[Any, ...]], *args: Any) -> None:
        self.change, self.read, self.args = change, read, args
        self.before: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self.before = self.read()
        self.change(*self.args)

    def __exit__(self, *_: object) -> None:
        self.change(*self.before)


def _default_dtype() -> tuple[Any, ...]:
    return (torch.get_default_dtype(),)


def _determinism() -> tuple[Any, ...]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _use_deterministic(mode: bool, warn_only: bool = False) -> None:
    torch.use_deterministic_algorithms(mode, warn_only=warn_only)


def _stays(function: Any, change: Any, read: Any, guard: Callable[[TorchState], None]) -> None:
    """A call of ``function`` changes a setting from here on: in the graph, where it ends before the graph does, and after it."""

    @rule(function)
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        state = m.tracer.torch_state
        inside = any(not isinstance(c, LastingContext) for c in state.contexts)
        known = [plain(m.use(v)) for v in (*args, *kwargs.values())]
        if inside or UNKNOWN in known or m.tracer.graphs.nested or set(kwargs) - {"d", "mode", "warn_only"}:
            raise Break("FL113", what=function.__name__, why="the mode stays changed, so it is changed eagerly")
        guard(state)
        enter(m, LastingContext(functools.partial(Changed, change, read, *known)))
        m.tracer.effects.calls.append((change, tuple(Constant(v) for v in known)))
        return Constant(None)


_stays(torch.set_default_dtype, torch.set_default_dtype, _default_dtype, lambda state: state.guard_ambient(None))
_stays(torch.use_deterministic_algorithms, _use_deterministic, _determinism, lambda state: state.guard_determinism())


def context_of(m: Machine, value: Value) -> TorchContext | None:
    """The context that ``with value`` enters, if it is one of torch's; a fresh one for an existing autocast."""
    if isinstance(value, FunctionSwitch):
        return FunctionSwitch(value.maker, value.state)
    if isinstance(value, DeviceSwitch):
        return DeviceSwitch(value.device)
    if isinstance(value, TorchContext):
        return TorchContext(value.maker, value.active)
    if isinstance(value, Constant) and type(value.value) is torch.device:
        return DeviceSwitch(value.value)
    if isinstance(value, ObjectValue) and value.source is not None and _is_for_the_peer(value):
        m.tracer.guard_identity(value.source, value.value)
        return TorchContext(functools.partial(_itself, value.value), active=False)
    if isinstance(value, ObjectValue) and type(value.value) in (torch.autocast, torch.inference_mode):
        names = _SETTINGS[type(value.value)]
        settings = {k: plain(m.use(attributes.load(m, value, name))) for k, name in names.items()}
        return TorchContext(functools.partial(type(value.value), **settings))
    return None


def _is_for_the_peer(value: ObjectValue) -> bool:
    """Whether an existing context changes settings of torch.compile alone, as those around the checks of exported programs."""
    kind = type(value.value)
    known = (kind.__module__, kind.__qualname__) == ("torch._dynamo.decorators", "DynamoConfigPatchProxy")
    return known and value.source is not None


def _itself(context: Any) -> Any:
    """The context, which may be entered again."""
    return context


_SETTINGS: dict[type, dict[str, str]] = {
    torch.autocast: {
        "device_type": "device", "dtype": "fast_dtype", "enabled": "_enabled", "cache_enabled": "_cache_enabled",
    },
    torch.inference_mode: {"mode": "mode"},
}  # fmt: skip


def enter(m: Machine, context: TorchContext) -> None:
    """Enters ``context`` in the trace and in the graph."""
    tracer = m.tracer
    context.previous = context.enabled = torch.is_grad_enabled()
    if not context.active:
        context.real = contextlib.nullcontext()
        return
    if isinstance(context, FunctionSwitch):
        state = tracer.torch_state
        context.real, state.function_state = state.function_state, max(context.state, state.function_state)
        context.born = tracer.now
        tracer.torch_state.contexts.append(context)
        return
    if tracer.graphs.nested:
        raise Break("FL113", what=context.describe(), why="inside a higher-order operator")
    enter_context = torch_private.EnterContext(context.maker)
    try:
        context.real = enter_context()
    except Exception as e:  # noqa: BLE001 - eager raises it again
        raise Break("FL113", what=context.describe(), why=f"{type(e).__name__}: {e}") from None
    context.enabled = torch.is_grad_enabled()
    context.node = tracer.graphs.current.call_function(enter_context)
    context.node.meta.update(val=None, span=tracer.span)
    context.born = tracer.now
    tracer.torch_state.contexts.append(context)


def given(context: TorchContext, value: Value) -> Value:
    """What ``with value as name`` gives the name, where ``value`` enters ``context``."""
    if isinstance(context, DeviceSwitch):
        return Constant(context.device)
    made_by = getattr(context.maker, "func", None)
    if made_by in (torch.nn.attention.sdpa_kernel, torch.backends.cuda.sdp_kernel):
        return DictValue({})
    return value if made_by in _GIVING_THEMSELVES else Constant(None)


_GIVING_THEMSELVES = (torch.autocast, torch.cpu.amp.autocast, torch.cuda.amp.autocast, *_PROFILERS, _itself)


def leave(m: Machine, context: TorchContext) -> None:
    """Leaves ``context``, the innermost one."""
    if not context.active:
        return
    tracer = m.tracer
    assert tracer.torch_state.contexts and tracer.torch_state.contexts[-1] is context, (
        "contexts are left in the order of `with`"
    )
    tracer.torch_state.contexts.pop()
    if isinstance(context, FunctionSwitch):
        tracer.torch_state.function_state = context.real
        return
    tracer.torch_state.exit_context(context, tracer.span)


@rule(torch_private.ANNOTATE)
def _annotate(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Notes on the nodes of torch's own tracers."""
    return TorchContext(contextlib.nullcontext, active=False)


def _reads_autocast(function: Any) -> None:
    @rule(function)
    def read(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        m.tracer.torch_state.guard_autocast()
        return Constant(_maker(m, function, args, kwargs)())


for _function in (
    torch.is_autocast_enabled, torch.get_autocast_dtype, torch.is_autocast_cache_enabled, torch.is_autocast_cpu_enabled,
    torch.get_autocast_cpu_dtype, torch.get_autocast_gpu_dtype,
):  # fmt: skip
    _reads_autocast(_function)
