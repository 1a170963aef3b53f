"""A product of matrices on a GPU that may be computed on padded operands, or apart from its bias: what its time depends on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

ALIGNED = 16  # bytes


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times columns, over what is ``summed``, in each of ``batch``; ``turned`` says which operands lie by columns. Sizes are
    those of the example."""

    dtype: str
    batch: int
    rows: int
    columns: int
    summed: int
    turned: tuple[bool, bool]
    bias: bool


def lacking(size: int, dtype: torch.dtype) -> int:
    """Elements that lack to the next aligned size."""
    return -size % (ALIGNED // dtype.itemsize)
