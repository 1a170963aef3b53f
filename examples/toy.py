"""A branch that depends on data: the graph breaks at the condition and resumes, compiled, on each side."""

import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def toy(a: Float32[Tensor, "n"], b: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


if __name__ == "__main__":
    print(toy(torch.randn(10), torch.randn(10)))
