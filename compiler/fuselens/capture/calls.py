"""What a call means: which rule applies to which callable, and the operators, subscripts and iteration they share."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from .. import torch_private
from . import _hook, attributes, classify
from . import sources as src
from .breaks import Break, FrameUnsupported
from .tracer import CONSTANT_TYPES
from .values import (
    CellValue,
    CombinedIterator,
    Constant,
    ContextExit,
    DictValue,
    DictView,
    FunctionValue,
    GradModeContext,
    IteratorValue,
    Known,
    Lazy,
    MadeFunction,
    MethodValue,
    NamedMethod,
    ObjectValue,
    SequenceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    TruthValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine

UNKNOWN = object()
Rule = Callable[["Machine", list[Value], dict[str, Value]], Value]
RULES: dict[Any, Rule] = {}
_INPLACE = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv, operator.ifloordiv: operator.floordiv, operator.imod: operator.mod,
    operator.ipow: operator.pow, operator.imatmul: operator.matmul, operator.iand: operator.and_,
    operator.ior: operator.or_, operator.ixor: operator.xor, operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}  # fmt: skip


def rule(*callables: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for c in callables:
            RULES[c] = function
        return function

    return register


# --- dispatch ---------------------------------------------------------------------------------------------------


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
    if isinstance(obj, torch.nn.Module) and method is torch.nn.Module.__dict__["__call__"]:
        return _module(m, value, args, kwargs)
    if isinstance(obj, functools.partial):
        assert value.source is not None
        function = m.use(m.tracer.lazy(obj.func, src.generic_attribute(value.source, "func")))
        head = iterate(m, m.use(m.tracer.lazy(obj.args, src.generic_attribute(value.source, "args"))))
        base = _dict_items(m, m.tracer.lazy(obj.keywords, src.generic_attribute(value.source, "keywords")))
        return call(m, function, [*head, *args], {**base, **kwargs})
    if isinstance(obj, _hook.disabled):
        raise Break("FL114", what=getattr(obj, "__qualname__", "the function"))
    if isinstance(obj, _hook.Region) and type(obj.fn) in (types.FunctionType, types.MethodType):
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


# --- operators --------------------------------------------------------------------------------------------------


def plain(value: Value) -> Any:
    """The Python object that a value stands for when every part of it is known; else :data:`UNKNOWN`."""
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, Known):
        return value.value
    if isinstance(value, SequenceValue) and value.kind in (list, tuple, torch.Size):
        items: list[Any] = [plain(v) if not isinstance(v, Lazy) else UNKNOWN for v in value.items]
        return UNKNOWN if any(i is UNKNOWN for i in items) else value.kind(items)
    if isinstance(value, DictValue):
        pairs = {k: plain(v) if not isinstance(v, Lazy) else UNKNOWN for k, v in value.items.items()}
        return UNKNOWN if any(v is UNKNOWN for v in pairs.values()) else value.kind(pairs)
    if isinstance(value, DictView):
        if value.which == "keys":
            return dict.fromkeys(value.mapping.items).keys()
        mapping = plain(value.mapping)
        return UNKNOWN if mapping is UNKNOWN else getattr(mapping, value.which)()
    return UNKNOWN


def from_plain(obj: Any, what: str) -> Value:
    """The inverse of :func:`plain` for results of folded calls."""
    if type(obj) in (list, tuple, torch.Size):
        return SequenceValue([from_plain(v, what) for v in obj], type(obj))
    if type(obj) is dict:
        return DictValue({k: from_plain(v, what) for k, v in obj.items()})
    if type(obj) in CONSTANT_TYPES or type(obj) is slice:
        return Constant(obj)
    if isinstance(obj, (torch.finfo, torch.iinfo, type)):
        return Known(obj)
    raise Break("FL104", what=what, why=f"it returns a {type(obj).__name__}")


def _deep_use(m: Machine, value: Value) -> Value:
    value = m.use(value)
    if isinstance(value, SequenceValue):
        value.items[:] = [_deep_use(m, v) for v in value.items]  # the same list: iterators look at it
    return value


def fold(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value:
    """Computes a pure builtin while tracing. Tensors break the graph; an exception is left to eager."""
    known = [plain(_deep_use(m, a)) for a in args]
    known_kwargs = {k: plain(_deep_use(m, v)) for k, v in kwargs.items()}
    if any(k is UNKNOWN for k in (*known, *known_kwargs.values())):
        unknown = next(
            a for a, k in zip((*args, *kwargs.values()), (*known, *known_kwargs.values()), strict=True) if k is UNKNOWN
        )
        if isinstance(m.use(unknown), TensorValue):
            raise Break("FL102", what=f"{what}({unknown.describe()})")
        raise Break("FL104", what=what, why=f"its argument {unknown.describe()} is not known while tracing")
    try:
        result = function(*known, **known_kwargs)
    except Exception as e:  # noqa: BLE001 - whatever it is, the program raises it again by itself
        raise Break("FL104", what=what, why=f"it raises {type(e).__name__}: {e}") from None
    return from_plain(result, what)


def operate(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    """An operator on values: a node when a tensor is involved, else computed."""
    kwargs = kwargs or {}
    args = [m.use(a) for a in args]
    if any(isinstance(a, TruthValue) for a in args):
        raise Break("FL102", what="bool(tensor)")
    name = getattr(function, "__name__", str(function))
    if any(isinstance(a, (TensorValue, SymbolValue)) for a in args):
        return m.tracer.call("call_function", function, tuple(args), kwargs, f"operator {name}")
    return fold(m, function, args, kwargs, f"operator {name}")


def binary(m: Machine, function: Any, left: Value, right: Value, symbol: str) -> Value:
    """``left symbol right``."""
    if isinstance(left, (TensorValue, SymbolValue)) or isinstance(right, (TensorValue, SymbolValue)):
        if not isinstance(left, (SequenceValue, DictValue, ObjectValue)) and not isinstance(
            right, (SequenceValue, DictValue, ObjectValue)
        ):
            return operate(m, function, [left, right])
    if isinstance(left, SequenceValue):
        if symbol in ("+", "+=") and isinstance(right, SequenceValue) and (left.kind, right.kind) in _JOINABLE:
            if symbol == "+=" and left.kind is list:
                m.tracer.mutate(left)
                left.items.extend(right.items)
                return left
            return SequenceValue(
                [*left.items, *right.items], torch.Size if torch.Size in (left.kind, right.kind) else left.kind
            )
        if (
            symbol == "*"
            and isinstance(right, Constant)
            and type(right.value) is int
            and left.kind in (list, tuple, torch.Size)
        ):
            return SequenceValue(left.items * right.value, left.kind)
    elif symbol == "*" and isinstance(right, SequenceValue) and isinstance(left, Constant) and type(left.value) is int:
        return SequenceValue(right.items * left.value, right.kind)
    elif symbol == "|" and isinstance(left, DictValue) and isinstance(right, DictValue):
        return DictValue({**left.items, **right.items})
    for a, b, prefix in ((left, right, ""), (right, left, "r")):
        if isinstance(a, ObjectValue):
            name = f"__{prefix}{_INPLACE.get(function, function).__name__.strip('_')}__"
            method, place = attributes.class_member(m, type(a.value), name)
            if type(method) is types.FunctionType and function not in _INPLACE:
                result = call(m, attributes.bind(m, method, a, name, place), [b], {})
                if not (isinstance(result, Constant) and result.value is NotImplemented):
                    return result
            raise Break("FL105", what=f"operator {symbol}", why=f"on {a.describe()}")
    return fold(m, _INPLACE.get(function, function), [left, right], {}, f"operator {symbol}")


_JOINABLE = {(list, list), (tuple, tuple), (torch.Size, torch.Size), (torch.Size, tuple), (tuple, torch.Size)}


def identical(left: Value, right: Value) -> bool | None:
    """``left is right``; None when it is not decided."""
    if left is right:
        return True
    if isinstance(left, Constant) and isinstance(right, Constant):
        if left.value is right.value:
            return True
        singleton = (type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype)
        if isinstance(left.value, singleton) or isinstance(right.value, singleton):
            return False
        return None if type(left.value) is type(right.value) and left.value == right.value else False
    if isinstance(left, Known) and isinstance(right, Known):
        return left.value is right.value
    if isinstance(left, ObjectValue) and isinstance(right, ObjectValue):
        return None if left.value is not right.value else True
    if isinstance(left, FunctionValue) and isinstance(right, FunctionValue):
        return None if left.function is not right.function else True
    if isinstance(left, (Constant, Known)) or isinstance(right, (Constant, Known)):
        return False
    if type(left) is not type(right):
        return False
    return None if left.source is not None and right.source is not None else False


def contains(m: Machine, container: Value, member: Value) -> bool:
    if isinstance(container, DictView):
        if container.which == "keys":
            return key_of(m, member) in container.mapping.items
        container = SequenceValue(iterate(m, container), list)
    if isinstance(container, DictValue):
        return key_of(m, member) in container.items
    known = plain(_deep_use(m, container))
    key = plain(member)
    if key is not UNKNOWN and known is not UNKNOWN:
        try:
            return key in known
        except TypeError as e:
            raise Break("FL105", what="in", why=str(e)) from None
    if isinstance(container, SequenceValue) and isinstance(member, Constant):
        items = [m.use(v) for v in container.items]
        if all(isinstance(i, (Constant, Known, FunctionValue, SequenceValue)) for i in items):
            return any(isinstance(i, Constant) and i.value == member.value for i in items)
    if isinstance(container, ObjectValue):
        result = call(m, attributes.load(m, container, "__contains__"), [member], {})
        if isinstance(result, Constant):
            return bool(result.value)
    raise Break("FL105", what="in", why=f"{member.describe()} in {container.describe()}")


def key_of(m: Machine, value: Value) -> Any:
    """The Python object of a dictionary key."""
    key = plain(_deep_use(m, value))
    if key is UNKNOWN:
        raise Break("FL105", what="a dictionary key", why=f"{value.describe()} is not known while tracing")
    try:
        hash(key)
    except TypeError as e:
        raise Break("FL105", what="a dictionary key", why=str(e)) from None
    return key


def subscript(m: Machine, container: Value, key: Value) -> Value:
    """``container[key]``."""
    container, key = m.use(container), m.use(key)
    if isinstance(container, TensorValue):
        return operate(m, operator.getitem, [container, key])
    if isinstance(container, SequenceValue):
        if isinstance(key, Constant) and type(key.value) in (int, bool, slice):
            try:
                found = container.items[key.value]
            except IndexError:
                raise Break("FL105", what="subscript", why=f"index {key.value} is out of range") from None
            except TypeError as e:
                raise Break("FL105", what="subscript", why=str(e)) from None
            if isinstance(found, list):
                kind = container.kind if container.kind in (list, tuple, torch.Size) else tuple
                return SequenceValue(found, kind)
            return m.use(found)
    if isinstance(container, DictValue):
        wanted = key_of(m, key)
        if wanted not in container.items:
            raise Break("FL105", what="subscript", why=f"key {wanted!r} is missing")
        return m.use(container.items[wanted])
    if isinstance(container, Constant):
        return fold(m, operator.getitem, [container, key], {}, "subscript")
    if isinstance(container, ObjectValue):
        return call(m, attributes.load(m, container, "__getitem__"), [key], {})
    raise Break("FL105", what="subscript", why=f"of {container.describe()}")


def store_subscript(m: Machine, container: Value, key: Value, value: Value) -> None:
    """``container[key] = value``."""
    container = m.use(container)
    if isinstance(container, TensorValue):
        m.tracer.call(
            "call_function", operator.setitem, (container, m.use(key), m.use(value)), {}, "setitem", keep=True
        )
        return
    if isinstance(container, DictValue):
        m.tracer.mutate(container)
        container.items[key_of(m, key)] = value
        return
    if isinstance(container, SequenceValue) and container.kind is list and isinstance(m.use(key), Constant):
        index = key.value  # type: ignore[attr-defined]
        if type(index) is int and -len(container.items) <= index < len(container.items):
            m.tracer.mutate(container)
            container.items[index] = value
            return
    raise Break("FL105", what="item assignment", why=f"into {container.describe()}")


def delete_subscript(m: Machine, container: Value, key: Value) -> None:
    if isinstance(container, DictValue):
        wanted = key_of(m, key)
        if wanted in container.items:
            m.tracer.mutate(container)
            del container.items[wanted]
            return
    raise Break("FL105", what="del", why=f"of an item of {container.describe()}")


def iterate(m: Machine, value: Value) -> list[Value]:
    """All the items that iterating over ``value`` gives; consumes iterators."""
    value = m.use(value)
    if isinstance(value, SequenceValue):
        return list(value.items)
    if isinstance(value, DictValue):
        return [from_plain(k, "a dictionary key") for k in value.items]
    if isinstance(value, DictView):
        keys = [from_plain(k, "a dictionary key") for k in value.mapping.items]
        if value.which == "keys":
            return keys
        values = list(value.mapping.items.values())
        return (
            values
            if value.which == "values"
            else [SequenceValue(list(p), tuple) for p in zip(keys, values, strict=True)]
        )
    if isinstance(value, (IteratorValue, CombinedIterator)):
        rest = []
        while (item := advance(m, value)) is not None:
            rest.append(item)
        return rest
    if isinstance(value, Constant) and isinstance(value.value, (range, str, bytes)):
        return [Constant(v) for v in value.value]
    if isinstance(value, TensorValue):
        if value.fake.ndim == 0:
            raise Break("FL105", what="iteration", why="over a zero-dimensional tensor")
        unbound = m.tracer.call("call_method", "unbind", (value, Constant(0)), {}, "iteration over a tensor")
        assert isinstance(unbound, SequenceValue)
        return list(unbound.items)
    if isinstance(value, ObjectValue):
        method, place = attributes.class_member(m, type(value.value), "__iter__")
        if type(method) is types.FunctionType:
            return iterate(m, call(m, attributes.bind(m, method, value, "__iter__", place), [], {}))
    raise Break("FL105", what="iteration", why=f"over {value.describe()}")


def iterator(m: Machine, value: Value) -> Value:
    """``iter(value)``."""
    value = m.use(value)
    if isinstance(value, (IteratorValue, CombinedIterator)):
        return value
    if isinstance(value, SequenceValue) and value.kind is list:
        return IteratorValue(value, value.items)
    if isinstance(value, ObjectValue):
        method, place = attributes.class_member(m, type(value.value), "__iter__")
        if type(method) is types.FunctionType:
            return iterator(m, call(m, attributes.bind(m, method, value, "__iter__", place), [], {}))
    items = iterate(m, value)
    return IteratorValue(SequenceValue(items, tuple) if isinstance(value, TensorValue) else value, items)


def advance(m: Machine, value: Value) -> Value | None:
    """The next item of an iterator; None when there is none left."""
    if isinstance(value, CombinedIterator):
        return _advance_combined(m, value)
    if not isinstance(value, IteratorValue):
        raise Break("FL105", what="iteration", why=f"over {value.describe()}")
    mapping = value.over.mapping if isinstance(value.over, DictView) else value.over
    if isinstance(mapping, DictValue) and len(mapping.items) != len(value.items) and value.position >= 0:
        raise FrameUnsupported(
            "FL109", m.tracer.span, what="a loop", why="the dictionary that it iterates over changes size"
        )
    if 0 <= value.position < len(value.items):
        value.position += 1
        return value.items[value.position - 1]
    value.position = -1  # an exhausted iterator stays so, even when its list grows
    return None


def _advance_combined(m: Machine, value: CombinedIterator) -> Value | None:
    row: list[Value] = []
    for part in value.parts:
        item = advance(m, part)
        if item is None:
            return None
        row.append(item)
    if value.kind is map:
        assert value.extra is not None
        return m.call(value.extra, row, {})
    if value.kind is enumerate:
        number = value.extra
        assert isinstance(number, Constant)
        value.extra = Constant(number.value + 1)
        return SequenceValue([number, *row], tuple)
    return SequenceValue(row, tuple) if value.parts else None


def set_grad_enabled(m: Machine, enabled: bool) -> None:
    """Changes grad mode from here on, in the trace and in the graph."""
    if torch.is_grad_enabled() == enabled:
        return
    torch_private.set_grad_enabled(enabled)
    node = m.tracer.graph.call_function(torch_private.SET_GRAD_ENABLED, (enabled,))
    node.meta["val"] = None
    node.meta["span"] = m.tracer.span


# --- methods of builtin values ----------------------------------------------------------------------------------


def named_method(m: Machine, method: NamedMethod, args: list[Value], kwargs: dict[str, Value]) -> Value:
    receiver, name = m.use(method.receiver), method.name
    if isinstance(receiver, TensorValue):
        return _tensor_method(m, receiver, name, args, kwargs)
    if isinstance(receiver, SequenceValue) and receiver.kind is list and name in _LIST_METHODS:
        if name in _LIST_MUTATORS:
            m.tracer.mutate(receiver)
        return _LIST_METHODS[name](m, receiver, args, kwargs)
    if isinstance(receiver, SequenceValue) and name in ("index", "count", "__len__", "numel"):
        if name == "__len__":
            return Constant(len(receiver.items))
        known = plain(_deep_use(m, receiver))
        if known is not UNKNOWN:
            return fold(m, getattr(known, name), args, kwargs, name)
    if isinstance(receiver, DictValue) and name in _DICT_METHODS:
        if name in _DICT_MUTATORS:
            m.tracer.mutate(receiver)
        if kwargs and name != "update":
            raise Break("FL104", what=f"dict.{name}", why="it takes no keyword arguments")
        used = [m.use(a) for a in args]
        return _dict_update(m, receiver, used, kwargs) if kwargs else _DICT_METHODS[name](m, receiver, used)
    if isinstance(receiver, Constant) and isinstance(receiver.value, (str, bytes, int, float, complex, bool, range)):
        return fold(m, getattr(receiver.value, name), args, kwargs, f"{receiver.python_type.__name__}.{name}")
    raise Break("FL104", what=method.describe(), why="there is no rule for this method")


def _tensor_method(m: Machine, receiver: TensorValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if name in classify.SCALAR_METHODS:
        raise Break("FL102", what=f"{receiver.describe()}.{name}()")
    if name == "__len__":
        if receiver.fake.ndim == 0:
            raise Break("FL105", what="len()", why="of a zero-dimensional tensor")
        return Constant(int(receiver.fake.shape[0]))
    if not classify.is_graph_method(name) or (name.startswith("__") and name not in _TENSOR_DUNDERS):
        raise Break("FL104", what=f"Tensor.{name}", why="it runs eagerly")
    return m.tracer.call(
        "call_method", name, (receiver, *(_deep_use(m, a) for a in args)),
        {k: _deep_use(m, v) for k, v in kwargs.items()}, f"Tensor.{name}",
    )  # fmt: skip


_TENSOR_DUNDERS = {
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__truediv__", "__rtruediv__", "__matmul__",
    "__rmatmul__", "__neg__", "__abs__", "__pow__", "__rpow__", "__getitem__", "__and__", "__or__", "__xor__",
    "__invert__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__mod__", "__floordiv__",
}  # fmt: skip


def _append(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.append(args[0])
    return Constant(None)


def _extend(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.extend(iterate(m, args[0]))
    return Constant(None)


def _insert(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.insert(_integer(m, args[0]), args[1])
    return Constant(None)


def _pop(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    index = _integer(m, args[0]) if args else -1
    if not -len(items.items) <= index < len(items.items):
        raise Break("FL105", what="list.pop", why="the index is out of range")
    return m.use(items.items.pop(index))


def _reverse(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.reverse()
    return Constant(None)


def _clear(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items.items.clear()
    return Constant(None)


def _copy(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(list(items.items), list)


def _list_index(m: Machine, items: SequenceValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    known = plain(_deep_use(m, items))
    if known is UNKNOWN:
        raise Break("FL104", what="list.index", why="an item is not known while tracing")
    return fold(m, known.index, args, kwargs, "list.index")


_LIST_METHODS: dict[str, Any] = {
    "append": _append, "extend": _extend, "insert": _insert, "pop": _pop, "reverse": _reverse, "clear": _clear,
    "copy": _copy, "index": _list_index,
}  # fmt: skip
_LIST_MUTATORS = {"append", "extend", "insert", "pop", "reverse", "clear"}


def _integer(m: Machine, value: Value) -> int:
    value = m.use(value)
    if isinstance(value, Constant) and isinstance(value.value, int):
        return value.value
    raise Break("FL105", what="an index", why=f"{value.describe()} is not known while tracing")


def _get(m: Machine, mapping: DictValue, args: list[Value]) -> Value:
    found = mapping.items.get(key_of(m, args[0]))
    return m.use(found) if found is not None else args[1] if len(args) > 1 else Constant(None)


def _dict_pop(m: Machine, mapping: DictValue, args: list[Value]) -> Value:
    key = key_of(m, args[0])
    if key in mapping.items:
        return m.use(mapping.items.pop(key))
    if len(args) > 1:
        return args[1]
    raise Break("FL105", what="dict.pop", why=f"key {key!r} is missing")


def _dict_update(m: Machine, mapping: DictValue, args: list[Value], kwargs: dict[str, Value] | None = None) -> Value:
    if args and not isinstance(args[0], DictValue):
        raise Break("FL104", what="dict.update", why=f"of {args[0].describe()}")
    if args:
        mapping.items.update(args[0].items)  # type: ignore[attr-defined]
    mapping.items.update(kwargs or {})
    return Constant(None)


def _setdefault(m: Machine, mapping: DictValue, args: list[Value]) -> Value:
    return m.use(mapping.items.setdefault(key_of(m, args[0]), args[1] if len(args) > 1 else Constant(None)))


_DICT_METHODS: dict[str, Any] = {
    "get": _get, "pop": _dict_pop, "update": _dict_update, "setdefault": _setdefault,
    "keys": lambda m, d, a: DictView(d, "keys"),
    "values": lambda m, d, a: DictView(d, "values"),
    "items": lambda m, d, a: DictView(d, "items"),
    "copy": lambda m, d, a: DictValue(dict(d.items), d.kind),
    "__len__": lambda m, d, a: Constant(len(d.items)),
    "__contains__": lambda m, d, a: Constant(key_of(m, a[0]) in d.items),
}  # fmt: skip
_DICT_MUTATORS = {"pop", "update", "setdefault"}


# --- iterators that cross a break -------------------------------------------------------------------------------


class Recipe:
    """How a resume function makes an iterator anew, over the objects that it is given as ``leaves``.

    ``steps``: ("iter" | "reversed", leaf, position), ("enumerate", part, number), ("map", leaf, parts…), ("zip", parts…).
    """

    __slots__ = ("steps",)

    def __init__(self, steps: tuple[Any, ...]) -> None:
        self.steps = steps


def recipe_of(value: Value, leaves: list[Value]) -> tuple[Any, ...]:
    """The steps of a :class:`Recipe` for ``value``; appends what it needs to ``leaves``."""
    if isinstance(value, CombinedIterator):
        if value.kind is enumerate:
            assert isinstance(value.extra, Constant)
            return ("enumerate", recipe_of(value.parts[0], leaves), value.extra.value)
        if value.kind is map:
            assert value.extra is not None
            leaves.append(value.extra)
            return ("map", len(leaves) - 1, *(recipe_of(p, leaves) for p in value.parts))
        return ("zip", *(recipe_of(p, leaves) for p in value.parts))
    assert isinstance(value, IteratorValue)
    over, position = value.over, value.position
    rest = value.items[position:] if position >= 0 else []
    if position < 0:
        over, position = SequenceValue([], tuple), 0
    elif value.backwards:
        over, position = SequenceValue(rest[::-1], list), 0
    elif isinstance(over, Constant):
        over, position = Constant(over.value[position:]), 0
    elif not (isinstance(over, (DictValue, DictView)) or over.python_type is list):
        over, position = SequenceValue(rest, tuple), 0  # what is gone by need not be kept alive
    leaves.append(over)
    return ("reversed" if value.backwards and rest else "iter", len(leaves) - 1, position)


def restored(recipe: Recipe, leaves: tuple[Any, ...]) -> Any:
    """The iterator that the recipe describes; resume functions begin with a call of it, which is traced by the rule."""

    def make(steps: tuple[Any, ...]) -> Any:
        kind, *rest = steps
        if kind == "iter":
            made = iter(leaves[rest[0]])
            if rest[1] and type(leaves[rest[0]]) is list:
                made.__setstate__(rest[1])
            else:
                for _ in range(rest[1]):
                    next(made)
            return made
        if kind == "reversed":
            return reversed(leaves[rest[0]])
        if kind == "enumerate":
            return enumerate(make(rest[0]), rest[1])
        if kind == "map":
            return map(leaves[rest[0]], *map(make, rest[1:]))
        return zip(*map(make, rest), strict=False)

    return make(recipe.steps)


@rule(restored)
def _restored(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    recipe, leaves = m.use(args[0]), m.use(args[1])
    assert isinstance(recipe, Known) and isinstance(leaves, SequenceValue)

    def make(steps: tuple[Any, ...]) -> Value:
        kind, *rest = steps
        if kind == "iter":
            made = iterator(m, leaves.items[rest[0]])
            if not isinstance(made, IteratorValue):
                raise Break("FL105", what="a loop", why="its iterator cannot be made again")
            made.position = rest[1]
            return made
        if kind == "reversed":
            return _reversed(m, [leaves.items[rest[0]]], {})
        if kind == "enumerate":
            return CombinedIterator(enumerate, [make(rest[0])], Constant(rest[1]))
        if kind == "map":
            return CombinedIterator(map, [make(r) for r in rest[1:]], leaves.items[rest[0]])
        return CombinedIterator(zip, [make(r) for r in rest])

    return make(recipe.value.steps)


# --- rules for particular callables -----------------------------------------------------------------------------


@rule(len)
def _len(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (SequenceValue, DictValue)):
        return Constant(len(value.items))
    if isinstance(value, DictView):
        return Constant(len(value.mapping.items))
    if isinstance(value, TensorValue):
        return _tensor_method(m, value, "__len__", [], {})
    if isinstance(value, ObjectValue):
        return call(m, attributes.load(m, value, "__len__"), [], {})
    return fold(m, len, [value], {}, "len")


@rule(isinstance)
def _isinstance(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    classes = plain(_deep_use(m, args[1]))
    if classes is UNKNOWN:
        raise Break("FL104", what="isinstance", why="the class is not known while tracing")
    value = m.use(args[0])
    if isinstance(value, TruthValue):
        return Constant(isinstance(True, classes))
    if isinstance(value, (Constant, Known, ObjectValue)):
        return Constant(isinstance(value.value, classes))
    if isinstance(value, TensorValue) and value.source is None:
        return Constant(isinstance(value.fake, classes) and issubclass(torch.Tensor, classes))
    try:
        return Constant(issubclass(value.python_type, classes))
    except TypeError as e:
        raise Break("FL104", what="isinstance", why=str(e)) from None


@rule(issubclass)
def _issubclass(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, classes = plain(m.use(args[0])), plain(_deep_use(m, args[1]))
    if cls is UNKNOWN or classes is UNKNOWN:
        raise Break("FL104", what="issubclass", why="the class is not known while tracing")
    return Constant(issubclass(cls, classes))


@rule(type)
def _type(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1:
        raise Break("FL104", what="type", why="classes are created eagerly")
    return Known(m.use(args[0]).python_type)


@rule(getattr)
def _getattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), m.use(args[1])
    if not isinstance(name, Constant) or not isinstance(name.value, str):
        raise Break("FL104", what="getattr", why="the name is not known while tracing")
    if len(args) > 2 and not _has_attribute(m, owner, name.value):
        return args[2]
    return attributes.load(m, owner, name.value)


@rule(hasattr)
def _hasattr(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    owner, name = m.use(args[0]), m.use(args[1])
    if not isinstance(name, Constant):
        raise Break("FL104", what="hasattr", why="the name is not known while tracing")
    return Constant(_has_attribute(m, owner, name.value))


def _has_attribute(m: Machine, owner: Value, name: str) -> bool:
    if isinstance(owner, ObjectValue):
        if (id(owner.value), name) in m.tracer.attributes:
            return True
        getter = attributes.class_attribute(owner.python_type, "__getattr__")
        if type(getter) is types.FunctionType and not isinstance(owner.value, torch.nn.Module):
            raise Break("FL104", what="hasattr", why=f"{owner.python_type.__name__} defines __getattr__")
    if isinstance(owner, (ObjectValue, Known, FunctionValue)):
        obj = owner.function if isinstance(owner, FunctionValue) else owner.value
        found = hasattr(obj, name)
        source = owner.source or (
            src.constant(obj, obj.__qualname__)
            if isinstance(obj, (type, types.FunctionType)) and not classify.is_library_module(obj.__module__)
            else None
        )
        if source is not None:
            m.tracer.guard(
                source, _hook.CALL, _Has(name, found), name="HAS", text=f"hasattr({source}, {name!r}) is {found}"
            )
        return found
    if isinstance(owner, TensorValue):
        if attributes.class_attribute(torch.Tensor, name) is attributes.ABSENT and owner.source is not None:
            raise Break("FL104", what="hasattr", why="a tensor's own attributes are looked up eagerly")
        return hasattr(owner.fake, name)
    if isinstance(owner, Constant):
        return hasattr(owner.value, name)
    return hasattr(owner.python_type, name)


class _Has:
    """A guard on whether an object has an attribute."""

    __slots__ = ("name", "found")

    def __init__(self, name: str, found: bool) -> None:
        self.name = name
        self.found = found

    def __call__(self, obj: Any) -> bool:
        return hasattr(obj, self.name) is self.found


@rule(range)
def _range(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return fold(m, range, args, kwargs, "range")


@rule(list)
def _list(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(iterate(m, args[0]) if args else [], list)


@rule(tuple)
def _tuple(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(iterate(m, args[0]) if args else [], tuple)


@rule(torch.Size)
def _size(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return SequenceValue(iterate(m, args[0]) if args else [], torch.Size)


@rule(dict)
def _dict(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items: dict[Any, Value] = {}
    if args:
        value = m.use(args[0])
        if isinstance(value, DictValue):
            items.update(value.items)
        else:
            for pair in iterate(m, value):
                k, v = iterate(m, pair)
                items[key_of(m, k)] = v
    items.update(kwargs)
    return DictValue(items)


@rule(enumerate)
def _enumerate(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = _integer(m, kwargs.get("start", args[1] if len(args) > 1 else Constant(0)))
    return CombinedIterator(enumerate, [iterator(m, args[0])], Constant(start))


@rule(zip)
def _zip(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = kwargs.get("strict")
    if strict is not None and m.truth(strict):
        columns = [iterate(m, a) for a in args]
        if len({len(c) for c in columns}) > 1:
            raise Break("FL105", what="zip", why="the arguments differ in length")
        args = [SequenceValue(c, tuple) for c in columns]
    return CombinedIterator(zip, [iterator(m, a) for a in args])


@rule(map)
def _map(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) < 2:
        raise Break("FL104", what="map", why="it has nothing to map over")
    return CombinedIterator(map, [iterator(m, a) for a in args[1:]], args[0])


@rule(reversed)
def _reversed(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (SequenceValue, Constant, DictValue, DictView)):
        return IteratorValue(value, list(reversed(iterate(m, value))), backwards=True)
    raise Break("FL104", what="reversed", why=f"of {value.describe()}")


@rule(iter)
def _iter(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if len(args) > 1:
        raise Break("FL104", what="iter", why="the two-argument form runs eagerly")
    return iterator(m, value)


@rule(next)
def _next(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (IteratorValue, CombinedIterator)):
        item = advance(m, value)
        if item is not None:
            return m.use(item)
        if len(args) > 1:
            return args[1]
    raise Break("FL104", what="next", why=f"of {value.describe()}")


@rule(sum)
def _sum(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    total = m.use(kwargs.get("start", args[1] if len(args) > 1 else Constant(0)))
    for item in iterate(m, args[0]):
        total = binary(m, operator.add, total, m.use(item), "+")
    return total


def _extreme(function: Any) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        items = [m.use(v) for v in (iterate(m, args[0]) if len(args) == 1 else args)]
        if any(isinstance(i, TensorValue) for i in items):
            raise Break("FL102", what=f"{function.__name__}() of tensors")
        return fold(m, function, [SequenceValue(items, list)], kwargs, function.__name__)

    return run


RULES[min], RULES[max] = _extreme(min), _extreme(max)


def _quantifier(function: Any, stop: bool) -> Rule:
    def run(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
        for item in iterate(m, args[0]):
            truth = m.truth(item)
            if truth is None:
                raise Break("FL102", what=f"{function.__name__}() of tensors")
            if truth == stop:
                return Constant(stop)
        return Constant(not stop)

    return run


RULES[any], RULES[all] = _quantifier(any, True), _quantifier(all, False)


@rule(callable)
def _callable(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    value = m.use(args[0])
    if isinstance(value, (FunctionValue, MadeFunction, MethodValue, NamedMethod)):
        return Constant(True)
    if isinstance(value, (Constant, Known, ObjectValue)):
        return Constant(callable(value.value))
    return Constant(False)


@rule(super)
def _super(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        cell = m.cells.get("__class__")
        first = m.code.co_varnames[0] if m.code.co_argcount else None
        if cell is None or first is None:
            raise Break("FL105", what="super()", why="outside a method")
        from .machine import read_cell

        cls = m.use(read_cell(m, cell, "__class__"))
        receiver = m.locals.get(first) or m.cells[first].contents
    else:
        cls, receiver = m.use(args[0]), args[1]
    if not isinstance(cls, Known) or receiver is None:
        raise Break("FL105", what="super()", why="the class is not known while tracing")
    return SuperValue(cls.value, m.use(receiver))


# --- torch functions that are not operations ----------------------------------------------------------------------


@rule(torch.is_tensor)
def _is_tensor(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(isinstance(m.use(args[0]), TensorValue))


@rule(torch.is_grad_enabled)
def _is_grad_enabled(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(torch.is_grad_enabled())


@rule(torch.is_inference_mode_enabled)
def _is_inference_mode_enabled(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.guard_ambient()
    return Constant(torch.is_inference_mode_enabled())


@rule(torch.compiler.is_exporting, torch.jit.is_scripting, torch.jit.is_tracing)
def _false(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(False)


@rule(torch.compiler.is_compiling)
def _true(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(True)


@rule(torch.get_default_dtype)
def _get_default_dtype(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    m.tracer.guard_ambient()
    return Constant(torch.get_default_dtype())


@rule(torch.no_grad)
def _no_grad(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        raise Break("FL104", what="torch.no_grad(function)", why="decorating runs eagerly")
    return GradModeContext(False, torch.no_grad)


@rule(torch.enable_grad)
def _enable_grad(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        raise Break("FL104", what="torch.enable_grad(function)", why="decorating runs eagerly")
    return GradModeContext(True, torch.enable_grad)


def _has_torch_function(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return Constant(False)


for _f in (
    torch.overrides.has_torch_function, torch.overrides.has_torch_function_unary,
    torch.overrides.has_torch_function_variadic,
):  # fmt: skip
    RULES[_f] = _has_torch_function


@rule(torch._assert)
def _assert(m: Machine, args: list[Value], kwargs: dict[str, Value]) -> Value:
    truth = m.truth(args[0])
    if truth is not True:
        raise Break("FL102", what="torch._assert")
    return Constant(None)
