"""Functions that programs under test call, or that are compiled."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def prints_and_adds(x, i):
    print("adds", i)
    return x + i


def mlp(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b)).softmax(-1)


def deep(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = F.gelu(x @ w).sin()
    return x
