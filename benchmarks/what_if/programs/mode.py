"""Sums over columns of one matrix and rows of another, whose loops have several orders. Both fit into the caches: where they just do
not, a call takes one time or twice as long, by what neighbours on the machine leave there."""

import torch

import fuselens


@fuselens.compile(example_inputs=lambda: (torch.randn(1000, 300), torch.randn(300, 1000)))
def sums(x, w):
    return (x.t() * w).sum(1)


def case():
    x, w = torch.randn(1000, 300), torch.randn(300, 1000)
    return lambda: sums(x, w)
