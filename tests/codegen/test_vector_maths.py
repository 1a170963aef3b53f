"""Accuracy of our own vector functions: units in the last place from the double-precision result."""

from __future__ import annotations

import functools

import pytest
import torch

from fuselens.ir.ops import torch_meaning

from .graphs import ISA, compiled
from .test_scalar_ops import all_ops_graph

NAMES = "exp exp2 expm1 log log2 log10 log1p sin cos tanh sigmoid erf sqrt rsqrt".split()
# sigmoid rounds three times (exp, sum, quotient); tiny results of sigmoid come from an infinite exp, as in torch
RANGES = {"sin": (-2e4, 2e4), "cos": (-2e4, 2e4), "sigmoid": (-80.0, 80.0), "exp2": (-160.0, 160.0)}
ULPS = {"sigmoid": 2.5, "rsqrt": 1.5, "sqrt": 0.51}


@functools.cache
def results(isa: str) -> dict[str, torch.Tensor]:
    graph, outputs = all_ops_graph("f32", NAMES)
    built = compiled(graph, isa)
    out = {}
    for name, position in zip(NAMES, range(len(outputs)), strict=True):
        x = points(name)
        out[name] = built.call((x, x, x))[position]
    return out


@functools.cache
def points(name: str) -> torch.Tensor:
    """Evenly spaced bit patterns of both signs (all magnitudes), and a dense ordinary range."""
    bits = torch.arange(0, 0x7F800000, 9973, dtype=torch.int32)
    spread = bits.view(torch.float32)
    low, high = RANGES.get(name, (-100.0, 100.0))
    spread = spread[spread <= high] if name in RANGES else spread
    return torch.cat([spread, -spread, torch.linspace(low, high, 100_003), torch.linspace(-3, 3, 100_003)])


@pytest.mark.parametrize("isa", [ISA, "scalar"])
@pytest.mark.parametrize("name", NAMES)
def test_within_two_units_in_the_last_place(name: str, isa: str) -> None:
    x = points(name)
    found = results(isa)[name].double()
    exact = torch_meaning()[name](x.double())
    ordinary = exact.isfinite() & (exact.abs() < 3.4e38) & (exact.abs() > 1.2e-38)
    unit = 2.0 ** (torch.floor(torch.log2(exact[ordinary].abs())) - 23)
    error = (found[ordinary] - exact[ordinary]).abs() / unit
    worst = int(error.argmax())
    assert error[worst] <= ULPS.get(name, 2.0), f"{error[worst]:.2f} ulp at {x[ordinary][worst].item()!r}"


@pytest.mark.parametrize("name", NAMES)
def test_one_lane_gives_the_same_bits(name: str) -> None:
    a, b = results(ISA)[name], results("scalar")[name]
    assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
