"""Output must appear in program order, so `print` ends one graph and starts another."""

import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def noisy(x: Float32[Tensor, "rows 64"]) -> Float32[Tensor, "rows 64"]:
    y = torch.sin(x) + 1
    print("half way:", tuple(y.shape))
    return torch.cos(y) * 2


if __name__ == "__main__":
    print(noisy(torch.randn(4, 64)).sum())
