"""Tensors for tests: the same values in every run."""

from __future__ import annotations

import torch


def t(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers of a fixed seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
