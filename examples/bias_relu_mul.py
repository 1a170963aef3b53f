"""Three pointwise operations, one kernel."""

import torch
from jaxtyping import Float32
from torch import Tensor

import fuselens


@fuselens.compile
def bias_relu_mul(
    x: Float32[Tensor, "rows 256"], bias: Float32[Tensor, "256"], scale: Float32[Tensor, "rows 256"]
) -> Float32[Tensor, "rows 256"]:
    y = x + bias
    y = torch.relu(y)
    return y * scale


if __name__ == "__main__":
    print(bias_relu_mul(torch.randn(8, 256), torch.randn(256), torch.randn(8, 256)).mean())
