"""What programs say about callables: that a call is one node, that its result is a constant, that it is not compiled.

Marks hang on the identity of the callable, not on an attribute: ``functools.wraps`` copies attributes to wrappers.
torch's own spellings are understood as well, without importing the compiler that they belong to.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from ... import torch_private

NODE, CONSTANT, EXCLUDED, BREAK, FORBIDDEN = "node", "constant", "excluded", "break", "forbidden"
IGNORED = "ignored"  # bookkeeping of the peer: a call does nothing and gives None
COMPILED = "compiled"  # what torch.compile wrapped: its original is traced
_marks: dict[int, tuple[Any, str]] = {}  # id → (the callable, weakly where it can be; mark)
_polyfills: dict[int, tuple[Any, types.FunctionType]] = {}


def mark(obj: Any, what: str) -> None:
    """Says ``what`` about ``obj`` for as long as it lives."""
    _marks[id(obj)] = (_weakly(obj, _marks), what)


def _weakly(obj: Any, table: dict[int, Any]) -> Any:
    key = id(obj)
    try:
        return weakref.ref(obj, lambda _: table.pop(key, None))
    except TypeError:
        return obj


def mark_of(obj: Any) -> str | None:
    """What was said about ``obj``; None when nothing was."""
    found = _marks.get(id(obj))
    return found[1] if found is not None else torch_private.peer_mark(obj)


def add_polyfill(original: Callable[..., Any], function: types.FunctionType) -> None:
    """Calls of ``original`` are traced as calls of ``function``."""
    _polyfills[id(original)] = (_weakly(original, _polyfills), function)


def polyfill(original: Any) -> types.FunctionType | None:
    found = _polyfills.get(id(original))
    return found[1] if found is not None else None


def are_hidden() -> bool:
    """Whether a program has said something that :func:`mark_of` of a function or class does not tell."""
    marked = (found() if type(found) is weakref.ref else found for found, _ in list(_marks.values()))
    return bool(_polyfills) or any(not issubclass(type(obj), (types.FunctionType, type)) for obj in marked)
