"""What making an instance of a class does: its metaclass, its ``__new__`` and its ``__init__``."""

from __future__ import annotations

import enum
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ... import torch_private
from .. import classify
from ..breaks import Break, raising
from ..rules import torch_function
from ..tracing.wrapping import CONSTANT_TYPES
from ..values import attributes
from ..values.algebra import Constant, DictValue, Known, ObjectValue, SequenceValue, TensorValue, Value
from ..values.iterators import iterate
from ..values.known import UNKNOWN, deep_use, is_plain_namedtuple, plain
from .arguments import fit, misfit
from .methods import named_method

if TYPE_CHECKING:
    from ..machine import Machine


def construct(m: Machine, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``cls(...)``: an instance made while tracing."""
    row = _named_tuple(cls, args, kwargs) or _struct_sequence(m, cls, args, kwargs)
    if row is not None:
        return row
    if attributes.class_attribute(type(cls), "__call__") is not type.__dict__["__call__"]:
        return _by_metaclass(m, cls, args, kwargs)
    if "__del__" in {n for c in cls.__mro__ for n in vars(c)}:
        raise Break("FL104", what=cls.__qualname__, why="it has a finaliser")
    if torch_private.is_wrapper_class(cls) and m.tracer.are_arguments([*args, *kwargs.values()]):
        return m.use(m.tracer.call("call_function", cls, tuple(args), kwargs, cls.__qualname__))
    if classify.is_placement(cls):
        known = [plain(deep_use(m, v)) for v in (*args, *kwargs.values())]
        if not any(v is UNKNOWN for v in known):
            return Known(cls(*known[: len(args)], **dict(zip(kwargs, known[len(args) :], strict=True))))
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
        _initialise(m, made, cls, args, kwargs, maker is object.__dict__["__new__"])
    return made


def _named_tuple(cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """An instance of a namedtuple whose ``__new__`` was generated; None for other classes, and arguments that do not fit."""
    if not (hasattr(cls, "_fields") and issubclass(cls, tuple) and cls.__new__.__code__.co_filename.startswith("<")):
        return None
    fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
    bound = dict(zip(fields, args, strict=False)) | kwargs
    defaults = getattr(cls, "_field_defaults", {})
    if set(bound) | set(defaults) >= set(fields) and all(type(defaults.get(f)) in CONSTANT_TYPES for f in fields):
        return SequenceValue([bound.get(f) or Constant(defaults[f]) for f in fields], cls)
    return None


def _struct_sequence(m: Machine, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    """A row of values that a class implemented in C names (``torch.return_types.max``, ``time.struct_time``)."""
    if len(args) != 1 or kwargs or not issubclass(cls, tuple) or not hasattr(cls, "n_sequence_fields"):
        return None
    items = iterate(m, args[0])
    return SequenceValue(items, cls) if len(items) == cls.n_sequence_fields == cls.n_fields else None  # type: ignore[attr-defined]


def _initialise(
    m: Machine, made: ObjectValue | TensorValue, cls: type, args: list[Value], kwargs: dict[str, Value], bare: bool
) -> None:
    """Runs the ``__init__`` of what ``__new__`` made; ``bare``: that of ``object`` made it, which takes no arguments."""
    kind = made.python_type
    initialise, place = attributes.class_member(m, kind, "__init__")
    if type(initialise) is types.FunctionType:
        result = m.use(m.call(attributes.bind(m, initialise, made, "__init__", place), args, kwargs))
        if not result.is_none:
            raise raising(TypeError(f"__init__() should return None, not '{result.python_type.__name__}'"))
    elif isinstance(made, TensorValue):
        return
    elif initialise is not object.__dict__["__init__"]:
        base_init(m, made, args, kwargs, initialise)
    elif (args or kwargs) and bare:
        raise raising(TypeError(f"{cls.__name__}() takes no arguments"))


def _by_metaclass(m: Machine, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(cls, enum.EnumMeta):
        known = [plain(deep_use(m, a)) for a in args]
        if UNKNOWN not in known and not kwargs and cls._member_map_:
            try:
                return Constant(cls(*known))
            except Exception as e:  # noqa: BLE001 - what the lookup of a member raises, the program raises
                raise raising(e) from None
    caller, place = attributes.class_member(m, type(cls), "__call__")
    if caller is dict:  # of typed dictionaries
        return m.call(Known(dict), args, kwargs)
    if type(caller) is types.FunctionType and place is not None:
        return m.call(attributes.bind(m, caller, Known(cls), "__call__", place), args, kwargs)
    raise Break("FL104", what=cls.__qualname__, why="its metaclass makes its instances")


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
    if issubclass(cls, BaseException) and not issubclass(cls, BaseExceptionGroup):
        return _new_exception(m, cls, owner, args)
    maker = _MAKERS.get(owner)
    made = maker(m, cls, owner, args, kwargs) if maker is not None and classify.is_heap_type(cls) else None
    if made is None:
        raise Break("FL104", what=cls.__qualname__, why="its instances are made in C")
    return made


def _new_object(m: Machine, cls: Any, owner: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    try:
        return m.tracer.objects.made(object.__new__(cls, *(None,) * len(args), **dict.fromkeys(kwargs)))
    except TypeError as e:
        if "is not safe" in str(e):
            raise Break("FL104", what=cls.__qualname__, why="its instances are made in C") from None
        raise raising(e) from None


def _new_container(m: Machine, cls: Any, owner: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return m.tracer.objects.made(_bare(owner, cls), SequenceValue([], list) if owner is list else DictValue({}, owner))


def _new_tuple(m: Machine, cls: Any, owner: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if "_fields" in vars(cls) and is_plain_namedtuple(cls):
        return SequenceValue(iterate(m, args[0]) if args else [], cls)
    names = () if type(cls.__init__) is types.FunctionType else tuple(kwargs)
    if not fit(tuple, len(args), names):
        raise misfit(tuple, len(args), names, cls.__qualname__)
    return m.tracer.objects.made(_bare(owner, cls), SequenceValue(iterate(m, args[0]) if args else [], tuple))


def _new_plain(m: Machine, cls: Any, owner: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
    known = [plain(deep_use(m, a)) for a in args]
    if UNKNOWN in known or kwargs:
        return None
    value = natural(lambda: _bare(owner, cls, *known))
    return m.tracer.objects.made(value, Constant(_PLAIN_VALUE[owner](value)))


_MAKERS: dict[type, Callable[[Machine, Any, Any, list[Value], dict[str, Value]], Value | None]] = {
    object: _new_object, OrderedDict: _new_container, dict: _new_container, list: _new_container, tuple: _new_tuple,
    **dict.fromkeys(_PLAIN_VALUE, _new_plain),
}  # fmt: skip
"""What makes an instance of a program's class, by the builtin class whose ``__new__`` it has."""


def _new_exception(m: Machine, cls: Any, owner: Any, args: list[Value]) -> ObjectValue:
    if not issubclass(cls, OSError):
        made = m.tracer.objects.made(_bare(owner, cls))
        m.tracer.effects.attributes[id(made.value), "args"] = (made, SequenceValue(list(args), tuple))
        return made
    if type(cls.__init__) is types.FunctionType and type(cls.__new__) is not types.FunctionType:
        return m.tracer.objects.made(_bare(owner, cls))  # its __init__ looks at the arguments
    known = [plain(deep_use(m, a)) for a in args]
    if UNKNOWN in known:
        raise Break("FL104", what=cls.__qualname__, why="its instances are made in C")
    made = m.tracer.objects.made(natural(lambda: _bare(owner, cls, *known)))
    m.tracer.exceptions.initialised[id(made.value)] = (None, args, {})
    return made


def natural(function: Any) -> Any:
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
        named_method(m, held, "update", args, kwargs)
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
            natural(lambda: initialise(made.value, *known[0], **known[1]))
            new = tracer.exceptions.initialised.get(key)
            tracer.exceptions.initialised[key] = (
                new if new is not None and new[0] is None else (initialise, args, kwargs)
            )
            tracer.effects.attributes.pop((key, "args"), None)  # from here on those that it has
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
