"""What is measured. Each workload makes a function, its inputs, and says whether a backward follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .suite import SUITE, Workload
from .suite import function as _function
from .suite import randn as _randn


def toy(a, b):
    x = a / (a.abs() + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def add_one(x):
    return x + 1


def bias_relu_mul(x, bias, scale):
    return torch.relu(x + bias) * scale


def matmul_softmax(x, w):
    return torch.softmax(x @ w, dim=-1)


def relu_silu_sum_mean(x):
    return F.silu(torch.relu(x)).sum(dim=-1).mean()


def leaky(x, slope):
    return torch.where(x > 0, x, x * slope)


def softmax_gelu_tanh(x, r):
    return torch.softmax(F.gelu(x) + torch.tanh(r), dim=-1)


class TinyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) * 0.5


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(256, 512), nn.LayerNorm(512), nn.Linear(512, 64)

    def forward(self, x, target):
        return F.cross_entropy(self.second(F.gelu(self.norm(self.first(x)))), target)


def _mlp(device: str) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return MLP().to(device), (_randn(256, 256, device=device), torch.arange(256, device=device) % 64)


def _tiny(device: str) -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return TinyModel().to(device), (_randn(4, 16, device=device),)


_M = 4 * 2**20
WORKLOADS: dict[str, Workload] = {
    w.name: w
    for w in (
        Workload("add_one", _function(add_one, (16,))),
        Workload("toy", _function(toy, (1024,), (1024,))),
        Workload("bias_relu_mul", _function(bias_relu_mul, (256, 1024), (1024,), (256, 1024)), bytes=3 * 2**20),
        Workload("bias_relu_mul_big", _function(bias_relu_mul, (4096, 2048), (2048,), (4096, 2048)), bytes=3 * 8 * _M),
        Workload("matmul_softmax", _function(matmul_softmax, (256, 512), (512, 1024))),
        Workload("relu_silu_sum_mean", _function(relu_silu_sum_mean, (1024, 1024)), bytes=_M),
        Workload("leaky", _function(leaky, (2**20,), extra=(0.1,)), bytes=2 * _M),
        Workload("softmax_gelu_tanh", _function(softmax_gelu_tanh, (4096, 1024), (4096, 1024)), bytes=3 * 4 * _M),
        Workload("bias_relu_mul_train", _function(bias_relu_mul, (256, 1024), (1024,), (256, 1024), grad=True), True),
        Workload("tiny_model", _tiny),
        Workload("tiny_model_train", _tiny, True),
        Workload("mlp_train", _mlp, True),
        *SUITE,
    )
}  # fmt: skip


def step(fn: Callable[..., Any], args: tuple[Any, ...], training: bool) -> Any:
    """One call; with ``training``, and its backward."""
    result = fn(*args)
    if training:
        result.sum().backward()
    return result
