"""Which tracked values are one object: ``left is right``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .algebra import (
    CellValue,
    Constant,
    FunctionValue,
    Known,
    MethodValue,
    NamedMethod,
    ObjectValue,
    SequenceValue,
    SliceValue,
    Value,
)
from .kinds import PerKind
from .known import UNKNOWN, plain

if TYPE_CHECKING:
    from ..machine import Machine


def identical(m: Machine, left: Value, right: Value) -> bool | None:
    """``left is right``; None when it is not decided."""
    if left is right:
        return True
    return _SAME[type(left)](m, left, right) if type(left) is type(right) else False


def _different(m: Machine, left: Value, right: Value) -> bool:
    """The answer for two values of a kind of which each object has one: they are two objects, which guards hold to."""
    if left.source is not None and right.source is not None:
        m.tracer.guard_different(left.source, right.source)
    return False


_SAME: PerKind[bool | None] = PerKind(_different)
"""Of two values of one kind, neither of which is the other."""


@_SAME.of(Constant)
def _same_constant(m: Machine, left: Constant, right: Constant) -> bool | None:
    if type(left.value) is type(right.value) is torch.device and left.source != right.source:
        return None if left.value == right.value else False  # guards hold to equal ones, which may be two objects
    if left.value is right.value:
        return True
    if isinstance(left.value, _SINGLETONS) or isinstance(right.value, _SINGLETONS):
        return False
    return None if type(left.value) is type(right.value) and left.value == right.value else False


_SINGLETONS = (type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype)


@_SAME.of(Known)
def _same_known(m: Machine, left: Known, right: Known) -> bool:
    return left.value is right.value


@_SAME.of(FunctionValue)
def _same_function(m: Machine, left: FunctionValue, right: FunctionValue) -> bool:
    return left.function is right.function or _different(m, left, right)


@_SAME.of(ObjectValue)
def _same_object(m: Machine, left: ObjectValue, right: ObjectValue) -> bool:
    return left.value is right.value or _different(m, left, right)


@_SAME.of(MethodValue, NamedMethod, SliceValue, CellValue)
def _undecided(m: Machine, left: Value, right: Value) -> None:
    return None


@_SAME.of(SequenceValue)
def _same_sequence(m: Machine, left: SequenceValue, right: SequenceValue) -> bool | None:
    if left.kind is right.kind is tuple:
        if not left.items or not right.items:
            return not left.items and not right.items
        if left.source is right.source is None and UNKNOWN is not plain(left) == plain(right):
            return None  # they may be one constant of the code
    return _different(m, left, right)
