"""A model that only predicts keeps what a backward would need."""

import torch
from torch import nn

import fuselens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    @fuselens.compile(example_inputs=lambda: (torch.randn(8192, 256),))
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.sum(-1)


def predict(x):
    net = Net()
    return net(x).argmax()


if __name__ == "__main__":
    print(predict(torch.randn(8192, 256)))


def case():
    net, x = Net(), torch.randn(8192, 256)
    return lambda: net(x)
