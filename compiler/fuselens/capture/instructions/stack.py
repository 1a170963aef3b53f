"""Instructions that only move what is on the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..values.algebra import NULL
from .table import handles

if TYPE_CHECKING:
    from ..machine import Machine


@handles("NOP")
def _nop(m: Machine, arg: Any) -> None:
    pass


@handles("POP_TOP")
def _pop_top(m: Machine, arg: Any) -> None:
    m.take()


@handles("PUSH_NULL")
def _push_null(m: Machine, arg: Any) -> None:
    m.push(NULL)


@handles("SWAP")
def _swap(m: Machine, n: int) -> None:
    m.stack[-1], m.stack[-n] = m.stack[-n], m.stack[-1]


@handles("COPY")
def _copy(m: Machine, n: int) -> None:
    m.push(m.stack[-n])
