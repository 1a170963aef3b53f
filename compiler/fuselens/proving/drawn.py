"""Functions that draw random numbers, with those that a run has: not eager's, which proofs of values use, but of the same distribution.

A call with each of many seeds gives a sample of each value. Samples of eager and of the compiled function have the same mean, and vary
as much from seed to seed, or the two draw from other distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ..inputs.structures import Values
from .kinds import SEED

NAME = "random numbers of its own, with many seeds"
WHERE = "random numbers"  # what a call leaves, when it has drawn some
SEEDS, FEWEST = 64, 24
_DEVIATIONS = 6.0  # of the difference of two means; by chance once in 10⁹
_RATIO = 5.0  # of two variances of so many samples; by chance once in 10⁸
_OF = ("their mean", "their mean size", "how many are zero")
Call = Callable[[int], Values]  # what the results are with a seed


def kind_of(name: str) -> str:
    """The kind of call that something is tried with which has this name: its own, but for what is tried here."""
    return SEED if name == NAME else name


def difference(eager: Call, compiled: Call, count: int) -> str:
    """How the distributions of the results differ, in words; "" where nothing says that they do."""
    scales: dict[str, float] = {}
    found = [
        {
            where: _sample(value, scales.setdefault(where, _scale(value)))
            for where, value in call(seed)
            if isinstance(value, torch.Tensor) and value.numel() and value.layout is torch.strided
        }
        for call in (eager, compiled)
        for seed in range(count)
    ]
    of_eager, of_compiled = found[:count], found[count:]
    for where in scales:
        if not all(where in sample for sample in found):
            continue  # it is not there with each seed, or has no elements
        for number, what in enumerate(_OF):
            told = _unlike([s[where][number] for s in of_eager], [s[where][number] for s in of_compiled])
            if told:
                return f"{where}, {what}: {told}"
    return ""


def _scale(value: torch.Tensor) -> float:
    wide = _wide(value)
    return float(wide.square().mean().sqrt()) if wide.numel() else 0.0


def _wide(value: torch.Tensor) -> torch.Tensor:
    value = value.detach()
    wide = torch.view_as_real(value.resolve_conj()).double() if value.is_complex() else value.double()
    return wide[torch.isfinite(wide)]


def _sample(value: torch.Tensor, scale: float) -> tuple[float, ...]:
    """Bounded, so that a few large values decide nothing."""
    wide = _wide(value) / (scale or 1.0)
    if not wide.numel():
        return 0.0, 0.0, 0.0
    bounded = wide / (1 + wide.abs())
    return float(bounded.mean()), float(bounded.abs().mean()), float((wide == 0).double().mean())


def _unlike(eager: list[float], compiled: list[float]) -> str:
    (mean, variance), (other, spread) = map(_moments, (eager, compiled))
    least = 1e-9 + 1e-4 * abs(mean)  # rounding
    apart = abs(mean - other) - least
    if apart > _DEVIATIONS * math.sqrt((variance + spread) / len(eager)):
        return f"eager {mean:.4g}, compiled {other:.4g}"
    low, high = sorted((math.sqrt(variance), math.sqrt(spread)))
    if high > least and high > math.sqrt(_RATIO) * low:
        return f"they vary from seed to seed by {math.sqrt(variance):.2g} eagerly, compiled by {math.sqrt(spread):.2g}"
    return ""


def _moments(values: list[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
