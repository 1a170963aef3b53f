"""Where the tensors of a host program live."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

empty_strided = torch.empty_strided


def empty(sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """An uninitialised tensor."""
    return empty_strided(sizes, strides, dtype=dtype, device=device)


def reinterpret(tensor: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The memory of ``tensor`` from the start of its storage, seen as another dtype and shape."""
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), 0, sizes, strides)


def settled(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """``tensor`` if it starts its storage and has these strides, else a copy that does."""
    if tensor.stride() == strides and tensor.storage_offset() == 0:
        return tensor
    out = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return out.copy_(tensor)


def division_check(library: ctypes.CDLL) -> Callable[[], None]:
    """A function that raises, and resets the unit's flag, if one of its kernels divided an integer by zero.

    Compiled code computes the whole result first (quotient and remainder 0) and raises what eager raises.
    """
    flag = ctypes.c_int.in_dll(library, "fuselens_error")

    def check() -> None:
        if flag.value:
            flag.value = 0
            raise RuntimeError("ZeroDivisionError")

    return check
