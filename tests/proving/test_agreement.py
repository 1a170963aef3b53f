"""What is within the tolerances of a whole model is wrong where float64 says that eager is far nearer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fuselens.inputs import agreement

X = torch.linspace(-3, 3, 501)
Function = Callable[[torch.Tensor], torch.Tensor]


def difference(eager: Function, other: Function, dtype: torch.dtype = torch.float32) -> tuple[str, str] | None:
    given, names = [X.to(dtype)], ["x"]
    expected, found = (agreement.observed(of, given, names) for of in (eager, other))
    return agreement.difference(expected, found, agreement.in_double(eager, given, names))


def summed(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([*x.reshape(3, 167)], -1).sum(0).sum()


@pytest.mark.parametrize(
    ("eager", "other"),
    [
        (torch.erf, lambda x: torch.erf(x * 1.00005)),
        (torch.tanh, lambda x: torch.tanh(x) * (1 + 5e-6)),
        (torch.exp, lambda x: torch.exp(x * 1.000005)),
    ],
)
def test_an_error_that_eager_does_not_have(eager: Function, other: Function) -> None:
    found = difference(eager, other)
    assert found is not None and found[0] == "result 0"
    assert "of the values' size, eager's" in found[1]


@pytest.mark.parametrize(
    ("eager", "other"),
    [
        (torch.exp, lambda x: torch.exp(x.double()).float()),
        (torch.sigmoid, lambda x: 1 / (1 + torch.exp(-x))),
        (torch.sum, summed),
        (lambda x: torch.exp(x * 30), lambda x: torch.exp(x * 10) ** 3),  # each is some hundred bits off
    ],
)
def test_other_ways_to_round(eager: Function, other: Function) -> None:
    assert difference(eager, other) is None


def test_half_precision() -> None:
    def coarse(x: torch.Tensor) -> torch.Tensor:
        return (torch.sin(x).view(torch.int16) & ~7).view(x.dtype)  # three bits are missing

    assert difference(torch.sin, coarse, torch.bfloat16) is not None
    assert difference(torch.sin, lambda x: torch.sin(x.float()).to(x.dtype), torch.bfloat16) is None


def test_without_float64_tolerances_are_what_is_known() -> None:
    expected, found = (agreement.observed(of, [X], ["x"]) for of in (torch.erf, lambda x: torch.erf(x * 1.000005)))
    assert agreement.difference(expected, found, None) is None
