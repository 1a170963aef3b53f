"""Instructions that call and make functions; what a call means is in ``calls``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..breaks import Break, raising
from ..bytecode import instruction as bytecode
from ..values import iterators
from ..values.algebra import NULL, CellValue, DictValue, Known, MadeFunction, Null, SequenceValue
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("KW_NAMES")
def _kw_names(m: Machine, names: tuple[str, ...]) -> None:
    m.keyword_names = names


@handles("CALL")
def _call(m: Machine, n: int) -> None:
    names, m.keyword_names = m.keyword_names, ()
    _call_with(m, n, names)


@handles("CALL_KW")
def _call_kw(m: Machine, n: int) -> None:
    names = m.pop()
    assert isinstance(names, SequenceValue)
    _call_with(m, n, tuple(v.value for v in names.items))  # type: ignore[attr-defined]


def _call_with(m: Machine, n: int, names: tuple[str, ...]) -> None:
    args = m.take_many(n)
    second, first = m.take(), m.take()
    if isinstance(first, Null):
        function = second
    elif isinstance(second, Null):
        function = first
    else:
        function, args = first, [second, *args]
    split = len(args) - len(names)
    m.push(m.call(function, args[:split], dict(zip(names, args[split:], strict=True))))


@handles("CALL_FUNCTION_EX")
def _call_function_ex(m: Machine, flags: int) -> None:
    kwargs = m.pop() if flags & 1 else NULL
    args = iterators.iterate(m, m.pop())
    if bytecode.NULL_FIRST:
        function = m.take()
        m.take()
    else:
        m.take()
        function = m.take()
    if kwargs is NULL:
        kwargs = DictValue({})
    if not isinstance(kwargs, DictValue):
        raise Break("FL105", what="keyword unpacking", why=f"of {kwargs.describe()}")
    if not all(isinstance(name, str) for name in kwargs.items):
        raise raising(TypeError("keywords must be strings"))
    m.push(m.call(function, args, dict(kwargs.items)))


@handles("MAKE_FUNCTION")
def _make_function(m: Machine, flags: int | None) -> None:
    code = m.pop()
    assert isinstance(code, Known)
    made = MadeFunction(code.value, m.globals, m.globals_source)
    flags = flags or 0
    if flags & 8:
        closure = m.take()
        assert isinstance(closure, SequenceValue)
        made.closure = [c for c in closure.items if isinstance(c, CellValue)]
    if flags & 4:
        made.annotations = m.take()
    if flags & 2:
        made.kwdefaults = m.take()
    if flags & 1:
        made.defaults = m.take()
    m.push(made)


@handles("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(m: Machine, flag: int) -> None:
    made, value = m.take(), m.take()
    assert isinstance(made, MadeFunction)
    if flag == 8:
        assert isinstance(value, SequenceValue)
        made.closure = [c for c in value.items if isinstance(c, CellValue)]
    elif flag == 4:
        made.annotations = value
    elif flag == 16:
        made.annotate = value
    elif flag == 2:
        made.kwdefaults = value
    else:
        made.defaults = value
    m.push(made)
