"""What a call means: which handler applies to which callable, argument binding, and inlining.

:data:`CALLED` has a handler for each kind of callable. Those of objects known by identity are in ``known_calls.py``, those of instances
in ``object_calls.py``; methods of builtin values have a table of their own, in ``methods.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

from ... import torch_private
from .. import classify
from ..arrays import numpy_calls
from ..breaks import Break, Raised, raising
from ..hook import _hook
from ..polyfills import python as polyfills
from ..program import draws
from ..rules import contexts, torch_function
from ..rules.compiler import marked, told
from ..rules.table import CODE_RULES, NAMED_RULES, RULES
from ..rules.torch_calls import set_grad_enabled
from ..tracing import sources as src
from ..tracing import wrapping
from ..tracing.symbols import DrawnWhole
from ..tracing.wrapping import CONSTANT_TYPES
from ..values.algebra import (
    ActiveValue,
    CellValue,
    Constant,
    ContextExit,
    DictValue,
    FunctionValue,
    GeneratorValue,
    GradModeContext,
    Known,
    MadeFunction,
    MethodValue,
    NamedMethod,
    PartialValue,
    SequenceValue,
    TensorValue,
    TorchContext,
    Value,
)
from ..values.iterators import iterate
from ..values.kinds import PerKind
from .methods import METHODS

if TYPE_CHECKING:
    from ..machine import Machine


def call(m: Machine, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of calling ``function``; raises :class:`Break` when the call must run in plain Python."""
    return CALLED[type(function)](m, function, args, kwargs)


def _unknown(m: Machine, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise Break("FL104", what=function.describe(), why="it is not a function that is known while tracing")


CALLED: PerKind[Value] = PerKind(_unknown)


@CALLED.of(MethodValue)
def _call_method(m: Machine, value: MethodValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return call(m, m.use(value.function), [value.receiver, *args], kwargs)


@CALLED.of(NamedMethod)
def _call_named_method(m: Machine, value: NamedMethod, args: list[Value], kwargs: dict[str, Value]) -> Value:
    receiver = m.use(value.receiver)
    return METHODS[type(receiver)](m, receiver, value.name, args, kwargs)


@CALLED.of(PartialValue)
def _call_partial(m: Machine, value: PartialValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return call(m, value.function, [*value.args, *args], {**value.kwargs, **kwargs})


@CALLED.of(ActiveValue)
def _call_active(m: Machine, value: ActiveValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return value.call(m, args, kwargs) or _unknown(m, value, args, kwargs)


@CALLED.of(ContextExit)
def _leave_context(m: Machine, value: ContextExit, args: list[Value], kwargs: dict[str, Value]) -> Value:
    context = value.context
    value.exited = True
    if isinstance(context, TorchContext):
        contexts.leave(m, context)
        return Constant(None)
    set_grad_enabled(m, bool(context.previous))
    if m.contexts and m.contexts[-1] is context:
        m.contexts.pop()
    return Constant(None)


@CALLED.of(GradModeContext, TorchContext)
def _decorate(m: Machine, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A context as a decorator."""
    if len(args) == 1 and not kwargs and _runs_as_a_whole(m.use(args[0])):
        return m.call(Known(polyfills.in_context), [value, args[0]], {})
    return _unknown(m, value, args, kwargs)


def _runs_as_a_whole(value: Value) -> bool:
    """Whether the decorators that torch's contexts are wrap it so that it runs inside as a whole: a function that yields nothing."""
    if isinstance(value, FunctionValue):
        code = value.function.__code__
    elif isinstance(value, MadeFunction):
        code = value.code
    else:
        return False
    return not code.co_flags & (inspect.CO_GENERATOR | _COROUTINES)


@CALLED.of(Constant, SequenceValue, DictValue, TensorValue)
def _not_callable(m: Machine, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise raising(TypeError(f"'{value.python_type.__name__}' object is not callable"))


# --- Python functions --------------------------------------------------------------------------------------------


@CALLED.of(MadeFunction)
def _call_made_function(m: Machine, value: MadeFunction, args: list[Value], kwargs: dict[str, Value]) -> Value:
    defaults = iterate(m, m.use(value.defaults)) if value.defaults else []
    bound = bind_arguments(m, value.code, args, kwargs, defaults, _dict_items(m, value.kwdefaults))
    callee = Callee(value, value.code, value.globals, value.globals_source, value.closure)
    return callee.run(m, bound, args, kwargs)


@CALLED.of(FunctionValue)
def _call_function(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    ruled = _by_rule(m, value, args, kwargs)
    return ruled if ruled is not None else _inlined(m, value, args, kwargs)


def _by_rule(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """What a rule makes of a function's call, or the node that records it; None when the function is traced."""
    function = value.function
    said = told(m, function, args, kwargs)
    if said is not None:
        return said
    in_graph = classify.is_graph_callable(function)
    asked = in_graph and torch_function.concerned(m, args, kwargs)
    if function in RULES and not asked:
        return RULES[function](m, args, kwargs)
    if function.__code__ in CODE_RULES:
        return CODE_RULES[function.__code__](m, value, args, kwargs)
    named = NAMED_RULES.get((function.__module__, function.__qualname__))
    if named is not None and (result := named(m, value, args, kwargs)) is not None:
        return result
    if torch_private.is_size_mark(function):
        return Constant(None)
    code = classify.breaking_code(function)
    if code is not None and (raw := classify.unwrapped(function)) in RULES:
        return RULES[raw](m, args, kwargs)
    if code is not None:
        raise Break(code, what=function.__qualname__, why="it must run each time")
    result = marked(m, value, function, args, kwargs)
    if result is None:
        result = numpy_calls.called(m, function, args, kwargs, f"{function.__module__}.{function.__qualname__}")
    if result is not None:
        return result
    if in_graph and m.tracer.are_arguments([*args, *kwargs.values()]) and not asked:
        return m.tracer.call("call_function", function, tuple(args), kwargs, torch_name(function))
    return None


def _inlined(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of running an existing function's code."""
    function, code, source = value.function, value.function.__code__, value.source
    if not classify.may_inline(code):
        raise Break("FL104", what=function.__qualname__, why="it belongs to the compiler itself")
    if code.co_flags & _COROUTINES:
        raise Break("FL120", what=f"coroutine `{function.__qualname__}`", why="coroutines run eagerly")
    globals_source = _globals_of(m, value)
    if source is not None and len(args) < code.co_argcount:  # which parameters the defaults are of
        _guard_number(m, src.part(source, _hook.FUNC_DEFAULTS, "__defaults__"), function.__defaults__)
    closure = closure_of(m, value)
    defaults, kwdefaults = _defaults(m, value)
    bound = bind_arguments(m, code, args, kwargs, defaults, kwdefaults, function.__qualname__)
    if (drawn := draws.whole(m, function, bound)) is not None:
        return drawn
    callee = Callee(value, m.tracer.overlay.code(code), function.__globals__, globals_source, closure)
    before = len(m.tracer.graphs.drawn)
    try:
        return callee.run(m, bound, args, kwargs)
    except Break:
        if draws.may_be_whole(m, function, before):
            raise DrawnWhole from None
        raise


def _globals_of(m: Machine, value: FunctionValue) -> src.Source:
    """Where an existing function's globals are found; guards that they are the ones that it has now."""
    function, source = value.function, value.source
    own = function.__globals__ is m.tracer.globals
    if source is not None and (not own or source.kind != _hook.ROOT_CONST):
        whose = "the caller's" if own else f"that of {function.__module__}"
        m.tracer.guard(
            src.part(source, _hook.FUNC_GLOBALS, "__globals__"), _hook.IS, function.__globals__, name="GLOBALS",
            text=f"{source}.__globals__ is {whose}",
        )  # fmt: skip
    if own:
        return src.frame_globals()
    return src.constant(function.__globals__, f"globals of {function.__module__}")


def _defaults(m: Machine, value: FunctionValue) -> tuple[list[Value], dict[str, Value]]:
    """The defaults of an existing function's parameters, and of those by keyword only."""
    function = value.function
    base = value.source or src.constant(function, function.__qualname__)
    defaults = [
        m.tracer.lazy(d, src.item(src.part(base, _hook.FUNC_DEFAULTS, "__defaults__"), i))
        if value.source
        else _default(m, d, base, i)
        for i, d in enumerate(function.__defaults__ or ())
    ]
    kwdefaults = {
        k: m.tracer.lazy(d, src.dict_item(src.part(base, _hook.FUNC_KWDEFAULTS, "__kwdefaults__"), k))
        for k, d in (function.__kwdefaults__ or {}).items()
    }
    return defaults, kwdefaults


def _default(m: Machine, default: Any, base: src.Source, position: int) -> Value:
    if type(default) in CONSTANT_TYPES:
        return Constant(default)
    return m.tracer.lazy(default, src.item(src.part(base, _hook.FUNC_DEFAULTS, "__defaults__"), position))


def _guard_number(m: Machine, source: src.Source, items: tuple[Any, ...] | None) -> None:
    """Guards how many items there are; None stands for none."""
    if items is None:
        m.tracer.guard_identity(source, None)
    else:
        m.tracer.guard(source, _hook.LENGTH_IS, len(items), name="LENGTH", text=f"len({source}) == {len(items)}")


def closure_of(m: Machine, value: FunctionValue) -> list[CellValue]:
    """The cells that an existing function closes over."""
    function = value.function
    closure = src.part(value.source or src.constant(function, function.__qualname__), _hook.FUNC_CLOSURE, "__closure__")
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [wrapping.cell(m.tracer, cell, name, src.item(closure, i)) for i, (name, cell) in enumerate(cells)]


def _dict_items(m: Machine, value: Value | None) -> dict[str, Value]:
    if value is None:
        return {}
    used = m.use(value)
    return dict(used.items) if isinstance(used, DictValue) else {}


def bind_arguments(
    m: Machine,
    code: types.CodeType,
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: list[Value],
    kwdefaults: dict[str, Value],
    qualname: str | None = None,
) -> dict[str, Value]:
    """Python's argument binding, on tracked values. ``qualname`` is the function's, where it is not its code's."""
    mismatch = functools.partial(
        _mismatch, code, qualname or code.co_qualname, len(args), tuple(kwargs), len(defaults), tuple(kwdefaults)
    )
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:positional], args, strict=False))
    rest = args[positional:]
    extra: dict[str, Value] = {}
    accepted = names[code.co_posonlyargcount : positional + keyword_only]
    for name, value in kwargs.items():
        if name in accepted:
            if name in bound:
                raise mismatch()
            bound[name] = value
        else:
            extra[name] = value
    first_default = positional - len(defaults)
    for i, name in enumerate(names[:positional]):
        if name not in bound:
            if i < first_default:
                raise mismatch()
            bound[name] = defaults[i - first_default]
    for name in names[positional : positional + keyword_only]:
        if name not in bound:
            if name not in kwdefaults:
                raise mismatch()
            bound[name] = kwdefaults[name]
    slot = positional + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[slot]] = SequenceValue(rest, tuple)
        slot += 1
    elif rest:
        raise mismatch()
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[slot]] = DictValue(extra)
    elif extra:
        raise mismatch()
    return bound


def _mismatch(
    code: types.CodeType,
    qualname: str,
    n_args: int,
    keywords: tuple[str, ...],
    n_defaults: int,
    kwdefaults: tuple[str, ...],
) -> Raised | Break:
    """The TypeError of a call that does not fit the signature, raised by an empty function of that signature."""
    variadic = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    empty = _nothing.__code__.replace(
        co_argcount=code.co_argcount, co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount, co_varnames=code.co_varnames[:n], co_nlocals=n,
        co_flags=(_nothing.__code__.co_flags & ~variadic) | (code.co_flags & variadic),
        co_name=code.co_name, co_qualname=code.co_qualname,
    )  # fmt: skip
    function = types.FunctionType(empty, {}, code.co_name, (None,) * n_defaults)
    function.__qualname__ = qualname
    function.__kwdefaults__ = dict.fromkeys(kwdefaults)
    try:
        function(*(None,) * n_args, **dict.fromkeys(keywords))
    except TypeError as e:
        return raising(e)
    return Break("FL104", what=code.co_qualname, why="its arguments do not fit")


def _nothing() -> None: ...


_COROUTINES = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


@dataclasses.dataclass(slots=True)
class Callee:
    """A Python function that is called: what a frame of it needs besides its arguments."""

    function: Value
    code: types.CodeType
    globals: dict[str, Any]
    globals_source: src.Source
    closure: list[CellValue]

    def run(self, m: Machine, bound: dict[str, Value], args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The result of a call, whose frame runs on a machine of its own; a generator's is suspended at once."""
        from ..machine import Machine, too_deep

        if self.code.co_flags & _COROUTINES:
            raise Break("FL120", what=f"coroutine `{self.code.co_qualname}`", why="coroutines run eagerly")
        frame = Machine(m.tracer, self.code, bound, self.closure, self.globals, self.globals_source, m)
        if self.code.co_flags & inspect.CO_GENERATOR:
            made = GeneratorValue(frame, (self.function, list(args), dict(kwargs)), m.tracer.now)
            m.tracer.generators.append(made)
            return made
        try:
            before = m.tracer.graphs.operations
            frame.run()
            if m.depth == 0:
                m.most_in_call = max(m.most_in_call, m.tracer.graphs.operations - before)
        except RecursionError:
            raise too_deep(self.code) from None
        assert frame.result is not None
        return frame.result


def torch_name(obj: Any) -> str:
    name = getattr(obj, "__name__", repr(obj))
    module = getattr(obj, "__module__", None) or "torch"
    return f"torch.nn.functional.{name}" if module.startswith(("torch.nn", "torch._jit")) else f"torch.{name}"
