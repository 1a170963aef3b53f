"""What a call means: which rule applies to which callable, argument binding, and inlining."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import types
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break, Raised, raising
from ..hook import _hook
from ..polyfills import python as polyfills
from ..rules import contexts, generators, numpy_calls, torch_function
from ..rules.compiler import marked, reason
from ..rules.module_calls import call_module
from ..rules.table import CALLS, CODE_RULES, NAMED_RULES, RULES
from ..rules.torch_calls import set_grad_enabled
from ..tracing import sources as src
from ..tracing.tracer import CONSTANT_TYPES
from ..values import attributes
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
    ObjectValue,
    PartialValue,
    SequenceValue,
    SuperValue,
    SymbolValue,
    TensorValue,
    TorchContext,
    Value,
)
from ..values.iterators import generator_method, iterate
from ..values.known import PURE, UNKNOWN, deep_use, fold, is_plain_namedtuple, plain
from ..values.operators import contains, delete_subscript, identical, operate, store_subscript, subscript
from .arguments import fit, is_builtin, misfit
from .methods import named_method

if TYPE_CHECKING:
    from ..machine import Machine


def call(m: Machine, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of calling ``function``; raises :class:`Break` when the call must run in plain Python."""
    if isinstance(function, MethodValue):
        return call(m, m.use(function.function), [function.receiver, *args], kwargs)
    if isinstance(function, FunctionValue):
        return _function(m, function, args, kwargs)
    if isinstance(function, MadeFunction):
        defaults = iterate(m, m.use(function.defaults)) if function.defaults else []
        bound = bind_arguments(m, function.code, args, kwargs, defaults, _dict_items(m, function.kwdefaults))
        callee = Callee(function, function.code, function.globals, function.globals_source, function.closure)
        return callee.run(m, bound, args, kwargs)
    if isinstance(function, NamedMethod):
        receiver = m.use(function.receiver)
        if isinstance(receiver, generators.DrawnFrom) or (
            isinstance(receiver, ObjectValue) and type(receiver.value) is torch.Generator
        ):
            return generators.method(m, receiver, function.name, args, kwargs)
        if isinstance(receiver, ObjectValue):
            return object_method(m, receiver, function.name, args, kwargs)
        if isinstance(receiver, GeneratorValue):
            return generator_method(m, receiver, function.name, args)
        return named_method(m, function, args, kwargs)
    if isinstance(function, PartialValue):
        return call(m, function.function, [*function.args, *args], {**function.kwargs, **kwargs})
    if isinstance(function, Known):
        return _known(m, function, args, kwargs)
    if isinstance(function, ObjectValue):
        return _object(m, function, args, kwargs)
    if isinstance(function, ActiveValue):
        result = function.call(m, args, kwargs)
        if result is not None:
            return result
    if isinstance(function, ContextExit):
        context = function.context
        function.exited = True
        if isinstance(context, TorchContext):
            contexts.leave(m, context)
            return Constant(None)
        set_grad_enabled(m, bool(context.previous))
        if m.contexts and m.contexts[-1] is context:
            m.contexts.pop()
        return Constant(None)
    if (
        isinstance(function, (GradModeContext, TorchContext))
        and len(args) == 1
        and not kwargs
        and _is_wrapped(m.use(args[0]))
    ):
        return m.call(Known(polyfills.in_context), [function, args[0]], {})
    if isinstance(function, (Constant, SequenceValue, DictValue, TensorValue)):
        raise raising(TypeError(f"'{function.python_type.__name__}' object is not callable"))
    raise Break("FL104", what=function.describe(), why="it is not a function that is known while tracing")


def closure_of(m: Machine, value: FunctionValue) -> list[CellValue]:
    """The cells that an existing function closes over."""
    function = value.function
    closure = src.part(value.source or src.constant(function, function.__qualname__), _hook.FUNC_CLOSURE, "__closure__")
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return [m.tracer.cell(cell, name, src.item(closure, i)) for i, (name, cell) in enumerate(cells)]


def _dict_items(m: Machine, value: Value | None) -> dict[str, Value]:
    if value is None:
        return {}
    used = m.use(value)
    return dict(used.items) if isinstance(used, DictValue) else {}


def _function(m: Machine, value: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function = value.function
    asked = classify.is_graph_callable(function) and torch_function.concerned(m, args, kwargs)
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
    if result is not None:
        return result
    recorded = classify.is_graph_callable(function) and m.tracer.are_arguments([*args, *kwargs.values()])
    if recorded and not asked:
        return m.tracer.call("call_function", function, tuple(args), kwargs, _torch_name(function))
    if not classify.may_inline(function.__code__):
        raise Break("FL104", what=function.__qualname__, why="it belongs to the compiler itself")
    if function.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE):
        raise Break("FL120", what=f"coroutine `{function.__qualname__}`", why="coroutines run eagerly")
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
    if source is not None and len(args) < function.__code__.co_argcount:  # which parameters the defaults are of
        _guard_number(m, src.part(source, _hook.FUNC_DEFAULTS, "__defaults__"), function.__defaults__)
    closure = closure_of(m, value)
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
    bound = bind_arguments(m, function.__code__, args, kwargs, defaults, kwdefaults, function.__qualname__)
    callee = Callee(value, function.__code__, function.__globals__, globals_source, closure)
    return callee.run(m, bound, args, kwargs)


def _guard_number(m: Machine, source: src.Source, items: tuple[Any, ...] | None) -> None:
    """Guards how many items there are; None stands for none."""
    if items is None:
        m.tracer.guard_identity(source, None)
    else:
        m.tracer.guard(source, _hook.LENGTH_IS, len(items), name="LENGTH", text=f"len({source}) == {len(items)}")


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
            frame.run()
        except RecursionError:
            raise too_deep(self.code) from None
        assert frame.result is not None
        return frame.result


def _known(m: Machine, value: Known, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    recorded = classify.is_graph_callable(obj)
    if recorded:
        handled = torch_function.dispatched(m, obj, args, kwargs)
        if handled is not None:
            return handled
    try:
        found = RULES.get(obj)
    except TypeError:
        found = None
    if found is not None:
        if is_builtin(obj) and not fit(obj, len(args), tuple(kwargs)):
            raise misfit(obj, len(args), tuple(kwargs), value.describe())
        return found(m, args, kwargs)
    if type(obj) is types.MethodType and obj.__func__ in RULES:
        return RULES[obj.__func__](m, [Known(obj.__self__), *args], kwargs)
    if type(obj) is types.BuiltinMethodType and isinstance(obj.__self__, type):
        found = RULES.get(attributes.class_attribute(obj.__self__, obj.__name__))  # a class method of C
        if found is not None:
            return found(m, [Known(obj.__self__), *args], kwargs)
    result = marked(m, value, obj, args, kwargs)
    if result is not None:
        return result
    code = classify.breaking_code(obj)
    if code is not None:
        raise Break(code, what=value.describe(), why="it must run each time")
    args = [m.use(a) for a in args]
    kwargs = {k: m.use(v) for k, v in kwargs.items()}
    try:
        foldable, tensor_operator = obj in classify.FOLDED, obj in classify.TENSOR_OPERATORS
    except TypeError:
        foldable = tensor_operator = False
    computed = numpy_calls.called(m, obj, args, kwargs, value.describe())
    if computed is not None:
        return computed
    if tensor_operator and any(isinstance(a, (TensorValue, SymbolValue)) for a in args):
        return operate(m, obj, args, kwargs)
    if foldable and not any(isinstance(a, TensorValue) for a in args):
        return fold(m, obj, args, kwargs, value.describe())
    if recorded:
        return m.tracer.call("call_function", obj, tuple(args), kwargs, _torch_name(obj))
    if foldable:
        return fold(m, obj, args, kwargs, value.describe())
    if type(obj) is types.MethodWrapperType and type(obj.__self__) is types.GetSetDescriptorType:
        return _accessor(m, value, obj, args)
    if isinstance(obj, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        if not args:
            raise misfit(obj, 0, tuple(kwargs), value.describe())
        if not issubclass(args[0].python_type, obj.__objclass__):
            raise _wrong_receiver(obj, args[0].python_type)
        if isinstance(args[0], Constant) and args[0].python_type is not obj.__objclass__:
            return fold(m, obj, args, kwargs, value.describe())  # what the class of the constant overrides is not asked
        return call(m, NamedMethod(args[0], obj.__name__), args[1:], kwargs)
    if isinstance(obj, types.BuiltinMethodType) and obj.__name__ == "__new__" and isinstance(obj.__self__, type):
        cls = args[0] if args else None
        if isinstance(cls, Known) and isinstance(cls.value, type):
            return new(m, cls.value, args[1:], kwargs)
    if isinstance(obj, type):
        return _construct(m, obj, args, kwargs)
    if issubclass(type(getattr(obj, "__self__", None)), PURE):  # not isinstance, which may run code of the class
        return fold(m, obj, args, kwargs, value.describe())
    if type(obj) is types.FunctionType:
        return _function(m, FunctionValue(obj, None), args, kwargs)
    if type(obj) is types.MethodType and type(obj.__func__) is types.FunctionType and classify.is_graph_callable(obj):
        return m.tracer.call("call_function", obj, tuple(args), kwargs, _torch_name(obj))
    if isinstance(obj, types.BuiltinMethodType) and type(obj.__self__) in (frozenset, str, bytes):
        return fold(m, obj, args, kwargs, value.describe())  # such as keyword.iskeyword
    why = "it is implemented in C" if isinstance(obj, types.BuiltinFunctionType) else "there is no rule for it"
    raise Break("FL104", what=value.describe(), why=why)


def _is_wrapped(value: Value) -> bool:
    """Whether the decorators that torch's contexts are wrap it so that it runs inside as a whole: a function that yields nothing."""
    if isinstance(value, FunctionValue):
        code = value.function.__code__
    elif isinstance(value, MadeFunction):
        code = value.code
    else:
        return False
    return not code.co_flags & (inspect.CO_GENERATOR | _COROUTINES)


def _accessor(m: Machine, value: Known, accessor: Any, args: list[Value]) -> Value:
    """A call of the ``__get__`` or ``__set__`` of an attribute that is implemented in C."""
    match accessor.__name__, args:
        case "__get__", [owner, *_] if isinstance(owner := m.use(owner), TensorValue):
            return attributes.load_from_base(m, owner, accessor.__self__.__name__)
        case "__set__", [owner, new]:
            attributes.store(m, m.use(owner), accessor.__self__.__name__, new)
            return Constant(None)
    raise Break("FL104", what=value.describe(), why="there is no rule for it")


def _wrong_receiver(method: Any, kind: type) -> Raised | Break:
    """What a method of a builtin class raises that is called on an instance of another."""
    try:
        method(type(kind.__name__, (), {})())
    except TypeError as e:
        return raising(e)
    return Break("FL104", what=method.__qualname__, why=f"of a {kind.__name__}")


def _construct(m: Machine, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(...)``: an instance made while tracing."""
    if hasattr(cls, "_fields") and issubclass(cls, tuple) and cls.__new__.__code__.co_filename.startswith("<"):
        fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
        bound = dict(zip(fields, args, strict=False)) | kwargs
        defaults = getattr(cls, "_field_defaults", {})
        if set(bound) | set(defaults) >= set(fields) and all(type(defaults.get(f)) in CONSTANT_TYPES for f in fields):
            return SequenceValue([bound.get(f) or Constant(defaults[f]) for f in fields], cls)
    if attributes.class_attribute(type(cls), "__call__") is not type.__dict__["__call__"]:
        return _by_metaclass(m, cls, args, kwargs)
    if "__del__" in {n for c in cls.__mro__ for n in vars(c)}:
        raise Break("FL104", what=cls.__qualname__, why="it has a finaliser")
    maker, place = attributes.class_member(m, cls, "__new__")
    if isinstance(maker, staticmethod):
        maker = maker.__func__
    if type(maker) is types.FunctionType:
        made_by = attributes.class_attribute(cls, "__new__")
        function = m.use(attributes.bind(m, made_by, Known(cls), "__new__", place))
        made = m.use(m.call(function, [Known(cls), *args], kwargs))
    else:
        made = new(m, cls, args, kwargs)
    if isinstance(made, (ObjectValue, TensorValue)) and cls in made.python_type.__mro__:
        initialise, place = attributes.class_member(m, made.python_type, "__init__")
        if type(initialise) is types.FunctionType:
            result = m.use(m.call(attributes.bind(m, initialise, made, "__init__", place), args, kwargs))
            if not (isinstance(result, Constant) and result.value is None):
                kind = result.python_type.__name__
                raise raising(TypeError(f"__init__() should return None, not '{kind}'"))
        elif isinstance(made, TensorValue):
            pass
        elif initialise is object.__dict__["__init__"]:
            if (args or kwargs) and maker is object.__dict__["__new__"]:
                raise raising(TypeError(f"{cls.__name__}() takes no arguments"))
        else:
            base_init(m, made, args, kwargs, initialise)
    return made


def _by_metaclass(m: Machine, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(cls, enum.EnumMeta):
        known = [plain(deep_use(m, a)) for a in args]
        if UNKNOWN not in known and not kwargs and cls._member_map_:
            try:
                return Constant(cls(*known))
            except Exception as e:  # noqa: BLE001 - what the lookup of a member raises, the program raises
                raise raising(e) from None
    caller, place = attributes.class_member(m, type(cls), "__call__")
    if type(caller) is types.FunctionType and place is not None:
        return m.call(attributes.bind(m, caller, Known(cls), "__call__", place), args, kwargs)
    raise Break("FL104", what=cls.__qualname__, why="its metaclass makes its instances")


_CONTAINERS: dict[type, Any] = {
    OrderedDict: lambda: DictValue({}, OrderedDict), dict: lambda: DictValue({}), list: lambda: SequenceValue([], list),
}  # fmt: skip


_PLAIN_VALUE: dict[type, Any] = {
    int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
}  # fmt: skip
"""What an instance of a subclass is without it: the methods of the subclass are not asked."""


def _bare(owner: Any, cls: Any, *args: Any) -> Any:
    return owner.__new__(cls, *args)


def new(m: Machine, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What the ``__new__`` of a builtin base class makes."""
    owner = classify.builtin_base(cls)
    if issubclass(cls, torch.Tensor) and len(args) == 1 and not kwargs and isinstance(args[0], TensorValue):
        return torch_function.as_class(m, args[0], cls)
    if issubclass(cls, OrderedDict):
        owner = OrderedDict  # which has dict's __new__
    if owner is object:
        if classify.is_heap_type(cls):
            try:
                return m.tracer.made(object.__new__(cls, *(None,) * len(args), **dict.fromkeys(kwargs)))
            except TypeError as e:
                if "is not safe" in str(e):
                    raise Break("FL104", what=cls.__qualname__, why="its instances are made in C") from None
                raise raising(e) from None
    elif issubclass(cls, BaseException) and not issubclass(cls, BaseExceptionGroup):
        return _new_exception(m, cls, owner, args)
    elif owner in _CONTAINERS and classify.is_heap_type(cls):
        return m.tracer.made(_bare(owner, cls), _CONTAINERS[owner]())
    elif owner is tuple and "_fields" in vars(cls) and is_plain_namedtuple(cls):
        return SequenceValue(iterate(m, args[0]) if args else [], cls)
    elif owner is tuple and classify.is_heap_type(cls):
        names = () if type(cls.__init__) is types.FunctionType else tuple(kwargs)
        if not fit(tuple, len(args), names):
            raise misfit(tuple, len(args), names, cls.__qualname__)
        return m.tracer.made(_bare(owner, cls), SequenceValue(iterate(m, args[0]) if args else [], tuple))
    elif owner in (int, float, str, complex, bytes) and classify.is_heap_type(cls):
        known = [plain(deep_use(m, a)) for a in args]
        if UNKNOWN not in known and not kwargs:
            value = _natural(lambda: _bare(owner, cls, *known))
            return m.tracer.made(value, Constant(_PLAIN_VALUE[owner](value)))
    raise Break("FL104", what=cls.__qualname__, why="its instances are made in C")


def _new_exception(m: Machine, cls: Any, owner: Any, args: list[Value]) -> ObjectValue:
    if not issubclass(cls, OSError):
        made = m.tracer.made(_bare(owner, cls))
        m.tracer.attributes[id(made.value), "args"] = (made, SequenceValue(list(args), tuple))
        return made
    if type(cls.__init__) is types.FunctionType and type(cls.__new__) is not types.FunctionType:
        return m.tracer.made(_bare(owner, cls))  # its __init__ looks at the arguments
    known = [plain(deep_use(m, a)) for a in args]
    if UNKNOWN in known:
        raise Break("FL104", what=cls.__qualname__, why="its instances are made in C")
    made = m.tracer.made(_natural(lambda: _bare(owner, cls, *known)))
    m.tracer.initialised[id(made.value)] = (None, args, {})
    return made


def _natural(function: Any) -> Any:
    """Runs what the program would run, for its exception."""
    try:
        return function()
    except Exception as e:  # noqa: BLE001 - the program raises whatever it is
        raise raising(e) from None


def base_init(m: Machine, made: ObjectValue, args: list[Value], kwargs: dict[str, Value], initialise: Any) -> None:
    """The ``__init__`` of a builtin base class: of an exception, a dictionary, a list."""
    if isinstance(made.value, BaseException):
        _initialise_exception(m, made, args, kwargs, initialise)
        return
    held = made.content
    if isinstance(held, DictValue):
        named_method(m, NamedMethod(held, "update"), args, kwargs)
    elif isinstance(held, SequenceValue) and held.kind is list:
        names = () if type(made.python_type.__new__) is types.FunctionType else tuple(kwargs)
        if not fit(list, len(args), names):
            raise misfit(list, len(args), names, made.python_type.__qualname__)
        held.items[:] = iterate(m, args[0]) if args else []
    elif held is None:
        raise Break("FL104", what=made.python_type.__qualname__, why="its instances are made in C")


_STATEFUL = (
    StopIteration, SystemExit, OSError, ImportError, SyntaxError, UnicodeEncodeError, UnicodeDecodeError,
    UnicodeTranslateError, NameError, AttributeError,
)  # fmt: skip
"""Exceptions of which more is kept than ``args``."""


def _initialise_exception(
    m: Machine, made: ObjectValue, args: list[Value], kwargs: dict[str, Value], initialise: Any
) -> None:
    """``initialise(made, *args, **kwargs)``, of a class implemented in C."""
    tracer, key = m.tracer, id(made.value)
    if issubclass(initialise.__objclass__, _STATEFUL):
        known = [plain(deep_use(m, a)) for a in args], {k: plain(deep_use(m, v)) for k, v in kwargs.items()}
        if UNKNOWN not in (*known[0], *known[1].values()):
            _natural(lambda: initialise(made.value, *known[0], **known[1]))
            new = tracer.initialised.get(key)
            tracer.initialised[key] = new if new is not None and new[0] is None else (initialise, args, kwargs)
            tracer.attributes.pop((key, "args"), None)  # from here on those that it has
            return
        if issubclass(initialise.__objclass__, (StopIteration, SystemExit)) and not kwargs and len(args) <= 1:
            name = "value" if issubclass(initialise.__objclass__, StopIteration) else "code"
            attributes.assign(m, made, name, args[0])
        elif issubclass(initialise.__objclass__, (NameError, AttributeError)) and set(kwargs) <= {"name", "obj"}:
            for name, value in kwargs.items():
                attributes.assign(m, made, name, value)
            kwargs = {}
        else:
            raise Break("FL104", what=made.python_type.__qualname__, why="its instances are made in C")
    if kwargs:
        raise raising(TypeError(f"{made.python_type.__name__}() takes no keyword arguments"))
    attributes.assign(m, made, "args", SequenceValue(list(args), tuple))


def _object(m: Machine, value: ObjectValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj = value.value
    kind = type(obj)
    method, place = attributes.class_member(m, kind, "__call__")
    if method is attributes.ABSENT:
        raise raising(TypeError(f"'{kind.__name__}' object is not callable"))
    if issubclass(kind, torch.nn.Module) and method is torch.nn.Module.__dict__["__call__"]:
        return call_module(m, value, args, kwargs)
    if kind in CALLS:
        return CALLS[kind](m, value, args, kwargs)
    if issubclass(kind, _hook.disabled):
        raise Break("FL114", what=getattr(obj, "__qualname__", None) or type(obj.fn).__qualname__, why=reason(obj))
    result = marked(m, value, obj, args, kwargs)
    if result is not None:
        return result
    if issubclass(kind, _hook.Region):
        # a compiled function called from compiled code is inlined like any other
        assert value.source is not None
        return call(m, m.use(m.tracer.lazy(obj.fn, src.generic_attribute(value.source, "fn"))), args, kwargs)
    if issubclass(kind, torch.jit.ScriptFunction) and (part := torch_private.script_origin(obj)):
        assert value.source is not None
        return call(
            m, m.use(m.tracer.lazy(getattr(obj, part), src.generic_attribute(value.source, part))), args, kwargs
        )
    if type(method) is types.FunctionType:
        return call(m, attributes.bind(m, method, value, "__call__", place), args, kwargs)
    code = classify.breaking_code(obj) if classify.is_routine(obj) else None
    raise Break(
        code or "FL104", what=getattr(obj, "__qualname__", None) or kind.__qualname__, why="it is implemented in C"
    )


def object_method(m: Machine, receiver: ObjectValue, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A method that an instance of a user's class has from a class implemented in C."""
    match name, args:
        case "__init__", _:
            found = (vars(c).get(name) for c in receiver.python_type.__mro__)
            initialise = next(f for f in found if isinstance(f, types.WrapperDescriptorType))
            if initialise is not object.__dict__["__init__"]:
                base_init(m, receiver, args, kwargs, initialise)
            elif args or kwargs:
                _natural(lambda: object.__init__(receiver.value, *(None,) * len(args), **dict.fromkeys(kwargs)))
            return Constant(None)
        case "__setattr__", [attribute, value] if isinstance(attribute := m.use(attribute), Constant):
            attributes.store_directly(m, receiver, attribute.value, value)
            return Constant(None)
        case "__delattr__", [attribute] if isinstance(attribute := m.use(attribute), Constant):
            attributes.delete_directly(m, receiver, attribute.value)
            return Constant(None)
        case "__getattribute__", [attribute] if isinstance(attribute := m.use(attribute), Constant):
            return attributes.load(m, receiver, attribute.value)
        case "with_traceback", [given] if isinstance(receiver.value, BaseException):
            none = m.use(given)
            if not isinstance(none, Constant) or none.value is not None:
                raise Break("FL104", what="with_traceback", why="tracebacks exist in a running program only")
            m.tracer.tracebacks.pop(id(receiver.value), None)
            if receiver.source is not None:
                attributes.assign(m, receiver, "__traceback__", none)
            return receiver
        case "__init_subclass__", _:
            return Constant(None)
    held = attributes.content(m, receiver)
    if held is None:
        if name == "__eq__" and len(args) == 1:
            same = identical(m, receiver, m.use(args[0]))
            return Constant(True if same else NotImplemented)
        if name == "__ne__" and len(args) == 1:
            same = identical(m, receiver, m.use(args[0]))
            return Constant(False if same else NotImplemented)
        code = classify.breaking_method(receiver.python_type, name) or "FL104"
        raise Break(code, what=f"{receiver.python_type.__name__}.{name}", why="there is no rule for this method")
    match name, args:
        case "__getitem__", [key]:
            return subscript(m, held, key)
        case "__setitem__", [key, value]:
            store_subscript(m, held, m.use(key), value)
            return Constant(None)
        case "__delitem__", [key]:
            delete_subscript(m, held, m.use(key))
            return Constant(None)
        case "__contains__", [member]:
            return Constant(contains(m, held, m.use(member)))
        case "__len__", []:
            return m.call(Known(len), [held], {})
        case "__iter__", []:
            return m.call(Known(iter), [held], {})
    return call(m, NamedMethod(held, name), args, kwargs)


def call_original(m: Machine, value: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A call of a module that stands for another one (``modules.CompiledModule``): what the other one does."""
    assert isinstance(value, ObjectValue)
    if isinstance(value.value.__region__, _hook.disabled):
        raise Break("FL114", what=type(value.value).__qualname__, why=reason(value.value.__region__))
    after = next(c for c in type(value.value).__mro__ if c.__call__ is not type(value.value).__call__)
    if after.__call__ is torch.nn.Module.__call__:
        return call_module(m, value, args, kwargs)
    return call(m, attributes.load(m, SuperValue(type(value.value).__mro__[1], value), "__call__"), args, kwargs)


def _torch_name(obj: Any) -> str:
    name = getattr(obj, "__name__", repr(obj))
    module = getattr(obj, "__module__", None) or "torch"
    return f"torch.nn.functional.{name}" if module.startswith(("torch.nn", "torch._jit")) else f"torch.{name}"
