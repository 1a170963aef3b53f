"""A small model on few rows."""

import torch
from torch import nn

import fuselens

net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 256)).requires_grad_(False)
predict = fuselens.compile(net, example_inputs=lambda: (torch.randn(2, 1024),))


def case(times=1):
    x = torch.randn(2 * times, 1024)
    return lambda: predict(x)
