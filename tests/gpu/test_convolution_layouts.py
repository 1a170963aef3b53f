"""Convolutions whose memory became channels-last where that was measured faster: results, gradients and strides are eager's.

Convolutions before a norm or a softmax have no bias: its gradient is zero there but for rounding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import fuselens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "block": (
        lambda: nn.Sequential(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU()),
        (8, 32, 56, 57),
    ),
    "pooled": (lambda: nn.Sequential(nn.Conv2d(16, 32, 3), nn.MaxPool2d(3), nn.GELU()), (8, 16, 65, 64)),
    "transposed": (lambda: nn.Sequential(nn.Conv2d(8, 48, 1), nn.ConvTranspose2d(48, 16, 3, stride=2), nn.SiLU()), (8, 8, 30, 31)),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(32, 32, 3, groups=32), nn.Hardswish(), nn.Conv2d(32, 64, 1), nn.ReLU()), (8, 32, 40, 40)),
    "3d": (lambda: nn.Sequential(nn.Conv3d(16, 32, 3, bias=False), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d(2)), (4, 16, 16, 17, 18)),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(16, 64, 3, bias=False), nn.GroupNorm(16, 64), nn.SiLU(), nn.Conv2d(64, 32, 3)), (4, 16, 130, 131)
    ),
    "padded and doubled": (
        lambda: nn.Sequential(
            nn.Conv2d(16, 32, 3), nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(32, 32, 3, stride=2), nn.Upsample(scale_factor=2)
        ),
        (4, 16, 64, 64),
    ),
    "softmax over lines": (lambda: nn.Sequential(nn.Conv2d(8, 32, 3, bias=False), nn.Softmax(3)), (8, 8, 64, 64)),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NETS)
def test_agrees_in_values_gradients_and_strides(name: str, dtype: torch.dtype) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net = make().to("cuda", dtype)
    compiled = fuselens.compile(net, fullgraph=True)
    x, allowed = (
        torch.randn(shape, device="cuda", dtype=dtype),
        3e-2,
    )  # tf32; and a maximum of two that are near may be the other
    given = [x.clone().requires_grad_() for _ in range(2)]
    wanted, found = net(given[0]), compiled(given[1])
    assert (found.stride(), found.dtype) == (wanted.stride(), wanted.dtype)
    weights = list(net.parameters())
    cotangent = torch.randn_like(wanted)
    expected = torch.autograd.grad(wanted, [given[0], *weights], cotangent)
    actual = torch.autograd.grad(found, [given[1], *weights], cotangent)
    for a, b in zip((found, *actual), (wanted, *expected), strict=True):
        assert a.stride() == b.stride()
        assert (a.float() - b.float()).norm() <= allowed * b.float().norm() + 1e-3 * b.numel() ** 0.5
