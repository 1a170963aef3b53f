"""Conditions on a float that varies, as guards: each branch that a program takes by it is compiled once.

Sizes and integers have small programs that the C guard machine runs. A condition on a float is a Python object that it calls.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sympy

Formula = tuple[Any, ...]  # a function, then its operands: numbers, formulas, and () for the float


def formula(expression: Any, symbol: sympy.Symbol) -> Formula | float | None:
    """An expression of torch's shape reasoning in ``symbol`` alone, to be computed as Python computes it; None where there is none."""
    if expression == symbol:
        return ()
    if expression.is_Boolean and expression.is_Atom:
        return bool(expression)
    if expression.is_Integer:
        return int(expression)
    if expression.is_Number:
        return float(expression)
    function = _FUNCTIONS.get(type(expression).__name__)
    operands = [formula(a, symbol) for a in expression.args]
    return None if function is None or None in operands else (function, *operands)


def _each(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def folded(first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return folded


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": _each(operator.add), "Mul": _each(operator.mul), "FloatTrueDiv": operator.truediv, "IntTrueDiv": operator.truediv,
    "Pow": operator.pow, "FloatPow": operator.pow, "Abs": abs, "Min": min, "Max": max, "Mod": operator.mod,
    "PythonMod": operator.mod, "FloorDiv": operator.floordiv, "ToFloat": float, "TruncToInt": math.trunc, "TruncToFloat": math.trunc,
    "FloorToInt": math.floor, "CeilToInt": math.ceil, "RoundToInt": round,
    "Equality": operator.eq, "Unequality": operator.ne, "StrictLessThan": operator.lt, "LessThan": operator.le,
    "StrictGreaterThan": operator.gt, "GreaterThan": operator.ge, "Not": operator.not_,
    "And": _each(lambda a, b: a and b), "Or": _each(lambda a, b: a or b),
}  # fmt: skip


class FloatCondition:
    """A guard: ``condition`` is true of the float."""

    __slots__ = ("_condition", "otherwise")

    def __init__(self, condition: Formula | float, text: str) -> None:
        self._condition = condition
        self.otherwise = f"`{text}` is no longer true"

    def __call__(self, number: float) -> bool:
        try:
            return bool(_value(self._condition, number))
        except (ArithmeticError, ValueError):
            return False


def _value(of: Any, number: float) -> Any:
    if type(of) is not tuple:
        return of
    return number if not of else of[0](*[_value(operand, number) for operand in of[1:]])
