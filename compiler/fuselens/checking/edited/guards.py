"""Zones around memory, which nobody may write to: what a kernel reads there is no number, and what it writes there shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ZONE = 64  # bytes of each zone
_PATTERN = 0xFF  # floating numbers of it are NaN, integers -1


@dataclass(frozen=True, slots=True)
class Guarded:
    """A copy of a tensor, ``values``, in the midst of memory of its own."""

    values: Tensor
    memory: Tensor  # as bytes
    zone: int = ZONE

    @classmethod
    def of(cls, tensor: Tensor, zone: int = ZONE) -> Guarded:
        shape, strides = tensor.shape, tensor.stride()
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if tensor.numel() else 0
        size = tensor.element_size()
        memory = torch.full((_rounded(extent * size) + 2 * zone,), _PATTERN, dtype=torch.uint8)
        values = torch.empty(0, dtype=tensor.dtype)  # no view: graphs may write to it
        values.set_(memory.untyped_storage(), zone // size, shape, strides)
        values.copy_(tensor.detach())
        return cls(values, memory, zone)

    def damage(self, after: Tensor | None = None) -> str:
        """``before`` or ``behind`` where a zone was written to, of ``after`` where that is what came of it; else ""."""
        memory = self.memory if after is None else torch.empty(0, dtype=torch.uint8).set_(after.untyped_storage())
        extents = zip(self.values.shape, self.values.stride(), strict=True)
        elements = 1 + sum((n - 1) * stride for n, stride in extents) if self.values.numel() else 0
        end = self.zone + elements * self.values.element_size()
        for where, found in (("before", memory[: self.zone]), ("behind", memory[end:])):
            if bool((found != _PATTERN).any()):
                return where
        return ""


def _rounded(count: int) -> int:
    return -(-count // ZONE) * ZONE


class _Copy(torch.autograd.Function):
    """A guarded copy through which gradients go."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, guarded: Guarded) -> Tensor:
        return guarded.values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        return gradients[0], None


class GuardedCalls:
    """A graph whose inputs are guarded; ``damage`` says what was written beside them, by the input's number."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.damage = ""

    def __call__(self, *given: Any) -> Any:
        guarded = {k: Guarded.of(v) for k, v in enumerate(given) if _can_be(v)}
        inputs = [self._given(v, guarded.get(k)) for k, v in enumerate(given)]
        results = self._call(tuple(inputs))
        for k, made in guarded.items():
            if where := made.damage():
                self.damage = self.damage or f"the memory {where} input {k}"
            with torch.no_grad():
                if not _same(given[k], made.values):
                    given[k].copy_(made.values)
        return results

    def _given(self, value: Any, guarded: Guarded | None) -> Any:
        if guarded is None:
            return value
        return _Copy.apply(value, guarded) if value.requires_grad else guarded.values


def _can_be(value: Any) -> bool:
    plain = type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided and value.device.type == "cpu"
    return plain and not value.is_conj() and not value.is_neg() and not _repeats(value.shape, value.stride())


def _repeats(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements share memory, as those of an expanded tensor do."""
    return any(s == 0 and n > 1 for n, s in zip(shape, strides, strict=True))


def _same(before: Tensor, after: Tensor) -> bool:
    """Bit by bit: a NaN is itself."""
    one, other = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (before, after))
    return torch.equal(one, other)
