"""A module with parameters: they become inputs that the guards find by themselves."""

import torch
from torch import nn

import fuselens


class TinyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * 0.5


model = fuselens.compile(TinyModel(), example_inputs=lambda: (torch.randn(4, 16),))


if __name__ == "__main__":
    print(model(torch.randn(4, 16)).shape)
