"""Instructions of f-strings and template strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..breaks import Break
from ..rules import templates
from ..values import known, text
from ..values.algebra import Constant, LaterText, SequenceValue
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("BUILD_STRING")
def _build_string(m: Machine, n: int) -> None:
    taken = m.take_many(n)
    if later := next((v for v in taken if isinstance(v, LaterText)), None):
        m.push(later)
        return
    parts = [m.use(v) for v in taken]
    if not all(isinstance(p, Constant) for p in parts):
        raise Break("FL105", what="an f-string", why="it formats a value that is not known yet")
    m.push(Constant("".join(p.value for p in parts)))  # type: ignore[attr-defined]


@handles("CONVERT_VALUE")
def _convert_value(m: Machine, arg: Any) -> None:
    function = {1: str, 2: repr, 3: ascii}[arg]
    value = m.take()
    m.push(text.later(m, value) or text.text(m, function, value))


@handles("FORMAT_SIMPLE")
def _format_simple(m: Machine, arg: Any) -> None:
    value = m.take()
    m.push(text.later(m, value) or text.text(m, format, value))


@handles("FORMAT_WITH_SPEC")
def _format_with_spec(m: Machine, arg: Any) -> None:
    spec = known.plain(m.pop())
    if spec is known.UNKNOWN:
        raise Break("FL105", what="an f-string", why="its format is not known yet")
    m.push(text.text(m, format, m.pop(), spec))


@handles("BUILD_INTERPOLATION")
def _build_interpolation(m: Machine, flags: int) -> None:
    spec = m.pop() if flags & 1 else Constant("")
    text_, value = m.pop(), m.take()
    m.push(templates.interpolation(value, text_, flags, spec))


@handles("BUILD_TEMPLATE")
def _build_template(m: Machine, arg: Any) -> None:
    interpolations, strings = m.pop(), m.pop()
    assert isinstance(strings, SequenceValue) and isinstance(interpolations, SequenceValue)
    m.push(templates.TemplateValue(strings, interpolations))
