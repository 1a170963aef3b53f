"""What lists, tuples and dictionaries hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Values = list[tuple[str, Any]]  # each with where it is


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a structure, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The structure, with what ``function`` makes of all that it holds."""
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(function, item) for item in value)
    if isinstance(value, dict):
        return {key: mapped(function, item) for key, item in value.items()}
    return function(value)


def leaves(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What is in a structure, each with where it is: ``result[0]['x']``. Arrays of numpy's are tensors."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(f"{where}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from leaves(f"{where}[{number}]", item)
    elif hasattr(value, "__array_interface__") and not isinstance(value, type):
        yield where, torch.as_tensor(value, device="cpu")
    else:
        yield where, value
