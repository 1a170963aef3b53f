"""PyG: layers of graph networks, trained, and message passing of one's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.libraries.against_eager import trains

pyg = pytest.importorskip("torch_geometric")
pytestmark = [pytest.mark.usefixtures("fresh"), pytest.mark.filterwarnings("ignore")]


def layer(name: str, inputs: int, outputs: int) -> Any:
    if name == "GIN":
        return pyg.nn.GINConv(nn.Linear(inputs, outputs))
    if name == "transformer":
        return pyg.nn.TransformerConv(inputs, outputs)
    if name == "own":
        return Own(inputs, outputs)
    return getattr(pyg.nn, f"{name}Conv")(inputs, outputs)


class Own(pyg.nn.MessagePassing):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(aggr="max")
        self.net = nn.Linear(2 * inputs, outputs)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.propagate(edges, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return self.net(torch.cat([x_i, x_j - x_i], dim=-1))


class Net(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.second = layer(name, 5, 8), layer(name, 8, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(self.first(x, edges).relu(), edges)


@pytest.mark.parametrize("name", ["GCN", "GAT", "SAGE", "GIN", "transformer", "own"])
def test_trained(name: str) -> None:
    torch.manual_seed(0)
    model = Net(name)
    drawn = torch.Generator().manual_seed(1)
    x, y = torch.randn(12, 5, generator=drawn), torch.randint(0, 3, (12,), generator=drawn)
    edges = torch.randint(0, 12, (2, 30), generator=drawn)

    def loss(model: Any, x: Tensor, edges: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x, edges), y)

    assert 1 <= trains(model, loss, [(x, edges, y)] * 3, rtol=1e-3, atol=1e-4) <= 12
