"""Zones around memory, which nobody may write to: what a kernel reads there is no number, and what it writes there shows.

Inputs of C++ end, or begin, where a page does that can be neither read nor written: a kernel that looks beyond crashes here, and not
where it is used.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...ir.evaluate import extent

ZONE = 64  # bytes of each zone
FENCE = 8 << 20  # bytes of address space on each side that nothing is at
_PATTERN = 0xFF  # floating numbers of it are NaN, integers -1


@dataclass(frozen=True, slots=True)
class Guarded:
    """A copy of a tensor, ``values``, in the midst of memory of its own."""

    values: Tensor
    memory: Tensor  # as bytes
    zone: int = ZONE

    @classmethod
    def of(cls, tensor: Tensor, zone: int = ZONE) -> Guarded:
        shape, strides, size = tensor.shape, tensor.stride(), tensor.element_size()
        memory = torch.full(
            (_rounded(extent(shape, strides) * size) + 2 * zone,), _PATTERN, dtype=torch.uint8, device="cpu"
        )
        values = torch.empty(0, dtype=tensor.dtype, device="cpu")  # no view: graphs may write to it
        values.set_(memory.untyped_storage(), zone // size, shape, strides)
        values.copy_(tensor.detach())
        return cls(values, memory, zone)

    def damage(self, after: Tensor | None = None) -> str:
        """``before`` or ``behind`` where a zone was written to, of ``after`` where that is what came of it; else ""."""
        memory = (
            self.memory
            if after is None
            else torch.empty(0, dtype=torch.uint8, device="cpu").set_(after.untyped_storage())
        )
        end = self.zone + extent(self.values.shape, self.values.stride()) * self.values.element_size()
        for where, found in (("before", memory[: self.zone]), ("behind", memory[end:])):
            if bool((found != _PATTERN).any()):
                return where
        return ""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A copy of a tensor between two fences of pages that cannot be touched: it ends where the second begins, or begins where the
    first ends."""

    values: Tensor
    _pages: Tensor  # as bytes, without the two
    _start: int
    _end: int

    @classmethod
    def of(cls, tensor: Tensor, at_end: bool) -> Fenced:
        """Raises OSError where there is no memory for it."""
        size = extent(tensor.shape, tensor.stride()) * tensor.element_size()
        inside = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, inside + 2 * FENCE)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        pages = whole[FENCE : FENCE + inside].fill_(_PATTERN)
        for fence in (whole.data_ptr(), pages.data_ptr() + inside):
            _protect(fence)
        start = inside - size if at_end else 0
        values = torch.empty(0, dtype=tensor.dtype, device="cpu")
        first = (FENCE + start) // tensor.element_size()
        values.set_(whole.untyped_storage(), first, tensor.shape, tensor.stride())
        values.copy_(tensor.detach())
        return cls(values, pages, start, start + size)

    def damage(self) -> str:
        for where, found in (("before", self._pages[: self._start]), ("behind", self._pages[self._end :])):
            if bool((found != _PATTERN).any()):
                return where
        return ""


def _protect(address: int) -> None:
    if _libc().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(FENCE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _rounded(count: int) -> int:
    return -(-count // ZONE) * ZONE


class _Copy(torch.autograd.Function):
    """A guarded copy through which gradients go."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, guarded: Guarded | Fenced) -> Tensor:
        return guarded.values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        return gradients[0], None


class GuardedCalls:
    """A graph whose inputs are guarded, ``at_end`` of a page or at its beginning; ``damage`` says what was written beside them, by the
    input's number."""

    def __init__(self, call: Any, at_end: bool = True) -> None:
        self._call = call
        self._at_end = at_end
        self.damage = ""

    def __call__(self, *given: Any) -> Any:
        guarded = {k: self._guarded(v) for k, v in enumerate(given) if _can_be(v)}
        inputs = [self._given(v, guarded.get(k)) for k, v in enumerate(given)]
        results = self._call(tuple(inputs))
        for k, made in guarded.items():
            if where := made.damage():
                self.damage = self.damage or f"the memory {where} input {k}"
            with torch.no_grad():
                if not _same(given[k], made.values):
                    given[k].copy_(made.values)
        return results

    def _guarded(self, value: Tensor) -> Guarded | Fenced:
        if os.name == "posix":
            try:
                return Fenced.of(value, self._at_end)
            except OSError:  # there may be no more mappings
                pass
        return Guarded.of(value)

    def _given(self, value: Any, guarded: Guarded | Fenced | None) -> Any:
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
