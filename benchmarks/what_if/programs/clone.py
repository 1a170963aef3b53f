"""The input of a product is copied, though nothing writes to either."""

import torch

import fuselens


@fuselens.compile(example_inputs=lambda: (torch.randn(4096, 1024), torch.randn(1024, 32)))
def project(x, w):
    kept = x.clone()
    fuselens.graph_break()
    return torch.mm(kept, w).relu()


def case():
    x, w = torch.randn(4096, 1024), torch.randn(1024, 32)
    return lambda: project(x, w)
