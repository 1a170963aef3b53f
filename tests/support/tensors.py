"""Tensors for tests: the same values in every run."""

from __future__ import annotations

from typing import Any

import torch


def t(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normally distributed numbers of a fixed seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    """Random numbers that take a gradient."""
    return torch.randn(shape, **options).requires_grad_()
