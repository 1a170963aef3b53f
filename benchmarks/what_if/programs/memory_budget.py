"""A training step that keeps more than it must."""

import torch
from torch import nn

import fuselens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(1024)) for _ in range(6))

    @fuselens.compile(example_inputs=lambda: (torch.randn(8192, 1024),))
    def forward(self, x):
        for weight in self.weights:
            x = torch.tanh(x * weight).cumsum(-1) * 0.01
        return x.mean()


if __name__ == "__main__":
    Net()(torch.randn(8192, 1024)).backward()


def case():
    net, x = Net(), torch.randn(8192, 1024)
    parameters = list(net.parameters())
    return lambda: torch.autograd.grad(net(x), parameters)
