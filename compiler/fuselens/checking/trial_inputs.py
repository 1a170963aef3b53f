"""The inputs on which fixes are tried out: an example's, then other values, signs and sizes of the same types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..proving.kinds import seeded
from .check import OpenFunction

Call = tuple[tuple[Any, ...], dict[str, Any]]
NOT_FINITE = frozenset({22, 23, 24})
_VARIANTS = 28
SAME_INTEGERS = frozenset({0, *range(1, _VARIANTS, 2)}) - {17, 19}  # the example's, in another order


def variants(function: OpenFunction) -> Iterator[Call]:
    """Calls of ``function``, the same ones for each copy of it: the example's, other values and signs, other sizes."""
    seeded()
    inputs = function.inputs()
    for k in range(_VARIANTS):
        if k in (4, 5) and inputs.dynamic:
            seeded()
            other = function.inputs(variant=k)
            yield other.args, other.kwargs
            continue
        change = _Change(k, torch.Generator().manual_seed(k))
        yield change.every(inputs.args), change.every(inputs.kwargs)


@dataclass(slots=True)
class _Change:
    """Other values of the tensors in a structure, of the same types and shapes; integers stay within their range."""

    variant: int
    generator: torch.Generator
    position: int = 0

    def every(self, value: Any) -> Any:
        if type(value) is torch.Tensor and value.layout == torch.strided:
            self.position += 1
            return self.tensor(value)
        if type(value) in (list, tuple):
            return type(value)(self.every(v) for v in value)
        if type(value) is dict:
            return {k: self.every(v) for k, v in value.items()}
        return value

    def tensor(self, x: torch.Tensor) -> torch.Tensor:
        if self.variant == 0 or not x.numel():
            return x
        if x.is_floating_point() or x.is_complex():
            made = self.floats(x.detach()).to(x.dtype)
        elif x.dtype == torch.bool:
            made = [~x, torch.ones_like(x), torch.zeros_like(x), self.chosen(x, shuffled=True)][self.variant % 4]
        else:
            made = self.integers(x)
        return made.requires_grad_(x.requires_grad)

    def floats(self, x: torch.Tensor) -> torch.Tensor:
        alternate = -1.0 if self.position % 2 else 1.0
        fresh = torch.randn(
            x.shape, generator=self.generator, device="cpu", dtype=x.dtype if x.is_complex() else torch.float32
        )
        fresh = fresh.to(x.device)
        of_variant: dict[int, Callable[[], torch.Tensor]] = {
            1: lambda: fresh, 2: lambda: x.abs(), 3: lambda: -x.abs(), 6: lambda: torch.zeros_like(x), 7: lambda: x * 10,
            8: lambda: x / 100, 9: lambda: alternate * x.abs(), 10: lambda: -alternate * x.abs(), 11: lambda: x + 10,
            12: lambda: x - 10, 13: lambda: torch.ones_like(x), 14: lambda: fresh.abs() * 100, 15: lambda: fresh * 0.01,
            16: lambda: fresh.round(), 17: lambda: x.abs() / 100, 18: lambda: -x.abs() / 100,
            22: lambda: _first(x, float("nan")), 23: lambda: _first(x, float("inf")), 24: lambda: _first(x, -float("inf")),
        }  # fmt: skip
        return of_variant.get(self.variant, lambda: fresh * 2.0 ** (self.variant % 8 - 2))()

    def integers(self, x: torch.Tensor) -> torch.Tensor:
        """Shuffled, drawn anew, or one value everywhere."""
        if 16 <= self.variant < 20:
            values = x.unique()
            return torch.full_like(x, int(values[(self.variant - 16) % len(values)]))
        return self.chosen(x, shuffled=self.variant % 2 == 1)

    def chosen(self, x: torch.Tensor, *, shuffled: bool) -> torch.Tensor:
        count = x.numel()
        order = (
            torch.randperm(count, generator=self.generator, device="cpu")
            if shuffled
            else torch.randint(count, (count,), generator=self.generator, device="cpu")
        )
        return x.detach().flatten()[order.to(x.device)].reshape(x.shape)


def _first(x: torch.Tensor, value: float) -> torch.Tensor:
    made = x.clone(memory_format=torch.contiguous_format)
    made.view(-1)[0] = value
    return made
