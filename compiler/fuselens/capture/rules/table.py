"""The table of rules for particular callables: what a call of each means while tracing."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..values.algebra import FunctionValue, ObjectValue, Value

if TYPE_CHECKING:
    from ..machine import Machine

Rule = Callable[["Machine", list[Value], dict[str, Value]], Value]
RULES: dict[Any, Rule] = {}
FunctionRule = Callable[["Machine", FunctionValue, list[Value], dict[str, Value]], Value]
CODE_RULES: dict[types.CodeType, FunctionRule] = {}  # for functions that a library makes anew, all from one code object
# for functions of packages that need not be there, by module and name; None where the function is traced after all
NAMED_RULES: dict[tuple[str | None, str], Callable[..., Value | None]] = {}


def rule(*callables: Any) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the meaning of calls of ``callables``."""

    def register(function: Rule) -> Rule:
        for c in callables:
            RULES[c] = function
        return function

    return register


ObjectRule = Callable[["Machine", ObjectValue, list[Value], dict[str, Value]], Value]
CALLS: dict[type, ObjectRule] = {}


def called(*kinds: type) -> Callable[[ObjectRule], ObjectRule]:
    """Registers the decorated function as the meaning of calling an existing instance of exactly one of ``kinds``."""

    def register(function: ObjectRule) -> ObjectRule:
        for kind in kinds:
            CALLS[kind] = function
        return function

    return register
