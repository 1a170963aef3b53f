"""Products of which the library's choice is not the fastest."""

import torch

import fuselens


@fuselens.compile(example_inputs=lambda: (torch.randn(4, 1024), torch.randn(1024, 1024), torch.randn(1024, 256)))
def two(x, a, b):
    return torch.mm(torch.relu(torch.mm(x, a)), b)


def case():
    x, a, b = torch.randn(4, 1024), torch.randn(1024, 1024), torch.randn(1024, 256)
    return lambda: two(x, a, b)
