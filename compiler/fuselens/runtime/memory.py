"""Where the tensors of a host program live."""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable

import torch
from torch import Tensor

from ..ir.dtypes import DTYPES
from ..native import IDLE_BYTES

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_HEAP = 32 << 20


@functools.cache
def keep_freed() -> None:
    """Tells glibc to keep up to ``IDLE_BYTES`` of freed memory, once per process.

    By default it gives memory back as soon as a few MiB at the end of its heap are free, so that each step of a program
    which frees what it saved has the kernel map, and clear, the same pages again: 5 to 10 % of a training step on a CPU.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _HEAP)
        mallopt(_TRIM_THRESHOLD, IDLE_BYTES)


def maker(dtype: str, device: str) -> Callable[[tuple[int, ...], tuple[int, ...]], Tensor]:
    """A function of sizes and strides that makes an uninitialised tensor.

    The method of a tensor that has the dtype and device already takes two thirds of the time of
    ``torch.empty_strided``, whose keywords are parsed at each call.
    """
    return torch.empty(0, dtype=DTYPES[dtype], device=device).new_empty_strided


def reinterpret(tensor: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The memory of ``tensor`` from the start of its storage, seen as another dtype and shape."""
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), 0, sizes, strides)


def settled(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """``tensor`` if it starts its storage and has these strides, else a copy that does."""
    if tensor.stride() == strides and tensor.storage_offset() == 0:
        return tensor
    out = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return out.copy_(tensor)


def error_check(library: ctypes.CDLL) -> Callable[[], None]:
    """A function that raises if one of the unit's kernels reported an error in this thread since it was last called.

    The bits are kinds of errors: 1 an integer divided by zero, 2 an index out of range. Compiled code computes
    the whole result first (quotient and remainder 0, position 0); whoever called the graph runs its frame eagerly,
    which raises eager's own exception.
    """
    take = library.fuselens_take_errors

    def check() -> None:
        if kinds := take():
            raise kernel_error(kinds)

    return check


class _AfterWriting:
    """Inside, inputs have been written to: what is raised says so."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            error.fuselens_wrote = True  # type: ignore[attr-defined]


after_writing = _AfterWriting()


def has_written(error: BaseException) -> bool:
    """Whether the call that raised this had written to inputs, so that it may not be repeated."""
    return getattr(error, "fuselens_wrote", False)


def kernel_error(kinds: int) -> Exception:
    """The exception for error flags of kernels."""
    return RuntimeError("ZeroDivisionError") if kinds & 1 else IndexError("an index is out of range")
