"""Convolutions of images."""

import torch
from torch import nn

import fuselens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 3, padding=1)

    @fuselens.compile(example_inputs=lambda: (torch.randn(8, 3, 64, 64),))
    def forward(self, x):
        return self.second(self.first(x).relu()).relu().mean((2, 3))


def predict(x):
    with torch.no_grad():
        return Net()(x)


if __name__ == "__main__":
    print(predict(torch.randn(8, 3, 64, 64)).shape)


def case():
    net, x = Net(), torch.randn(8, 3, 64, 64)

    def call():
        with torch.no_grad():
            return net(x)

    return call
