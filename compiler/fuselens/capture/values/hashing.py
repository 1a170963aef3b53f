"""What stands for an object as a dictionary key or set element, and how such a key is hashed and compared."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..breaks import Break, Raised, raising
from . import attributes
from .algebra import (
    Constant,
    DictValue,
    FunctionValue,
    IdentityKey,
    Known,
    MadeFunction,
    ObjectValue,
    RuntimeNumber,
    SequenceValue,
    SetValue,
    SymbolValue,
    TensorValue,
    Value,
)
from .kinds import PerKind
from .known import from_plain, full_name, plain

if TYPE_CHECKING:
    from ..machine import Machine
    from ..tracing.tracer import Tracer


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
        self._attributes = machine.tracer.effects.attributes_of(value)

    def lasts(self, tracer: Tracer) -> bool:
        """Whether the key would be hashed as it was, which an object may not be that was assigned to since."""
        assert isinstance(self.value, ObjectValue)
        return self.pure and tracer.effects.attributes_of(self.value) == self._attributes

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


def _key_of(m: Machine, value: Value) -> Any:
    value = m.use(value)
    return _KEYS[type(value)](m, value)


def _no_key(m: Machine, value: Value) -> Any:
    raise Break("FL105", what="a dictionary key", why=f"{value.describe()} is not known while tracing")


_KEYS: PerKind[Any] = PerKind(_no_key)


@_KEYS.of(SymbolValue)
def _symbol_key(m: Machine, value: SymbolValue) -> Any:
    return plain(value)


@_KEYS.of(Constant, Known)
def _known_key(m: Machine, value: Constant | Known) -> Any:
    try:
        hash(value.value)
    except TypeError as e:
        raise raising(e) from None
    return value.value


@_KEYS.of(SequenceValue)
def _tuple_key(m: Machine, value: SequenceValue) -> Any:
    if not issubclass(value.kind, tuple):
        raise _unhashable(value.kind)
    keys = [_key_of(m, v) for v in value.items]
    return torch.Size(keys) if value.kind is torch.Size else tuple.__new__(value.kind, keys)


@_KEYS.of(DictValue, SetValue)
def _collection_key(m: Machine, value: DictValue | SetValue) -> Any:
    if type(value.items) is frozenset:
        return value.items
    raise _unhashable(value.python_type)


def _unhashable(kind: type) -> Raised:
    return raising(TypeError(f"unhashable type: '{kind.__name__}'"))


@_KEYS.of(FunctionValue)
def _function_key(m: Machine, value: FunctionValue) -> IdentityKey:
    return m.tracer.objects.identity_key(value.function, value)


@_KEYS.of(RuntimeNumber)
def _number_key(m: Machine, value: RuntimeNumber) -> IdentityKey:
    if value.function in (hash, torch.Tensor.data_ptr) or isinstance(value.token, Constant):
        raise Break("FL105", what="a dictionary key", why="it is a number that only the running program knows")
    return NumberKey(value.token, value)


def key_among(m: Machine, items: Collection[Any], value: Value, use: str = "a dict key") -> Any:
    """The key of a value that is looked up among ``items``. The ``id`` of an object may be one of the integers there: that of an
    existing object, which is guarded to be this one, is known then; that of any other is not."""
    key = key_of(m, value, use)
    if not isinstance(key, NumberKey) or key in items or not any(type(k) is int and k >= _LOWEST for k in items):
        return key
    found = _identified(m, key.value)
    if found is None:
        raise Break(
            "FL105",
            what="a dictionary key",
            why="it is the id of an object, which may be one of the integers that are there",
        )
    return id(found)


_LOWEST = 4096  # no object has an address in the first page of memory


def _identified(m: Machine, number: Value) -> Any:
    """The existing object that a number is the ``id`` of, guarded to be this one; None where each call may bring another."""
    if not isinstance(number, RuntimeNumber) or number.function is not id:
        return None
    (value,) = number.args
    if value.source is None or value.source.is_argument:
        return None
    if isinstance(value, TensorValue):
        found = next((given for source, given in m.tracer.graphs.inputs if source == value.source), None)
    else:
        found = value.function if isinstance(value, FunctionValue) else getattr(value, "value", None)
    if found is not None:
        m.tracer.guard_identity(value.source, found)
    return found


@_KEYS.of(MadeFunction, TensorValue)
def _identity_key(m: Machine, value: MadeFunction | TensorValue) -> IdentityKey:
    return m.tracer.objects.identity_key(value, value)


@_KEYS.of(ObjectValue)
def _object_key(m: Machine, value: ObjectValue) -> IdentityKey:
    kind = value.python_type
    hasher, place = attributes.class_member(m, kind, "__hash__")
    if hasher is None:
        raise _unhashable(kind)
    comparison, _ = attributes.class_member(m, kind, "__eq__")
    if hasher is object.__dict__["__hash__"] and comparison is object.__dict__["__eq__"]:
        return m.tracer.objects.identity_key(value.value, value)
    before = m.tracer.effects.so_far()
    hashed = m.use(m.call(attributes.bind(m, hasher, value, "__hash__", place), [], {}))
    if isinstance(hashed, Constant) and isinstance(hashed.value, int):
        variables = getattr(hasher, "__closure__", None) and hasher.__code__.co_freevars != ("__class__",)
        return HashedKey(m, value, hashed.value, before == m.tracer.effects.so_far() and not variables)
    raise Break("FL105", what="a dictionary key", why=f"the hash of {value.describe()} is not known while tracing")
