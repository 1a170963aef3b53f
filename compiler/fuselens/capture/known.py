"""What is known while tracing: Python objects from tracked values, and back."""

from __future__ import annotations

import enum
import inspect
import types
from typing import TYPE_CHECKING, Any

import torch

from .breaks import Break, raising
from .tracer import CONSTANT_TYPES, specialise
from .values import (
    Constant,
    DictValue,
    DictView,
    Known,
    Lazy,
    SequenceValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
)

if TYPE_CHECKING:
    from .machine import Machine

UNKNOWN = object()


def plain(value: Value) -> Any:
    """The Python object that a value stands for when every part of it is known; else :data:`UNKNOWN`.

    A symbolic number is specialised: who asks cannot go on without knowing it.
    """
    if isinstance(value, Constant):
        return value.value
    if isinstance(value, SymbolValue):
        return specialise(value)
    if isinstance(value, SliceValue):
        bounds = [plain(p) for p in value.parts]
        return UNKNOWN if any(b is UNKNOWN for b in bounds) else slice(*bounds)
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
    if type(obj) in (dict, types.MappingProxyType):
        return DictValue({k: from_plain(v, what) for k, v in obj.items()})
    if type(obj) in CONSTANT_TYPES or type(obj) is slice or isinstance(obj, enum.Enum):
        return Constant(obj)
    if isinstance(obj, (torch.finfo, torch.iinfo, type, inspect.Signature, inspect.Parameter)):
        return Known(obj)
    raise Break("FL104", what=what, why=f"it returns a {type(obj).__name__}")


def deep_use(m: Machine, value: Value) -> Value:
    value = m.use(value)
    if isinstance(value, SequenceValue):
        value.items[:] = [deep_use(m, v) for v in value.items]  # the same list: iterators look at it
    return value


def fold(m: Machine, function: Any, args: list[Value], kwargs: dict[str, Value], what: str) -> Value:
    """Computes a pure builtin while tracing. Tensors break the graph; an exception is left to eager."""
    known = [plain(deep_use(m, a)) for a in args]
    known_kwargs = {k: plain(deep_use(m, v)) for k, v in kwargs.items()}
    if any(k is UNKNOWN for k in (*known, *known_kwargs.values())):
        unknown = next(
            a for a, k in zip((*args, *kwargs.values()), (*known, *known_kwargs.values()), strict=True) if k is UNKNOWN
        )
        if isinstance(m.use(unknown), TensorValue):
            raise Break("FL102", what=f"{what}({unknown.describe()})")
        raise Break("FL104", what=what, why=f"its argument {unknown.describe()} is not known while tracing")
    try:
        result = function(*known, **known_kwargs)
    except Exception as e:  # noqa: BLE001 - whatever it is, the program would raise it too
        raise raising(e) from None
    return from_plain(result, what)


def key_of(m: Machine, value: Value) -> Any:
    """The Python object of a dictionary key."""
    key = plain(deep_use(m, value))
    if key is UNKNOWN:
        raise Break("FL105", what="a dictionary key", why=f"{value.describe()} is not known while tracing")
    try:
        hash(key)
    except TypeError as e:
        raise raising(e) from None
    return key


def integer(m: Machine, value: Value) -> int:
    index = plain(m.use(value))
    if isinstance(index, int):
        return index
    raise Break("FL105", what="an index", why=f"{value.describe()} is not known while tracing")
