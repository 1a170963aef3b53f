"""Python's collector of cycles, kept from looking at what lives."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_FROZEN_BY_PYTHON = 1000
"""CPython 3.12 starts with 375 objects frozen; a program that freezes has more, for an interpreter makes thousands."""


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Inside, cycles stay: a compilation makes hundreds of thousands of objects that live, and Python's collector would
    look at them again and again, for a sixth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """:func:`uncollected`, for imports. What they make counts as old afterwards, so that nobody looks at it then, either."""
    ages = gc.isenabled() and gc.get_freeze_count() < _FROZEN_BY_PYTHON
    if ages:
        gc.collect(1)
    with uncollected():
        yield
        if ages:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
