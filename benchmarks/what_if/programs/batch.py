"""A small model on few rows: what a call costs beside its work is shared by more of them."""

import torch
from torch import nn

import fuselens

net = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64)).requires_grad_(False)
predict = fuselens.compile(net, example_inputs=lambda: (torch.randn(2, 128),))


def case(times=1):
    x = torch.randn(2 * times, 128)
    return lambda: predict(x)
