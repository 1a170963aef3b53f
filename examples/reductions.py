"""Pointwise work fused into the reduction that consumes it."""

import torch
import torch.nn.functional as F
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def relu_silu_sum_mean(x: Float32[Tensor, "rows 512"]) -> Float32[Tensor, ""]:
    y = torch.relu(x)
    y = F.silu(y)
    rows = y.sum(dim=-1)
    return rows.mean()


if __name__ == "__main__":
    print(relu_silu_sum_mean(torch.randn(64, 512)))
