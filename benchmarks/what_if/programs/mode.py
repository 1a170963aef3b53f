"""Sums over columns of one matrix and rows of another, whose loops have several orders."""

import torch

import fuselens


@fuselens.compile(example_inputs=lambda: (torch.randn(1000, 3000), torch.randn(3000, 1000)))
def sums(x, w):
    return (x.t() * w).sum(1)


def case():
    x, w = torch.randn(1000, 3000), torch.randn(3000, 1000)
    return lambda: sums(x, w)
