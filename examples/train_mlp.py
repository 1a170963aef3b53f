"""A small network trained for a few steps: forward and backward are both compiled."""

import torch
import torch.nn.functional as F
from torch import nn

import fuselens


class MLP(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(32, width)
        self.norm = nn.LayerNorm(width)
        self.second = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.norm(self.first(x)))
        return F.cross_entropy(self.second(hidden), target)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(128, 32, generator=generator), torch.randint(0, 10, (128,), generator=generator)


torch.manual_seed(0)
model = fuselens.compile(MLP(), example_inputs=batch)


def train(steps: int = 20) -> list[float]:
    """Losses of ``steps`` steps of SGD on one batch."""
    x, target = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print(" ".join(f"{loss:.4f}" for loss in train()))
