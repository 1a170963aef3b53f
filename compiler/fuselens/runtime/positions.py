"""Values at some positions of a sequence, chosen once and picked in each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """``values -> tuple(values[p] for p in positions)`` without a Python loop."""
    if not positions:
        return lambda values: ()
    if len(positions) == 1:
        (only,) = positions
        return lambda values: (values[only],)
    return itemgetter(*positions)
