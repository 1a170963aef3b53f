"""What is known while tracing: Python objects from tracked values, and back."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from .. import classify
from ..breaks import Break, raising
from ..tracing.tracer import specialise
from ..tracing.wrapping import CONSTANT_TYPES, IMMUTABLE
from .algebra import (
    ArrayValue,
    Constant,
    DequeValue,
    DictValue,
    DictView,
    IdentityKey,
    Known,
    ProxyValue,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
)
from .kinds import PerKind

if TYPE_CHECKING:
    from ..machine import Machine

UNKNOWN = object()
PURE = (torch.finfo, torch.iinfo, *IMMUTABLE)
"""Objects whose methods have no effects."""
_STATIC = (type, types.ModuleType, types.UnionType, types.GenericAlias, *PURE)


def plain(value: Value, within: tuple[Value, ...] = ()) -> Any:
    """The Python object that a value stands for when every part of it is known; else :data:`UNKNOWN`.

    A symbolic number is specialised: who asks cannot go on without knowing it.
    ``within`` are the containers being converted: one that holds itself has no plain form.
    """
    return _PLAIN[type(value)](value, within)


_PLAIN: PerKind[Any] = PerKind(lambda value, within: UNKNOWN)


@_PLAIN.of(Constant, Known)
def _plain_object(value: Constant | Known, within: tuple[Value, ...]) -> Any:
    return value.value


@_PLAIN.of(SymbolValue)
def _plain_symbol(value: SymbolValue, within: tuple[Value, ...]) -> Any:
    return specialise(value)


@_PLAIN.of(SliceValue)
def _plain_slice(value: SliceValue, within: tuple[Value, ...]) -> Any:
    bounds = [plain(p) for p in value.parts]
    return UNKNOWN if any(b is UNKNOWN for b in bounds) else slice(*bounds)


@_PLAIN.of(SetValue)
def _plain_set(value: SetValue, within: tuple[Value, ...]) -> Any:
    faithful = value.ordered and value.elements() == list(value.items) and not holds_identity(value.items)
    return type(value.items)(value.items) if faithful else UNKNOWN


@_PLAIN.of(DictView)
def _plain_view(value: DictView, within: tuple[Value, ...]) -> Any:
    mapping = plain(value.mapping, within)
    return UNKNOWN if mapping is UNKNOWN else getattr(mapping, value.which)()


@_PLAIN.of(ProxyValue)
def _plain_proxy(value: ProxyValue, within: tuple[Value, ...]) -> Any:
    mapping = plain(value.mapping, within)
    return UNKNOWN if mapping is UNKNOWN else types.MappingProxyType(mapping)


def _plain_items(container: Value, parts: Iterable[Value], within: tuple[Value, ...]) -> list[Any] | None:
    """The Python objects that the parts of a container stand for; None when one of them is not known."""
    if any(container is w for w in within):
        return None
    within = (*within, container)
    items: list[Any] = []
    for part in parts:
        item = _PLAIN[type(part)](part, within)  # a part that was not looked at (Lazy) is not known
        if item is UNKNOWN:
            return None
        items.append(item)
    return items


@_PLAIN.of(DictValue)
def _plain_dict(value: DictValue, within: tuple[Value, ...]) -> Any:
    items = _plain_items(value, value.items.values(), within)
    if items is None or value.kind not in (dict, OrderedDict) or holds_identity(value.items):
        return UNKNOWN
    return value.kind(zip(value.items, items, strict=True))


@_PLAIN.of(DequeValue)
def _plain_deque(value: DequeValue, within: tuple[Value, ...]) -> Any:
    items = _plain_items(value, value.items, within)
    return UNKNOWN if items is None else deque(items, value.maxlen)


@_PLAIN.of(SequenceValue)
def _plain_sequence(value: SequenceValue, within: tuple[Value, ...]) -> Any:
    items = _plain_items(value, value.items, within)
    if items is None:
        return UNKNOWN
    if value.kind in (list, tuple, torch.Size):
        return value.kind(items)
    return tuple.__new__(value.kind, items) if is_plain_namedtuple(value.kind) else UNKNOWN


@functools.cache
def is_plain_namedtuple(kind: type) -> bool:
    """Whether ``kind`` is as ``collections.namedtuple`` made it: nothing that is built in is redefined."""
    if kind.__bases__ != (tuple,) or not hasattr(kind, "_fields"):
        return False
    redefined = set(vars(kind)) & set(dir(tuple)) - {"__new__", "__doc__", "__repr__", "__getnewargs__"}
    shown: Any = kind.__repr__
    return not redefined and shown.__code__.co_filename == collections.__file__


def from_plain(obj: Any, what: str) -> Value:
    """The inverse of :func:`plain` for results of folded calls, and the value of a dictionary key."""
    made = _OF_BUILTIN.get(type(obj))
    if made is not None:
        return made(obj, what)
    if isinstance(obj, IdentityKey):
        return obj.value
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        return _sequence_of(obj, what)
    if isinstance(obj, types.MappingProxyType):
        return ProxyValue(from_plain(dict(obj), what))
    if type(obj) in CONSTANT_TYPES or isinstance(obj, enum.Enum):
        return Constant(obj)
    if (
        isinstance(obj, _STATIC)
        or classify.is_type_form(type(obj))
        or classify.is_library_callable(obj)
        or classify.is_numpy_description(type(obj))
    ):
        return Known(obj)
    raise Break("FL104", what=what, why=f"it returns a {type(obj).__name__}")


def _sequence_of(obj: Any, what: str) -> Value:
    return SequenceValue([from_plain(v, what) for v in obj], type(obj))


def _dict_of(obj: Any, what: str) -> Value:
    return DictValue({k: from_plain(v, what) for k, v in obj.items()}, type(obj))


def _deque_of(obj: Any, what: str) -> Value:
    return DequeValue([from_plain(v, what) for v in obj], obj.maxlen)


def _set_of(obj: Any, what: str) -> Value:
    return SetValue(obj, type(obj))


def _slice_of(obj: Any, what: str) -> Value:
    parts = [from_plain(p, what) for p in (obj.start, obj.stop, obj.step)]
    return Constant(obj) if all(isinstance(p, Constant) for p in parts) else SliceValue(parts)


_OF_BUILTIN: dict[type, Callable[[Any, str], Value]] = {
    list: _sequence_of, tuple: _sequence_of, torch.Size: _sequence_of, deque: _deque_of, dict: _dict_of,
    OrderedDict: _dict_of, set: _set_of, frozenset: _set_of, slice: _slice_of,
}  # fmt: skip
"""How an object of exactly one of these types is tracked."""


def holds_identity(keys: Iterable[Any]) -> bool:
    """Whether any of the keys stands for an object that is not known but by identity."""
    return any(
        isinstance(k, IdentityKey) or (isinstance(k, (tuple, frozenset)) and bool(k) and holds_identity(k))
        for k in keys
    )


def deep_use(m: Machine, value: Value, seen: set[int] | None = None) -> Value:
    """The value with the guards that looking at all of it needs. ``seen`` are the containers that were looked at."""
    value = m.use(value)
    _USED_DEEPLY[type(value)](m, value, set() if seen is None else seen)
    return value


_USED_DEEPLY: PerKind[None] = PerKind(lambda m, value, seen: None)


@_USED_DEEPLY.of(SequenceValue)
def _use_items(m: Machine, value: SequenceValue, seen: set[int]) -> None:
    if id(value) not in seen:
        seen.add(id(value))
        value.items[:] = [deep_use(m, v, seen) for v in value.items]  # the same list: iterators look at it


@_USED_DEEPLY.of(DictValue)
def _use_mapping(m: Machine, value: DictValue, seen: set[int]) -> None:
    if id(value) not in seen:
        seen.add(id(value))
        for key, item in value.items.items():
            value.items[key] = deep_use(m, item, seen)


@_USED_DEEPLY.of(DictView)
def _use_view(m: Machine, value: DictView, seen: set[int]) -> None:
    deep_use(m, value.mapping, seen)


@_USED_DEEPLY.of(ProxyValue)
def _use_shown(m: Machine, value: ProxyValue, seen: set[int]) -> None:
    value.mapping = deep_use(m, value.mapping, seen)


def fold(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value:
    """Computes a pure builtin while tracing. Tensors break the graph; an exception is left to eager."""
    used = [deep_use(m, a) for a in args]
    for value in used:
        if isinstance(value, SymbolValue) and m.tracer.is_needed_again(value):
            raise Break("FL104", what=what, why=f"it needs {value.describe()}, which differs from call to call")
    known = [plain(value) for value in used]
    known_kwargs = {k: plain(deep_use(m, v)) for k, v in kwargs.items()}
    if any(k is UNKNOWN for k in (*known, *known_kwargs.values())):
        unknown = next(
            a for a, k in zip((*args, *kwargs.values()), (*known, *known_kwargs.values()), strict=True) if k is UNKNOWN
        )
        if isinstance(m.use(unknown), (TensorValue, ArrayValue)):
            raise Break("FL102", what=f"{what}({unknown.describe()})")
        raise Break("FL104", what=what, why=f"its argument {unknown.describe()} is not known while tracing")
    try:
        result = function(*known, **known_kwargs)
    except Exception as e:  # noqa: BLE001 - whatever it is, the program would raise it too
        raise raising(e) from None
    return from_plain(result, what)


def full_name(kind: type) -> str:
    """The name by which CPython's newer messages call a type."""
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def integer(m: Machine, value: Value) -> int:
    index = plain(m.use(value))
    if isinstance(index, int):
        return index
    raise Break("FL105", what="an index", why=f"{value.describe()} is not known while tracing")
