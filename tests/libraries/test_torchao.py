"""torchao: quantised weights, dynamic activations, and training that is aware of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.libraries.against_eager import computes, trains

torchao = pytest.importorskip("torchao")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]


def quantised(name: str) -> Any:
    import torchao.quantization as q

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32)).eval()
    config = {
        "int8 weights": lambda: q.Int8WeightOnlyConfig(),
        "float8 weights": lambda: q.Float8WeightOnlyConfig(),
        "intx weights": lambda: q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=q.PerGroup(32)),
        "int8 activations": lambda: q.Int8DynamicActivationInt8WeightConfig(),
    }[name]()
    q.quantize_(model, config)
    assert type(model[0].weight) is not nn.Parameter
    return model


@pytest.mark.parametrize("name", ["int8 weights", "float8 weights", "intx weights", "int8 activations"])
def test_quantised(name: str) -> None:
    model = quantised(name)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))

    @torch.no_grad()
    def run(x: Tensor) -> Tensor:
        return model(x) * 2

    assert 1 <= computes(run, (x,), rtol=2e-3, atol=1e-3) <= 2


def test_quantisation_aware_training() -> None:
    import torchao.quantization as q
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    weights = IntxFakeQuantizeConfig(torch.int4, group_size=32)
    q.quantize_(model, QATConfig(activation_config=activations, weight_config=weights, step="prepare"))
    assert type(model[0]) is not nn.Linear

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    batches = [(torch.randn(16, 64, generator=torch.Generator().manual_seed(i)),) for i in range(3)]
    assert trains(model, loss, batches) == 1
