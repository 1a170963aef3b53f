"""Kernels for an H100, on a machine that need not have one: as Triton, and what becomes of it down to SASS."""

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float32
from torch import Tensor, nn

import fuselens

h100 = {"target": "cuda:sm_90"}  # not needed where tensors are on a GPU


@fuselens.compile(options=h100)
def norm_gelu(
    x: BFloat16[Tensor, "rows 1024"],
    residual: BFloat16[Tensor, "rows 1024"],
    weight: BFloat16[Tensor, "1024"],
    bias: BFloat16[Tensor, "1024"],
) -> BFloat16[Tensor, "rows 1024"]:
    y = x + residual
    y = F.layer_norm(y, (1024,), weight, bias)
    return F.gelu(y)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.first(x)))
        return F.cross_entropy(self.second(hidden), target)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(128, 32), torch.randint(0, 10, (128,))


model = fuselens.compile(MLP(), example_inputs=batch, mode="reduce-overhead", options=h100)


@fuselens.compile(options=h100)
def clipped(x: Float32[Tensor, "n"], limit: float = 3.0) -> Float32[Tensor, "n"]:
    scaled = torch.sin(x) * 2
    if scaled.abs().max() > limit:
        scaled = scaled.clamp(-limit, limit)
    return scaled.softmax(0)


@fuselens.compile(mode="max-autotune", options=h100)
def matmul_gelu(x: BFloat16[Tensor, "256 512"], w: BFloat16[Tensor, "512 128"]) -> BFloat16[Tensor, "256 128"]:
    return F.gelu(x @ w)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"  # there C++ kernels run in their place
    x = torch.randn(16, 1024, dtype=torch.bfloat16, device=device)
    print(norm_gelu(x, x, x[0], x[1]).mean())
