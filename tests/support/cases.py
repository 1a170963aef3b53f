"""Functions under test with the arguments that they are called with: one table for each file of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

X = torch.tensor([1.0, -2.0, 3.0])


class Cases(list[Any]):
    """Parameters of a test: a function, its calls, and how many graph breaks it has."""

    def add(self, *calls: tuple[Any, ...], breaks: int | None = 0) -> Callable[[Any], Any]:
        """Registers a function with its argument tuples (one tensor when none is given)."""

        def register(function: Any) -> Any:
            self.append(pytest.param(function, calls or ((X,),), breaks, id=function.__name__))
            return function

        return register


def error(function: Callable[[], Any]) -> Any:
    """The type and text of what a call raises."""
    try:
        return function()
    except Exception as e:  # noqa: BLE001
        return type(e), str(e)
