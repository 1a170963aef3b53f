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


def assert_same(found: Any, expected: Any, **tolerances: Any) -> None:
    """What was computed (values, or one tensor) is what was expected: numbers but for rounding, strides, and the rest."""
    if isinstance(expected, torch.Tensor):
        found, expected = (found,), (expected,)
    for f, e in zip(found, expected, strict=True):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(f, e, equal_nan=True, **tolerances)
            assert f.stride() == e.stride()
        else:
            assert f == e
