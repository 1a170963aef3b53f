"""GPyTorch: an exact Gaussian process, trained, and what it predicts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens
from tests.libraries.against_eager import agree

gpytorch = pytest.importorskip("gpytorch")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]

X = torch.linspace(0, 1, 20)
Y = torch.sin(X * 6) + 0.1 * torch.randn(20, generator=torch.Generator().manual_seed(0))


class Process(gpytorch.models.ExactGP):
    def __init__(self, likelihood: Any) -> None:
        super().__init__(X, Y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


def run(compiles: bool) -> Any:
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(likelihood)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return -marginal(model(x), y)

    called = fuselens.compile(loss) if compiles else loss
    losses = []
    for _ in range(3):
        optimiser.zero_grad()
        value = called(X, Y)
        value.backward()
        optimiser.step()
        losses.append(value.detach())
    model.eval()
    likelihood.eval()

    @torch.no_grad()
    def predict(x: Tensor) -> tuple[Tensor, Tensor]:
        predicted = likelihood(model(x))
        return predicted.mean, predicted.variance

    called = fuselens.compile(predict) if compiles else predict
    at = torch.linspace(0.02, 1.1, 7)
    return losses, dict(model.state_dict()), called(at), called(at)


def test_trained_and_predicting() -> None:
    expected = run(False)
    assert expected[0][0] > expected[0][-1]
    agree(run(True), expected, rtol=1e-3, atol=1e-3)
