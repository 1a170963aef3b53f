"""What is known while tracing: Python objects from tracked values, and back."""

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from .. import classify
from ..breaks import Break, Raised, raising
from ..tracing.tracer import CONSTANT_TYPES, IMMUTABLE, specialise
from . import attributes
from .algebra import (
    Constant,
    DequeValue,
    DictValue,
    DictView,
    FunctionValue,
    IdentityKey,
    Known,
    Lazy,
    MadeFunction,
    ObjectValue,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SliceValue,
    SymbolValue,
    TensorValue,
    Value,
)

if TYPE_CHECKING:
    from ..machine import Machine
    from ..tracing.tracer import Tracer

UNKNOWN = object()
PURE = (torch.finfo, torch.iinfo, *IMMUTABLE)
"""Objects whose methods have no effects."""
_STATIC = (type, types.ModuleType, types.UnionType, types.GenericAlias, *PURE)


def plain(value: Value, within: tuple[Value, ...] = ()) -> Any:
    """The Python object that a value stands for when every part of it is known; else :data:`UNKNOWN`.

    A symbolic number is specialised: who asks cannot go on without knowing it.
    ``within`` are the containers being converted: one that holds itself has no plain form.
    """
    if isinstance(value, (Constant, Known)):
        return value.value
    if isinstance(value, SymbolValue):
        return specialise(value)
    if isinstance(value, SliceValue):
        bounds = [plain(p) for p in value.parts]
        return UNKNOWN if any(b is UNKNOWN for b in bounds) else slice(*bounds)
    if isinstance(value, SetValue):
        faithful = value.ordered and value.elements() == list(value.items) and not holds_identity(value.items)
        return type(value.items)(value.items) if faithful else UNKNOWN
    if isinstance(value, DictView):
        mapping = plain(value.mapping, within)
        return UNKNOWN if mapping is UNKNOWN else getattr(mapping, value.which)()
    if not isinstance(value, (SequenceValue, DictValue)) or any(value is w for w in within):
        return UNKNOWN
    within = (*within, value)
    items: list[Any] = []
    for part in value.items if isinstance(value, SequenceValue) else value.items.values():
        item = UNKNOWN if isinstance(part, Lazy) else plain(part, within)
        if item is UNKNOWN:
            return UNKNOWN
        items.append(item)
    if isinstance(value, DictValue):
        if value.kind not in (dict, OrderedDict) or holds_identity(value.items):
            return UNKNOWN
        return value.kind(zip(value.items, items, strict=True))
    if isinstance(value, DequeValue):
        return deque(items, value.maxlen)
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
    if isinstance(obj, IdentityKey):
        return obj.value
    if type(obj) is deque:
        return DequeValue([from_plain(v, what) for v in obj], obj.maxlen)
    if type(obj) in (list, tuple, torch.Size) or (isinstance(obj, tuple) and hasattr(obj, "_fields")):
        return SequenceValue([from_plain(v, what) for v in obj], type(obj))
    if isinstance(obj, types.MappingProxyType):
        return from_plain(dict(obj), what)
    if isinstance(obj, dict) and type(obj) in (dict, OrderedDict):
        return DictValue({k: from_plain(v, what) for k, v in obj.items()}, type(obj))
    if type(obj) in (set, frozenset):
        return SetValue(obj, type(obj))
    if type(obj) is slice:
        parts = [from_plain(p, what) for p in (obj.start, obj.stop, obj.step)]
        return Constant(obj) if all(isinstance(p, Constant) for p in parts) else SliceValue(parts)
    if type(obj) in CONSTANT_TYPES or isinstance(obj, enum.Enum):
        return Constant(obj)
    if isinstance(obj, _STATIC) or classify.is_library_callable(obj) or classify.is_numpy_description(type(obj)):
        return Known(obj)
    raise Break("FL104", what=what, why=f"it returns a {type(obj).__name__}")


def holds_identity(keys: Iterable[Any]) -> bool:
    """Whether any of the keys stands for an object that is not known but by identity."""
    return any(
        isinstance(k, IdentityKey) or (isinstance(k, (tuple, frozenset)) and bool(k) and holds_identity(k))
        for k in keys
    )


def hashed_keys(keys: Iterable[Any]) -> list[HashedKey]:
    """The keys among those given, or held by them, that the machine hashes."""
    found: list[HashedKey] = []
    for key in keys:
        if isinstance(key, HashedKey):
            found.append(key)
        elif isinstance(key, (tuple, frozenset)):
            found += hashed_keys(key)
    return found


def identity_values(keys: Iterable[Any]) -> list[Value]:
    """The tracked objects that the keys stand for or hold."""
    found: list[Value] = []
    for key in keys:
        if isinstance(key, IdentityKey):
            found.append(key.value)
        elif isinstance(key, (tuple, frozenset)):
            found += identity_values(key)
    return found


def deep_use(m: Machine, value: Value, seen: set[int] | None = None) -> Value:
    """The value with the guards that looking at all of it needs."""
    value = m.use(value)
    if isinstance(value, (SequenceValue, DictValue)):
        seen = set() if seen is None else seen
        if id(value) in seen:
            return value
        seen.add(id(value))
        if isinstance(value, DictValue):
            for key, item in value.items.items():
                value.items[key] = deep_use(m, item, seen)
        else:
            value.items[:] = [deep_use(m, v, seen) for v in value.items]  # the same list: iterators look at it
    elif isinstance(value, DictView):
        deep_use(m, value.mapping, seen)
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


class NumberKey(IdentityKey):
    """A number that only the running program knows: not the object that it may be the ``id`` of."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberKey) and other.token is self.token

    def __hash__(self) -> int:
        return hash((id(self.token), "number"))


class HashedKey(IdentityKey):
    """A key whose class defines ``__hash__`` and ``__eq__`` in Python: the machine runs them.

    ``born`` is the step of the outermost frame at which it was first used. ``pure``: hashing it again shows nowhere.
    """

    __slots__ = ("machine", "hash", "born", "pure", "_attributes")

    def __init__(self, machine: Machine, value: ObjectValue, hashed: int, pure: bool) -> None:
        super().__init__(value, value)
        self.machine = machine
        self.hash = hashed
        self.born = machine.tracer.now
        self.pure = pure
        self._attributes = machine.tracer.attributes_of(value)

    def lasts(self, tracer: Tracer) -> bool:
        """Whether the key would be hashed as it was, which an object may not be that was assigned to since."""
        assert isinstance(self.value, ObjectValue)
        return self.pure and tracer.attributes_of(self.value) == self._attributes

    def __eq__(self, other: object) -> bool:
        from .operators import equal

        return equal(self.machine, self.value, from_plain(other, "a dictionary key"))

    def __hash__(self) -> int:
        return self.hash


ELEMENT = "a set element"


def key_of(m: Machine, value: Value, use: str = "a dict key") -> Any:
    """What stands for a dictionary key or set element: see :class:`DictValue`. ``use`` is what 3.14 calls it where it
    cannot be hashed; nothing for what is hashed only."""
    try:
        return _key_of(m, value)
    except Raised as raised:
        if sys.version_info < (3, 14) or not use or raised.kind is not TypeError:
            raise
        from . import text

        why = text.text(m, str, raised.value)
        if not isinstance(why, Constant):
            raise
        name = full_name(m.use(value).python_type)
        raise raising(TypeError(f"cannot use '{name}' as {use} ({why.value})")) from None


def full_name(kind: type) -> str:
    """The name by which CPython's newer messages call a type."""
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _key_of(m: Machine, value: Value) -> Any:
    value = m.use(value)
    if isinstance(value, SymbolValue):
        return plain(value)
    if isinstance(value, (Constant, Known)):
        try:
            hash(value.value)
        except TypeError as e:
            raise raising(e) from None
        return value.value
    if isinstance(value, SequenceValue) and issubclass(value.kind, tuple):
        keys = [_key_of(m, v) for v in value.items]
        return torch.Size(keys) if value.kind is torch.Size else tuple.__new__(value.kind, keys)
    if isinstance(value, SetValue) and type(value.items) is frozenset:
        return value.items
    if isinstance(value, (SequenceValue, DictValue, SetValue)):
        raise raising(TypeError(f"unhashable type: '{value.python_type.__name__}'"))
    if isinstance(value, FunctionValue):
        return m.tracer.identity_key(value.function, value)
    if isinstance(value, RuntimeNumber):
        return NumberKey(value.token, value)
    if isinstance(value, (MadeFunction, TensorValue)):
        return m.tracer.identity_key(value, value)
    if isinstance(value, ObjectValue):
        return _object_key(m, value)
    raise Break("FL105", what="a dictionary key", why=f"{value.describe()} is not known while tracing")


def _object_key(m: Machine, value: ObjectValue) -> IdentityKey:
    kind = value.python_type
    hasher, place = attributes.class_member(m, kind, "__hash__")
    if hasher is None:
        raise raising(TypeError(f"unhashable type: '{kind.__name__}'"))
    comparison, _ = attributes.class_member(m, kind, "__eq__")
    if hasher is object.__dict__["__hash__"] and comparison is object.__dict__["__eq__"]:
        return m.tracer.identity_key(value.value, value)
    before = m.tracer.effects_so_far()
    hashed = m.use(m.call(attributes.bind(m, hasher, value, "__hash__", place), [], {}))
    if isinstance(hashed, Constant) and isinstance(hashed.value, int):
        variables = getattr(hasher, "__closure__", None) and hasher.__code__.co_freevars != ("__class__",)
        return HashedKey(m, value, hashed.value, before == m.tracer.effects_so_far() and not variables)
    raise Break("FL105", what="a dictionary key", why=f"the hash of {value.describe()} is not known while tracing")


def integer(m: Machine, value: Value) -> int:
    index = plain(m.use(value))
    if isinstance(index, int):
        return index
    raise Break("FL105", what="an index", why=f"{value.describe()} is not known while tracing")
