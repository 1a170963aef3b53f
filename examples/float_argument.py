"""A Python float: the compiled code is specialised to its value, and the guard says so."""

import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def leaky(x: Float32[Tensor, "n"], slope: float = 0.1) -> Float32[Tensor, "n"]:
    return torch.where(x > 0, x, x * slope)


if __name__ == "__main__":
    x = torch.randn(16)
    print(leaky(x), leaky(x, 0.2))
