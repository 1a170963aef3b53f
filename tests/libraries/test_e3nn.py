"""e3nn: tensor products, spherical harmonics and gates, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.libraries.against_eager import computes, trains

e3nn = pytest.importorskip("e3nn")
o3 = pytest.importorskip("e3nn.o3")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("degree", [1, 3])
def test_spherical_harmonics(degree: int) -> None:
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    harmonics = o3.Irreps.spherical_harmonics(degree)
    assert computes(lambda x: o3.spherical_harmonics(harmonics, x, normalize=True), (x,), rtol=1e-4, atol=1e-5) >= 1


@pytest.mark.parametrize("mode", ["script", "inductor", "eager"])
def test_a_tensor_product_trained(mode: str) -> None:
    before = e3nn.get_optimization_defaults()["jit_mode"]
    e3nn.set_optimization_defaults(jit_mode=mode)
    try:
        torch.manual_seed(0)
        model = Product()
    finally:
        e3nn.set_optimization_defaults(jit_mode=before)
    drawn = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=drawn), torch.randn(6, 3, generator=drawn)) for _ in range(2)]

    def loss(model: Any, features: Tensor, positions: Tensor) -> Tensor:
        return model(features, positions).square().mean()

    assert 1 <= trains(model, loss, batches, rtol=1e-3, atol=1e-4) <= 9


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.harmonics = o3.Irreps.spherical_harmonics(2)
        self.first = o3.Linear("1x0e + 1x1o", "4x0e + 2x1o")
        self.product = o3.FullyConnectedTensorProduct("4x0e + 2x1o", self.harmonics, "3x0e + 1x1o")

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        harmonics = o3.spherical_harmonics(self.harmonics, positions, normalize=True)
        return self.product(self.first(features), harmonics)
