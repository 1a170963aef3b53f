"""What a call means: which rule applies to which callable, argument binding, and inlining."""

from __future__ import annotations

import functools
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from .. import torch_private
from . import _hook, attributes, classify
from . import sources as src
from .breaks import Break
from .iterators import iterate
from .known import fold
from .methods import named_method
from .operators import operate
from .rules import RULES
from .torch_rules import set_grad_enabled
from .tracer import CONSTANT_TYPES
from .values import (
    CellValue,
    Constant,
    ContextExit,
    DictValue,
    FunctionValue,
    Known,
    MadeFunction,
    MethodValue,
    NamedMethod,
    ObjectValue,
    SequenceValue,
    SymbolValue,
    TensorValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine


def call(m: Machine, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of calling ``function``; raises :class:`Break` when the call must run in plain Python."""
    if isinstance(function, MethodValue):
        return call(m, m.use(function.function), [function.receiver, *args], kwargs)
    if isinstance(function, FunctionValue):
        return _function(m, function, args, kwargs)
    if isinstance(function, MadeFunction):
        return inline(
            m, function.code, function.globals, function.globals_source, function.closure,
            bind_arguments(
                m, function.code, args, kwargs,
                iterate(m, m.use(function.defaults)) if function.defaults else [],
                _dict_items(m, function.kwdefaults),
            ),
        )  # fmt: skip
    if isinstance(function, NamedMethod):
        return named_method(m, function, args, kwargs)
    if isinstance(function, Known):
        return _known(m, function, args, kwargs)
    if isinstance(function, ObjectValue):
        return _object(m, function, args, kwargs)
    if isinstance(function, ContextExit):
        context = function.context
        set_grad_enabled(m, bool(context.previous))
        if m.contexts and m.contexts[-1] is context:
            m.contexts.pop()
        return Constant(None)
    raise Break("FL104", what=function.describe(), why="it is not a function that is known while tracing")


def _dict_items(m: Machine, value: Value | None) -> dict[str, Value]:
    if value is None:
        return {}
    used = m.use(value)
    return dict(used.items) if isinstance(used, DictValue) else {}


def _function(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function = value.function
    if function in RULES:
        return RULES[function](m, args, kwargs)
    code = classify.breaking_code(function)
    if code is not None:
        raise Break(code, what=function.__qualname__, why="it must run each time")
    special = getattr(function, "__fuselens_special__", None)
    if special == "graph_break":
        raise Break("FL111")
    if special == "is_compiling":
        return Constant(True)
    excluded = torch_private.disabled_function(function)
    if excluded is not None:
        _hook.skip(excluded.__code__, recursive=True)
        raise Break("FL114", what=function.__qualname__)
    if classify.is_graph_callable(function):
        return m.tracer.call("call_function", function, tuple(args), kwargs, _torch_name(function))
    if not classify.may_inline(function.__code__):
        raise Break("FL104", what=function.__qualname__, why="it belongs to the compiler itself")
    if function.__code__.co_flags & (
        inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
    ):
        raise Break("FL104", what=function.__qualname__, why="generators and coroutines run eagerly")
    source = value.source
    globals_source = (
        src.frame_globals()
        if function.__globals__ is m.tracer.globals
        else src.constant(function.__globals__, f"globals of {function.__module__}")
    )
    if source is not None and function.__globals__ is not m.tracer.globals:
        m.tracer.guard(
            src.part(source, _hook.FUNC_GLOBALS, "__globals__"), _hook.IS, function.__globals__, name="GLOBALS",
            text=f"{source}.__globals__ is that of {function.__module__}",
        )  # fmt: skip
    elif source is not None and source.kind != _hook.ROOT_CONST:
        m.tracer.guard(
            src.part(source, _hook.FUNC_GLOBALS, "__globals__"), _hook.IS, function.__globals__, name="GLOBALS",
            text=f"{source}.__globals__ is the caller's",
        )  # fmt: skip
    base = source or src.constant(function, function.__qualname__)
    closure: list[CellValue] = []
    for i, cell in enumerate(function.__closure__ or ()):
        name = function.__code__.co_freevars[i]
        cell_source = src.item(src.part(base, _hook.FUNC_CLOSURE, "__closure__"), i)
        closure.append(m.tracer.cell(cell, name, cell_source))
    defaults = [
        m.tracer.lazy(d, src.item(src.part(base, _hook.FUNC_DEFAULTS, "__defaults__"), i))
        if source
        else _default(m, d, base, i)
        for i, d in enumerate(function.__defaults__ or ())
    ]
    kwdefaults = {
        k: m.tracer.lazy(d, src.dict_item(src.part(base, _hook.FUNC_KWDEFAULTS, "__kwdefaults__"), k))
        for k, d in (function.__kwdefaults__ or {}).items()
    }
    bound = bind_arguments(m, function.__code__, args, kwargs, defaults, kwdefaults)
    return inline(m, function.__code__, function.__globals__, globals_source, closure, bound)


def _default(m: Machine, default: Any, base: src.Source, position: int) -> Value:
    if type(default) in CONSTANT_TYPES:
        return Constant(default)
    return m.tracer.lazy(default, src.item(src.part(base, _hook.FUNC_DEFAULTS, "__defaults__"), position))


def bind_arguments(
    m: Machine,
    code: types.CodeType,
    args: list[Value],
    kwargs: dict[str, Value],
    defaults: list[Value],
    kwdefaults: dict[str, Value],
) -> dict[str, Value]:
    """Python's argument binding, on tracked values. A mismatch breaks the graph, so that eager raises its TypeError."""
    names = code.co_varnames
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    bound: dict[str, Value] = dict(zip(names[:positional], args, strict=False))
    rest = args[positional:]
    extra: dict[str, Value] = {}
    accepted = names[code.co_posonlyargcount : positional + keyword_only]
    for name, value in kwargs.items():
        if name in accepted:
            if name in bound:
                raise _mismatch(code, f"multiple values for argument {name!r}")
            bound[name] = value
        else:
            extra[name] = value
    first_default = positional - len(defaults)
    for i, name in enumerate(names[:positional]):
        if name not in bound:
            if i < first_default:
                raise _mismatch(code, f"missing argument {name!r}")
            bound[name] = defaults[i - first_default]
    for name in names[positional : positional + keyword_only]:
        if name not in bound:
            if name not in kwdefaults:
                raise _mismatch(code, f"missing keyword argument {name!r}")
            bound[name] = kwdefaults[name]
    slot = positional + keyword_only
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[slot]] = SequenceValue(rest, tuple)
        slot += 1
    elif rest:
        raise _mismatch(code, "too many positional arguments")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[slot]] = DictValue(extra)
    elif extra:
        raise _mismatch(code, f"unexpected keyword argument {next(iter(extra))!r}")
    return bound


def _mismatch(code: types.CodeType, why: str) -> Break:
    return Break("FL104", what=code.co_qualname, why=why)


def inline(
    m: Machine,
    code: types.CodeType,
    globals_: dict[str, Any],
    globals_source: src.Source,
    closure: list[CellValue],
    bound: dict[str, Value],
) -> Value:
    """Runs a callee on a machine of its own and gives its result."""
    from .machine import Machine

    callee = Machine(m.tracer, code, bound, closure, globals_, globals_source, m)
    callee.run()
    assert callee.result is not None
    return callee.result


def _known(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    try:
        found = RULES.get(obj)
    except TypeError:
        found = None
    if found is not None:
        return found(m, args, kwargs)
    code = classify.breaking_code(obj)
    if code is not None:
        raise Break(code, what=value.describe(), why="it must run each time")
    args = [m.use(a) for a in args]
    kwargs = {k: m.use(v) for k, v in kwargs.items()}
    try:
        foldable, tensor_operator = obj in classify.FOLDED, obj in classify.TENSOR_OPERATORS
    except TypeError:
        foldable = tensor_operator = False
    if tensor_operator and any(isinstance(a, (TensorValue, SymbolValue)) for a in args):
        return operate(m, obj, args, kwargs)
    if foldable:
        return fold(m, obj, args, kwargs, value.describe())
    if classify.is_graph_callable(obj):
        return m.tracer.call("call_function", obj, tuple(args), kwargs, _torch_name(obj))
    if isinstance(obj, (types.MethodDescriptorType, types.WrapperDescriptorType)) and args:
        return named_method(m, NamedMethod(args[0], obj.__name__), args[1:], kwargs)
    if isinstance(obj, type):
        return _construct(m, obj, args, kwargs)
    if type(obj) is types.FunctionType:
        return _function(m, FunctionValue(obj, None), args, kwargs)
    if type(obj) is types.MethodType and type(obj.__func__) is types.FunctionType and classify.is_graph_callable(obj):
        return m.tracer.call("call_function", obj, tuple(args), kwargs, _torch_name(obj))
    why = "it is implemented in C" if isinstance(obj, types.BuiltinFunctionType) else "there is no rule for it"
    raise Break("FL104", what=value.describe(), why=why)


def _construct(m: Machine, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if hasattr(cls, "_fields") and issubclass(cls, tuple):
        fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        bound = dict(zip(fields, args, strict=False)) | kwargs
        defaults = getattr(cls, "_field_defaults", {})
        if set(bound) | set(defaults) >= set(fields) and all(type(defaults.get(f)) in CONSTANT_TYPES for f in fields):
            return SequenceValue([bound.get(f) or Constant(defaults[f]) for f in fields], cls)
    if issubclass(cls, BaseException):
        raise Break("FL104", what=cls.__qualname__, why="exceptions are made eagerly")
    raise Break("FL104", what=cls.__qualname__, why="objects are created eagerly")


def _object(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    kind = type(obj)
    method, place = attributes.class_member(m, kind, "__call__")
    if issubclass(kind, torch.nn.Module) and method is torch.nn.Module.__dict__["__call__"]:
        return _module(m, value, args, kwargs)
    if issubclass(kind, functools.partial):
        assert value.source is not None
        function = m.use(m.tracer.lazy(obj.func, src.generic_attribute(value.source, "func")))
        head = iterate(m, m.use(m.tracer.lazy(obj.args, src.generic_attribute(value.source, "args"))))
        base = _dict_items(m, m.tracer.lazy(obj.keywords, src.generic_attribute(value.source, "keywords")))
        return call(m, function, [*head, *args], {**base, **kwargs})
    if issubclass(kind, _hook.disabled):
        raise Break("FL114", what=getattr(obj, "__qualname__", "the function"))
    if issubclass(kind, _hook.Region) and type(obj.fn) in (types.FunctionType, types.MethodType):
        # a compiled function called from compiled code is inlined like any other
        assert value.source is not None
        return call(m, m.use(m.tracer.lazy(obj.fn, src.generic_attribute(value.source, "fn"))), args, kwargs)
    if type(method) is types.FunctionType:
        return call(m, attributes.bind(m, method, value, "__call__", place), args, kwargs)
    raise Break("FL104", what=kind.__qualname__, why="its call is implemented in C")


_HOOK_TABLES = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOK_TABLES = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip


def _module(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``module(...)``: its forward, when no hook is registered; hooks run eagerly."""
    obj, source = value.value, value.source
    assert source is not None
    tables = torch.nn.modules.module.__dict__
    if any(vars(obj)[t] for t in _HOOK_TABLES) or any(tables[t] for t in _GLOBAL_HOOK_TABLES):
        raise Break("FL104", what=f"{type(obj).__name__} with hooks", why="module hooks run eagerly")
    if vars(obj).get("_compiled_call_impl") is not None:
        raise Break("FL104", what=type(obj).__name__, why="it is compiled by torch.compile already")
    for table in _HOOK_TABLES:
        m.tracer.guard(
            src.attribute(source, table), _hook.LENGTH_IS, 0, name="HOOKS", text=f"{source} has no hooks in {table}"
        )
    for table in _GLOBAL_HOOK_TABLES:
        base = src.constant(tables[table], table)
        m.tracer.guard(base, _hook.LENGTH_IS, 0, name="HOOKS", text=f"no global module hooks in {table}")
    return call(m, attributes.load(m, value, "forward"), args, kwargs)


def _torch_name(obj: Any) -> str:
    name = getattr(obj, "__name__", repr(obj))
    module = getattr(obj, "__module__", None) or "torch"
    return f"torch.nn.functional.{name}" if module.startswith(("torch.nn", "torch._jit")) else f"torch.{name}"
