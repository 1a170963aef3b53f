"""Instructions that read, write and delete attributes; what they mean is in ``attributes``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..breaks import Break
from ..bytecode import instruction as bytecode
from ..values import assignments, attributes
from ..values.algebra import NULL, Known, SuperValue, Value
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("LOAD_ATTR")
def _load_attr(m: Machine, name: str) -> None:
    m.push(attributes.load(m, m.pop(), name))


@handles("LOAD_METHOD")
def _load_method(m: Machine, name: str) -> None:
    _push_callable(m, attributes.load(m, m.pop(), name))


def _push_callable(m: Machine, value: Value) -> None:
    """A callable and its NULL, in this version's order."""
    m.stack.extend((NULL, value) if bytecode.NULL_FIRST else (value, NULL))


@handles("LOAD_SUPER_ATTR")
def _load_super_attr(m: Machine, arg: tuple[str, bool]) -> None:
    m.push(_super_attribute(m, arg[0]))


@handles("LOAD_SUPER_METHOD")
def _load_super_method(m: Machine, arg: tuple[str, bool]) -> None:
    _push_callable(m, _super_attribute(m, arg[0]))


def _super_attribute(m: Machine, name: str) -> Value:
    receiver, cls, function = m.pop(), m.pop(), m.pop()
    if not isinstance(function, Known) or function.value is not super or not isinstance(cls, Known):
        raise Break("FL105", what="super()", why="the name super or the class is not what it usually is")
    return attributes.load(m, SuperValue(cls.value, receiver), name)


@handles("STORE_ATTR")
def _store_attr(m: Machine, name: str) -> None:
    owner, value = m.pop(), m.take()
    assignments.store(m, owner, name, value)


@handles("DELETE_ATTR")
def _delete_attr(m: Machine, name: str) -> None:
    assignments.delete(m, m.pop(), name)
