"""Strings made of tracked values: ``str``, ``repr``, ``format``, ``%`` and f-strings."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ..breaks import Break, raising
from ..rules import torch_function
from . import attributes
from .algebra import (
    Constant,
    DequeValue,
    DictValue,
    DictView,
    Known,
    LaterText,
    ObjectValue,
    ProxyValue,
    SequenceValue,
    SetValue,
    SymbolValue,
    TensorValue,
    Value,
)
from .kinds import PerKind
from .known import UNKNOWN, deep_use, fold, holds_identity, plain

if TYPE_CHECKING:
    from ..machine import Machine


class Shown:
    """Stands in a formatted container for an object of a user's class, whose methods the machine runs."""

    def __init__(self, m: Machine, value: Value) -> None:
        self._m = m
        self._value = value

    def __repr__(self) -> str:
        return _by_method(self._m, self._value, "__repr__", [])

    def __str__(self) -> str:
        return _by_method(self._m, self._value, "__str__", [])

    def __format__(self, spec: str) -> str:
        return _by_method(self._m, self._value, "__format__", [Constant(spec)])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return displayed(self._m, attributes.load(self._m, self._value, name))


class _ShownContainer(Shown):
    """One whose class has ``__getitem__``, which ``%`` takes as a mapping."""

    def __getitem__(self, key: Any) -> Any:
        from .subscripts import subscript

        return displayed(self._m, subscript(self._m, self._value, Constant(key)))


@functools.cache
def _named(name: str, subscripted: bool) -> Any:
    """The class that stands for one of that name: error messages show it."""
    return type(name, (_ShownContainer if subscripted else Shown,), {})


class _InOrder:
    """A set that is shown in a given order."""

    def __init__(self, elements: list[Any], kind: type) -> None:
        inside = ", ".join(map(repr, elements))
        self.text = f"{{{inside}}}" if kind is set else f"{kind.__name__}({{{inside}}})"

    def __repr__(self) -> str:
        return self.text


def displayed(m: Machine, value: Value, within: tuple[Value, ...] = ()) -> Any:
    """A Python object that is shown as the one that ``value`` stands for. ``within`` are the containers that hold it."""
    value = m.use(value)
    known = plain(value)
    return _DISPLAYED[type(value)](m, value, known, within)


def _without_text(m: Machine, value: Value, known: Any, within: tuple[Value, ...]) -> Any:
    raise Break("FL105", what="a string", why=f"it shows {value.describe()}")


_DISPLAYED: PerKind[Any] = PerKind(_without_text)
"""Handlers are given ``known``, too: the plain form of the value, or that it has none."""


@_DISPLAYED.of(SymbolValue)
def _displayed_symbol(m: Machine, value: SymbolValue, known: Any, within: tuple[Value, ...]) -> Any:
    return known


@_DISPLAYED.of(Constant, Known)
def _displayed_known(m: Machine, value: Constant | Known, known: Any, within: tuple[Value, ...]) -> Any:
    if known is not UNKNOWN and _has_stable_text(known):
        return known
    raise Break("FL105", what="a string", why=f"it shows the address of {value.describe()}")


@_DISPLAYED.of(TensorValue, ObjectValue)
def _displayed_object(m: Machine, value: Value, known: Any, within: tuple[Value, ...]) -> Any:
    subscripted = attributes.class_attribute(value.python_type, "__getitem__") is not attributes.ABSENT
    return _named(value.python_type.__name__, subscripted)(m, value)


def _and(within: tuple[Value, ...], container: Value) -> tuple[Value, ...]:
    """The containers that hold what ``container`` holds."""
    if any(container is w for w in within):
        raise Break("FL105", what="a string", why="it shows a container that holds itself")
    return (*within, container)


@_DISPLAYED.of(DictView)
def _displayed_view(m: Machine, value: DictView, known: Any, within: tuple[Value, ...]) -> Any:
    return getattr(displayed(m, value.mapping, _and(within, value)), value.which)()


@_DISPLAYED.of(SequenceValue)
def _displayed_sequence(m: Machine, value: SequenceValue, known: Any, within: tuple[Value, ...]) -> Any:
    within = _and(within, value)
    items = [displayed(m, v, within) for v in value.items]
    if value.kind in (list, tuple, torch.Size):
        return value.kind(items)
    if hasattr(value.kind, "_fields") and attributes.class_attribute(value.kind, "__str__") is object.__str__:
        return tuple.__new__(value.kind, items)
    return _without_text(m, value, known, within)


@_DISPLAYED.of(DequeValue)
def _displayed_deque(m: Machine, value: DequeValue, known: Any, within: tuple[Value, ...]) -> Any:
    within = _and(within, value)
    return deque([displayed(m, v, within) for v in value.items], value.maxlen)


@_DISPLAYED.of(DictValue)
def _displayed_dict(m: Machine, value: DictValue, known: Any, within: tuple[Value, ...]) -> Any:
    within = _and(within, value)
    if value.kind not in (dict, OrderedDict, defaultdict) or holds_identity(value.items):
        return _without_text(m, value, known, within)
    pairs = {k: displayed(m, v, within) for k, v in value.items.items()}
    if value.kind is defaultdict:
        factory: Any = displayed(m, value.factory or Constant(None))
        return defaultdict(factory, pairs)
    return OrderedDict(pairs) if value.kind is OrderedDict else pairs


@_DISPLAYED.of(ProxyValue)
def _displayed_proxy(m: Machine, value: ProxyValue, known: Any, within: tuple[Value, ...]) -> Any:
    shown = displayed(m, value.mapping, _and(within, value))
    return types.MappingProxyType(shown) if issubclass(type(shown), dict) else _without_text(m, value, known, within)


@_DISPLAYED.of(SetValue)
def _displayed_set(m: Machine, value: SetValue, known: Any, within: tuple[Value, ...]) -> Any:
    stable = (value.ordered or len(value.items) < 2) and not holds_identity(value.items)
    if not stable or not all(map(_has_stable_text, value.items)):
        return _without_text(m, value, known, within)
    return known if known is not UNKNOWN else _InOrder(value.elements(), value.python_type)


def _has_stable_text(obj: Any) -> bool:
    """Whether showing an object tells nothing of where it lies in memory."""
    if isinstance(obj, (tuple, frozenset)):
        return all(map(_has_stable_text, obj))
    if type(obj) in (int, float, complex, str, bytes, bool):
        return True
    return isinstance(obj, type) or (type(obj).__repr__ is not object.__repr__ and " at 0x" not in repr(obj))


def _by_method(m: Machine, value: Value, name: str, args: list[Value]) -> str:
    """The text that an object's own method gives, or that of its builtin class."""
    if not isinstance(value, ObjectValue):
        raise Break("FL102", what=f"str({value.describe()})")
    result = attributes.special(m, value, name, args)
    if result is None:
        return _INHERITED[name](m, value, *args)
    if not isinstance(result, Constant):
        raise Break("FL105", what="a string", why=f"{value.describe()} gives text that is not known while tracing")
    if not isinstance(result.value, str):
        kind = result.python_type.__name__
        what = "__format__ must return a str" if name == "__format__" else f"{name} returned non-string"
        raise raising(TypeError(f"{what}, not {kind}" if name == "__format__" else f"{what} (type {kind})"))
    return result.value


def _inherited_format(m: Machine, value: ObjectValue, spec: Value) -> str:
    wanted = plain(spec)
    held = attributes.content(m, value)
    if held is not None and attributes.class_attribute(value.python_type, "__str__") is object.__str__:
        return format(displayed(m, held), wanted)
    if wanted:
        raise raising(TypeError(f"unsupported format string passed to {value.python_type.__name__}.__format__"))
    return _by_method(m, value, "__str__", [])


def _inherited_str(m: Machine, value: ObjectValue) -> str:
    if isinstance(value.value, BaseException):
        return _of_exception(m, value)
    held = attributes.content(m, value)
    if isinstance(held, Constant) and isinstance(held.value, str):
        return held.value
    return _by_method(m, value, "__repr__", [])


def _inherited_repr(m: Machine, value: ObjectValue) -> str:
    kind = value.python_type.__name__
    if isinstance(value.value, BaseException):
        arguments = displayed(m, attributes.load(m, value, "args"))
        return kind + (f"({arguments[0]!r})" if len(arguments) == 1 else repr(arguments))
    held = attributes.content(m, value)
    if held is None:
        raise Break("FL105", what="a string", why=f"it shows the address of {value.describe()}")
    shown = repr(displayed(m, held))
    if held.python_type in (deque, set, frozenset) or (isinstance(held, DictValue) and held.kind is not dict):
        return shown.replace(held.python_type.__name__, kind, 1)  # what CPython shows begins with the class
    return shown


_INHERITED: dict[str, Callable[..., str]] = {
    "__format__": _inherited_format, "__str__": _inherited_str, "__repr__": _inherited_repr,
}  # fmt: skip
"""What an object shows whose class does not define the method in Python."""


def _of_exception(m: Machine, value: ObjectValue) -> str:
    own = attributes.class_attribute(value.python_type, "__str__")
    if own not in (BaseException.__str__, KeyError.__str__, AttributeError.__str__, NameError.__str__):
        raise Break("FL105", what="a string", why=f"{value.python_type.__name__} shows itself in its own way")
    arguments = displayed(m, attributes.load(m, value, "args"))
    if len(arguments) == 1:
        return repr(arguments[0]) if own is KeyError.__str__ else str(arguments[0])
    return str(arguments) if arguments else ""


def text(m: Machine, function: Any, value: Value, *more: Any) -> Constant:
    """``function(value, …)`` where the function is ``str``, ``repr``, ``ascii``, ``format`` or a method of a string."""
    shown = displayed(m, value)
    try:
        return Constant(function(shown, *more))
    except (TypeError, ValueError, LookupError, AttributeError) as e:
        raise raising(e) from None


def later(m: Machine, value: Value) -> LaterText | None:
    """The text of a tensor, or of such text, in an f-string: mostly in an error's message, which nothing looks at."""
    if isinstance(value, LaterText):
        return value
    value = m.use(value)
    if not isinstance(value, TensorValue) or value.kind not in torch_function.PLAIN:
        return None
    refused = Break("FL102", what=f"str({value.describe()})")
    m.locate(refused)
    refused.step = m.tracer.now
    return LaterText(refused)


def percent(m: Machine, pattern: str | bytes, right: Value) -> Value:
    """``pattern % right``."""
    if plain(deep_use(m, right)) is UNKNOWN:
        if isinstance(pattern, bytes):
            raise Break("FL105", what="operator %", why=f"on bytes and {right.describe()}")
        return text(m, pattern.__mod__, right)
    return fold(m, pattern.__mod__, [right], {}, "operator %")


def formatted(m: Machine, pattern: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """``pattern.format(*args, **kwargs)``."""
    shown = [displayed(m, a) for a in args]
    named = {k: displayed(m, v) for k, v in kwargs.items()}
    try:
        return Constant(pattern.format(*shown, **named))
    except (TypeError, ValueError, LookupError, AttributeError) as e:
        raise raising(e) from None
