"""A weight is copied in each call, before a product that takes it transposed as well."""

import torch

import fuselens


@fuselens.compile(example_inputs=lambda: (torch.randn(64, 2048), torch.randn(2048, 2048) / 45))
def project(x, weight):
    return torch.mm(x, weight.t().contiguous()).relu()


def case():
    x, weight = torch.randn(64, 2048), torch.randn(2048, 2048) / 45
    return lambda: project(x, weight)
