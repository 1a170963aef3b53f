"""Instructions of ``match`` statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..breaks import Break, raising
from ..values import attributes, hashing, iterators, known
from ..values.algebra import Constant, Known, SequenceValue, SetValue, Value
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("GET_LEN")
def _get_len(m: Machine, arg: Any) -> None:
    m.push(m.call(Known(len), [m.stack[-1]], {}))


_SEQUENCE, _MAPPING = 1 << 5, 1 << 6
"""Flags of types: how ``match`` takes their instances."""


@handles("MATCH_SEQUENCE")
def _match_sequence(m: Machine, arg: Any) -> None:
    m.push(Constant(bool(m.use(m.stack[-1]).python_type.__flags__ & _SEQUENCE)))


@handles("MATCH_MAPPING")
def _match_mapping(m: Machine, arg: Any) -> None:
    m.push(Constant(bool(m.use(m.stack[-1]).python_type.__flags__ & _MAPPING)))


@handles("MATCH_KEYS")
def _match_keys(m: Machine, arg: Any) -> None:
    keys, subject = m.use(m.stack[-1]), m.use(m.stack[-2])
    found: list[Value] = []
    seen: set[Any] = set()
    missing = SetValue((), set)  # a marker that nothing else is
    for key in iterators.iterate(m, keys):
        known_key = hashing.key_of(m, key)
        if known_key in seen:
            raise raising(ValueError(f"mapping pattern checks duplicate key ({known.plain(m.use(key))!r})"))
        seen.add(known_key)
        item = m.use(m.call(attributes.load(m, subject, "get"), [key, missing], {}))
        if item is missing:
            m.push(Constant(None))
            return
        found.append(item)
    m.push(SequenceValue(found, tuple))


def _are_names(names: list[Any]) -> bool:
    """Whether they are strings, no two the same."""
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


_MATCHED_AS_THEMSELVES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@handles("MATCH_CLASS")
def _match_class(m: Machine, n: int) -> None:
    names, cls, subject = m.pop(), m.pop(), m.pop()
    assert isinstance(names, SequenceValue)
    matches = m.call(Known(isinstance), [subject, cls], {})
    if m.truth(matches) is not True:
        m.push(Constant(None))
        return
    wanted = [known.plain(m.use(name)) for name in names.items]
    found: list[Value] = []
    if n:
        assert isinstance(cls, Known)
        fields = getattr(cls.value, "__match_args__", None)
        if fields is None and issubclass(cls.value, _MATCHED_AS_THEMSELVES) and n == 1:
            found.append(subject)
        elif isinstance(fields, tuple) and len(fields) >= n and _are_names([*fields[:n], *wanted]):
            attributes.class_member(m, cls.value, "__match_args__")
            wanted = [*fields[:n], *wanted]
        else:
            raise Break("FL105", what="a class pattern", why="its positional patterns do not fit the class")
    for name in wanted:
        item = attributes.load_or_none(m, subject, name)
        if item is None:
            m.push(Constant(None))
            return
        found.append(item)
    m.push(SequenceValue(found, tuple))
