"""Instructions that build, fill and unpack tuples, lists, sets and dictionaries."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..breaks import Break, raising
from ..values import container_operators, hashing, iterators
from ..values.algebra import Constant, DictValue, ObjectValue, SequenceValue, SetValue, Value
from .operators import make_slice
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("BUILD_TUPLE")
def _build_tuple(m: Machine, n: int) -> None:
    m.push(SequenceValue(m.take_many(n), tuple))


@handles("BUILD_LIST")
def _build_list(m: Machine, n: int) -> None:
    m.push(SequenceValue(m.take_many(n), list))


@handles("BUILD_SET")
def _build_set(m: Machine, n: int) -> None:
    m.push(SetValue([hashing.key_of(m, v, hashing.ELEMENT) for v in m.take_many(n)]))


@handles("BUILD_MAP")
def _build_map(m: Machine, n: int) -> None:
    flat = m.take_many(2 * n)
    m.push(DictValue({hashing.key_of(m, k): v for k, v in zip(flat[::2], flat[1::2], strict=True)}))


@handles("BUILD_CONST_KEY_MAP")
def _build_const_key_map(m: Machine, n: int) -> None:
    keys = m.pop()
    assert isinstance(keys, SequenceValue)
    m.push(DictValue(dict(zip([hashing.key_of(m, k) for k in keys.items], m.take_many(n), strict=True))))


@handles("BUILD_SLICE")
def _build_slice(m: Machine, n: int) -> None:
    parts = [m.use(v) for v in m.take_many(n)]
    m.push(make_slice(parts + [Constant(None)] * (3 - n)))


def _list_below(m: Machine, depth: int) -> SequenceValue:
    """The list that a comprehension or display is filling; across a break (3.12 inlines comprehensions) it is an argument."""
    target = m.use(m.stack[-depth])
    if not isinstance(target, SequenceValue):
        raise Break("FL105", what="a list display", why=f"it fills {target.describe()}")
    m.tracer.effects.mutate(target)
    return target


def _dict_below(m: Machine, depth: int) -> DictValue:
    """The dictionary that a comprehension or display is filling; see :func:`_list_below`."""
    target = m.use(m.stack[-depth])
    if not isinstance(target, DictValue):
        raise Break("FL105", what="a dictionary display", why=f"it fills {target.describe()}")
    m.tracer.effects.mutate(target)
    return target


def _set_below(m: Machine, depth: int) -> SetValue:
    """The set that a comprehension or display is filling; see :func:`_list_below`."""
    target = m.use(m.stack[-depth])
    if not isinstance(target, SetValue):
        raise Break("FL105", what="a set display", why=f"it fills {target.describe()}")
    m.tracer.effects.mutate(target)
    return target


@handles("LIST_APPEND")
def _list_append(m: Machine, depth: int) -> None:
    value = m.take()
    _list_below(m, depth).items.append(value)


@handles("MAP_ADD")
def _map_add(m: Machine, depth: int) -> None:
    value, key = m.take(), m.pop()
    _dict_below(m, depth).items[hashing.key_of(m, key)] = value


@handles("SET_ADD")
def _set_add(m: Machine, depth: int) -> None:
    value = m.take()
    _set_below(m, depth).change("add", [hashing.key_of(m, value, hashing.ELEMENT)])


@handles("LIST_EXTEND")
def _list_extend(m: Machine, depth: int) -> None:
    value = m.pop()
    kind = value.python_type
    if not hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__"):
        raise raising(TypeError(f"Value after * must be an iterable, not {kind.__name__}"))
    items = iterators.iterate(m, value)
    _list_below(m, depth).items.extend(items)


@handles("SET_UPDATE")
def _set_update(m: Machine, depth: int) -> None:
    value = m.pop()
    container_operators.change_set(m, _set_below(m, depth), "union", [value])


@handles("DICT_UPDATE")
def _dict_update(m: Machine, depth: int) -> None:
    value = m.pop()
    _dict_below(m, depth).items.update(container_operators.mapping_items(m, value))


@handles("DICT_MERGE")
def _dict_merge(m: Machine, depth: int) -> None:
    value = m.pop()
    target, added = _dict_below(m, depth), container_operators.mapping_items(m, value)
    twice = [k for k in added if k in target.items]
    if twice:
        raise Break("FL105", what="keyword unpacking", why=f"{twice[0]!r} is given twice")
    target.items.update(added)


@handles("LIST_TO_TUPLE")
def _list_to_tuple(m: Machine, arg: Any) -> None:
    value = m.pop()
    assert isinstance(value, SequenceValue)
    m.push(SequenceValue(list(value.items), tuple))


def _unpacked(m: Machine, value: Value) -> list[Value]:
    """The items of a value that names are bound to."""
    kind = value.python_type
    if (
        isinstance(value, (Constant, ObjectValue))
        and not hasattr(kind, "__iter__")
        and not hasattr(kind, "__getitem__")
    ):
        raise raising(TypeError(f"cannot unpack non-iterable {kind.__name__} object"))
    return iterators.iterate(m, value)


@handles("UNPACK_SEQUENCE")
def _unpack_sequence(m: Machine, n: int) -> None:
    value = m.pop()
    items = _unpacked(m, value)
    if len(items) > n:
        counted = sys.version_info >= (3, 14) and value.python_type in (list, tuple, dict)
        raise raising(ValueError(f"too many values to unpack (expected {n}{f', got {len(items)}' if counted else ''})"))
    if len(items) < n:
        raise raising(ValueError(f"not enough values to unpack (expected {n}, got {len(items)})"))
    m.stack.extend(reversed(items))


@handles("UNPACK_EX")
def _unpack_ex(m: Machine, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    items = _unpacked(m, m.pop())
    if len(items) < before + after:
        wanted = before + after
        raise raising(ValueError(f"not enough values to unpack (expected at least {wanted}, got {len(items)})"))
    middle = SequenceValue(items[before : len(items) - after], list)
    m.stack.extend(reversed([*items[:before], middle, *items[len(items) - after :]]))
