"""Lightning's Trainer and Fabric train a compiled network to eager's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuselens
from tests.libraries.against_eager import agree, graphs

lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.usefixtures("fresh")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 1))


def batches() -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [(torch.randn(4, 8, generator=drawn), torch.randn(4, 1, generator=drawn)) for _ in range(4)]


def fitted(place: Path, net: nn.Module) -> list[float]:
    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            loss = nn.functional.mse_loss(self.net(x), y)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    module = Regression()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=str(place), gradient_clip_val=0.5,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))
    return module.losses


@pytest.mark.filterwarnings("ignore")
def test_fit(tmp_path: Path) -> None:
    eager, net = network(), network()
    compiled = fuselens.compile(net)
    expected = fitted(tmp_path, eager)
    assert len(expected) == 8 and expected[0] != expected[-1]
    agree(fitted(tmp_path, compiled), expected, rtol=1e-4, atol=1e-5)
    agree(net.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-4)
    assert 1 <= graphs(compiled) <= 2


@pytest.mark.filterwarnings("ignore")
def test_fabric() -> None:
    def trained(compiles: bool) -> Any:
        fabric = lightning.Fabric(accelerator="cpu", devices=1)
        net = network()
        model, optimiser = fabric.setup(
            fuselens.compile(net) if compiles else net, torch.optim.SGD(net.parameters(), lr=0.1)
        )
        for x, y in batches():
            optimiser.zero_grad()
            fabric.backward(nn.functional.mse_loss(model(x), y))
            optimiser.step()
        return net.state_dict()

    agree(trained(True), trained(False))
