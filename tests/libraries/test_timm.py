"""timm: a step of training with mixup, an average of the weights, and clipping."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import fuselens
from tests.libraries.against_eager import agree, graphs

timm = pytest.importorskip("timm")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]

NETWORKS = {
    "resnet18": {"num_classes": 5},
    "vit_tiny_patch16_224": {"num_classes": 5, "img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2},
    "convnext_atto": {"num_classes": 5, "depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16)},
    "mixer_s32_224": {"num_classes": 5, "img_size": 32},
    "mobilenetv3_small_050": {"num_classes": 5},
}


def trained(model: Any, compiles: bool) -> tuple[Any, int]:
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.utils import ModelEmaV3, dispatch_clip_grad

    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - what timm draws from
    net = copy.deepcopy(model)
    called = fuselens.compile(net) if compiles else net
    average, criterion = ModelEmaV3(net, decay=0.9), SoftTargetCrossEntropy()
    mixup = Mixup(mixup_alpha=0.4, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=5)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    drawn, losses = torch.Generator().manual_seed(2), []
    for step in range(2):
        x, y = mixup(torch.randn(4, 3, 32, 32, generator=drawn), torch.randint(0, 5, (4,), generator=drawn))
        optimiser.zero_grad()
        loss = criterion(called(x), y)
        loss.backward()
        dispatch_clip_grad(net.parameters(), 1.0)
        optimiser.step()
        average.update(net, step=step)
        losses.append(loss.detach())
    state = {"losses": losses, "weights": dict(net.state_dict()), "average": dict(average.module.state_dict())}
    return state, graphs(called) if compiles else 0


@pytest.mark.parametrize("name", NETWORKS)
def test_trained(name: str) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, **NETWORKS[name])
    expected, _ = trained(model, False)
    found, count = trained(model, True)
    agree(found, expected, rtol=5e-3, atol=1e-3)
    assert count == 1
