"""The table of rules for particular callables: what a call of each means while tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .values import Value

if TYPE_CHECKING:
    from .machine import Machine

Rule = Callable[["Machine", list[Value], dict[str, Value]], Value]
RULES: dict[Any, Rule] = {}


def rule(*callables: Any) -> Callable[[Rule], Rule]:
    """Registers the decorated function as the meaning of calls of ``callables``."""

    def register(function: Rule) -> Rule:
        for c in callables:
            RULES[c] = function
        return function

    return register
