"""Large weights of convolutions of small images are laid out anew in each call."""

import torch
from torch import nn

import fuselens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(256, 512, 3, padding=1)
        self.second = nn.Conv2d(512, 512, 3, padding=1)

    @fuselens.compile(example_inputs=lambda: (torch.randn(1, 256, 7, 7),))
    def forward(self, x):
        with torch.no_grad():
            return self.second(self.first(x).relu()).relu().mean((2, 3))


def case():
    net, x = Net(), torch.randn(1, 256, 7, 7)
    return lambda: net(x)
