"""What lists, tuples and dictionaries hold."""

from __future__ import annotations

from typing import Any

import torch


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in a structure, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (list, tuple)) else []
