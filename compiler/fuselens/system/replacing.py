"""Attributes that have other values for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_ABSENT = object()


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes have other values in the block: each is an owner, a name and a value."""
    before = [vars(owner).get(name, _ABSENT) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(changes, before, strict=True):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
