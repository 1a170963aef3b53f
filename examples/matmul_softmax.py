"""A matrix product by the vendor library, then a softmax in one kernel."""

import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def matmul_softmax(x: Float32[Tensor, "rows 128"], w: Float32[Tensor, "128 256"]) -> Float32[Tensor, "rows 256"]:
    scores = x @ w
    return torch.softmax(scores, dim=-1)


if __name__ == "__main__":
    print(matmul_softmax(torch.randn(32, 128), torch.randn(128, 256)).sum(-1))
