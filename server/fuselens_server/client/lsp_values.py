"""LSP values taken apart and put together again."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import attrs
from lsprotocol import types as lsp

T = TypeVar("T")
_SIMPLE = frozenset({str, int, bool, type(None)})
_SIMPLE_AND_PLACES = _SIMPLE | {lsp.Position, lsp.Range}


def rewritten(value: T, change: Callable[[Any], Any], places: bool = True) -> T:
    """An LSP value (or a list of them) with ``change`` made in each of its parts, innermost first; those that are places are
    passed over where nothing is to be changed in them."""
    kind = type(value)
    passed = _SIMPLE if places else _SIMPLE_AND_PLACES
    if kind in passed:
        return value
    if isinstance(value, list | tuple):
        parts = [rewritten(part, change, places) for part in value]
        same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if same else type(value)(parts)  # type: ignore[call-arg, return-value]
    names = _fields(kind)
    if names is None:
        return value
    changes: dict[str, Any] = {}
    for name in names:
        old = getattr(value, name)
        if type(old) not in passed and (new := rewritten(old, change, places)) is not old:
            changes[name] = new
    return change(attrs.evolve(value, **changes) if changes else value)  # type: ignore[type-var]


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of its fields; None for what is no LSP value of several parts."""
    return tuple(field.name for field in attrs.fields(kind)) if attrs.has(kind) else None
