"""What operators, comparisons and subscripts give, and the break that each causes.

Pure functions of what is known of two operands: nothing is evaluated here, and nothing is reported. The caller knows the
place and reports the break.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from .values import (
    PLAIN,
    UNKNOWN,
    Array,
    Class,
    Constant,
    Container,
    Function,
    Imported,
    Instance,
    Plain,
    Tensor,
    Value,
    holds_tensors,
    item_of,
    join,
)

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Div: operator.truediv,
}  # fmt: skip
_LARGE = 2**63
_NONE = Constant(None)
_NOT_NONE = (Tensor, Container, Instance, Function, Class, Array, Imported)


class Outcome(NamedTuple):
    """A result, and the break on the way to it: its ``code`` (empty where there is none), ``what`` breaks (empty: the source
    at the place) and ``why``."""

    value: Value
    code: str = ""
    what: str = ""
    why: str = ""


# --- arithmetic -----------------------------------------------------------------------------------------------------


def operated(kind: ast.operator, left: Value, right: Value) -> Outcome:
    """The result of an arithmetic or bitwise operator, also in place."""
    if isinstance(left, Constant) and isinstance(left.value, str):
        return _of_text(kind, left.value, right)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return _of_tensors(kind, left, right)
    if isinstance(left, Array) or isinstance(right, Array):
        return Outcome(Array())
    if isinstance(left, Container):
        return Outcome(_of_container(kind, left, right))
    if isinstance(left, Constant) and isinstance(right, Constant) and type(kind) in _ARITHMETIC:
        return Outcome(_computed(_ARITHMETIC[type(kind)], left.value, right.value))
    return Outcome(PLAIN if isinstance(left, Plain) and isinstance(right, Plain) else UNKNOWN)


def _of_text(kind: ast.operator, text: str, right: Value) -> Outcome:
    """Formatting asks a tensor for its value, and so does repeating the text as often as a tensor says."""
    if isinstance(kind, ast.Mod):
        values = right.elements or () if isinstance(right, Container) else (right,)
        asks = "%s" in text and any(isinstance(v, Tensor) for v in values)
    else:
        asks = isinstance(kind, ast.Mult) and isinstance(right, Tensor)
    return Outcome(PLAIN, "FL102" if asks else "")


def _of_tensors(kind: ast.operator, left: Value, right: Value) -> Outcome:
    if isinstance(left, Container) or isinstance(right, Container):
        if isinstance(kind, ast.Mult):
            return Outcome(UNKNOWN, "FL105", "operator *", "on a list and a Tensor")
        return Outcome(UNKNOWN)
    bits = isinstance(kind, ast.BitAnd | ast.BitOr | ast.BitXor)
    masks = all(not isinstance(v, Tensor) or v.mask for v in (left, right))
    result = elementwise(left, right, mask=bits and masks)
    return Outcome(replace(result, single=False) if isinstance(kind, ast.MatMult) else result)


def _of_container(kind: ast.operator, left: Container, right: Value) -> Value:
    if isinstance(kind, ast.Add) and isinstance(right, Container):
        return join(replace(left, elements=None), replace(right, elements=None))
    return replace(left, elements=None) if isinstance(kind, ast.Mult) else UNKNOWN


def _computed(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Value:
    """The result for two numbers of usual size."""
    if not all(isinstance(v, int | float) and abs(v) < _LARGE for v in (left, right)):
        return PLAIN
    try:
        return Constant(function(left, right))
    except ArithmeticError:
        return PLAIN


def elementwise(left: Value, right: Value, mask: bool = False) -> Tensor:
    """The tensor that broadcasting two operands gives."""
    sides = [v for v in (left, right) if not isinstance(v, Plain)]
    return Tensor(mask, all(isinstance(v, Tensor) and v.single for v in sides))


# --- comparisons ----------------------------------------------------------------------------------------------------


def compared(kind: ast.cmpop, left: Value, right: Value) -> Outcome:
    """The result of one comparison of a chain."""
    match kind:
        case ast.Is() | ast.IsNot():
            return Outcome(_identical(left, right, negated=isinstance(kind, ast.IsNot)))
        case ast.In() | ast.NotIn():
            return Outcome(PLAIN, "FL102" if _searches_tensors(left, right) else "")
    return Outcome(_ordered(kind, left, right))


def _identical(left: Value, right: Value, negated: bool) -> Value:
    if isinstance(left, Constant) and isinstance(right, Constant):
        return Constant((left.value is right.value) != negated)
    return Constant(negated) if right == _NONE and isinstance(left, _NOT_NONE) else PLAIN


def _searches_tensors(item: Value, container: Value) -> bool:
    """Whether a search compares tensors and asks for the truth of the result."""
    if isinstance(container, Tensor) or (holds_tensors(container) and not isinstance(item, Constant)):
        return True
    return isinstance(item, Tensor) and isinstance(container, Container) and bool(container.elements)


def _ordered(kind: ast.cmpop, left: Value, right: Value) -> Value:
    if _NONE in (left, right):
        return PLAIN
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return elementwise(left, right, mask=True)
    if isinstance(left, Constant) and isinstance(right, Constant) and type(kind) in _COMPARISONS:
        try:
            return Constant(_COMPARISONS[type(kind)](left.value, right.value))
        except TypeError:
            return PLAIN
    return PLAIN if isinstance(left, Plain) or isinstance(right, Plain) else UNKNOWN


# --- subscripts -----------------------------------------------------------------------------------------------------


def subscripted(value: Value, index: Value, *, sliced: bool) -> Outcome:
    """What reading ``value`` at ``index`` gives; ``sliced``: the index is one slice."""
    match value:
        case Tensor():
            return Outcome(Tensor(value.mask), _code_of_index(index))
        case Plain():
            return Outcome(PLAIN)
        case Array():
            return Outcome(Array())
        case Container():
            return _element(value, index, sliced)
        case Instance():
            return Outcome(item_of(value))
    return Outcome(UNKNOWN)


def _code_of_index(index: Value) -> str:
    """Masks give a shape that depends on data; a tensor without dimensions is asked for its number."""
    parts = index.elements or () if isinstance(index, Container) else (index,)
    if any(isinstance(p, Tensor) and p.mask and not p.single for p in parts):
        return "FL108"
    return "FL102" if any(isinstance(p, Tensor) and p.single and not p.mask for p in parts) else ""


def _element(container: Container, index: Value, sliced: bool) -> Outcome:
    if isinstance(index, Constant) and container.elements is not None and not container.mapping:
        try:
            return Outcome(container.elements[index.value])
        except (IndexError, TypeError):
            return Outcome(UNKNOWN)
    value = replace(container, elements=None) if sliced else container.item
    return Outcome(value, *unknown_position(container, index))


def unknown_position(container: Value, index: Value) -> tuple[str, str, str]:
    """The break of reading or writing a sequence where a tensor says; its code is empty where there is none."""
    if isinstance(container, Container) and isinstance(index, Tensor) and not container.mapping:
        return "FL105", "an index", "a Tensor is not known while tracing"
    return "", "", ""
