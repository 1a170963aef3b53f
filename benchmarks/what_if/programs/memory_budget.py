"""A training step that keeps more than it must."""

import torch
from torch import nn

import fuselens


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(128, 512)
        self.down = nn.Linear(512, 128)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    @fuselens.compile(example_inputs=lambda: (torch.randn(4096, 128),))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def train(x):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net(x).backward()
    optimizer.step()


if __name__ == "__main__":
    train(torch.randn(4096, 128))


def case():
    net, x = Net(), torch.randn(4096, 128)
    parameters = list(net.parameters())
    return lambda: torch.autograd.grad(net(x), parameters)
