"""Large products in float32."""

import torch

import fuselens


@fuselens.compile(
    example_inputs=lambda: (torch.randn(512, 2048), torch.randn(2048, 2048) / 45, torch.randn(2048, 2048) / 45)
)
def layers(x, a, b):
    return torch.mm(torch.mm(x, a).relu(), b)


def case():
    x, a, b = torch.randn(512, 2048), torch.randn(2048, 2048) / 45, torch.randn(2048, 2048) / 45
    return lambda: layers(x, a, b)
