"""LSP values taken apart and put together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import attrs

T = TypeVar("T")


def rewritten(value: T, change: Callable[[Any], Any]) -> T:
    """An LSP value (or a list of them) with ``change`` made in each of its parts, innermost first."""
    if isinstance(value, list | tuple):
        parts = [rewritten(part, change) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)  # type: ignore[call-arg, return-value]
    if not attrs.has(type(value)):
        return value
    old = {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    new = {name: rewritten(part, change) for name, part in old.items()}
    changes = {name: part for name, part in new.items() if part is not old[name]}
    return change(attrs.evolve(value, **changes) if changes else value)  # type: ignore[type-var]
