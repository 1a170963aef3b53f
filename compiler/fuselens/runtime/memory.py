"""Where the tensors of a host program live."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import platform
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import torch_private
from ..ir.contracts.native import IDLE_BYTES
from ..ir.dtypes import DTYPES

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
_HEAP = 32 << 20
_SMALL, _USUAL = 32 << 10, 128 << 10


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


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """Inside, glibc gives freed memory back at once, but for small blocks: what a process holds is what it uses, and no gaps."""
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_MMAP_THRESHOLD, _SMALL)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _HEAP if keep_freed.cache_info().currsize else _USUAL)


def maker(dtype: str, device: str) -> Callable[[tuple[int, ...], tuple[int, ...]], Tensor]:
    """A function of sizes and strides that makes an uninitialised tensor.

    The method of a tensor that has the dtype and device already takes two thirds of the time of
    ``torch.empty_strided``, whose keywords are parsed at each call.
    """
    return torch.empty(0, dtype=DTYPES[dtype], device=device).new_empty_strided


def reinterpret(tensor: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The memory of ``tensor`` from the start of its storage, seen as another dtype and shape."""
    return torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), 0, sizes, strides)


def materialised(tensor: Tensor) -> Tensor:
    """What an operator gave, where kernels cannot read it at its address: an ordinary tensor of the same values.

    Raises TypeError for what eager would not compute with as with an ordinary one.
    """
    plain = tensor
    if plain.layout is torch.strided and type(plain) in (Tensor, torch.nn.Parameter):
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        if plain._is_zerotensor():
            plain = plain.clone()
    if not torch_private.is_ordinary(plain):
        raise TypeError(f"an operator gave {described(tensor)}, whose elements kernels cannot read")
    return plain


def refuse(position: int, tensor: Tensor) -> None:
    """Raises for an input that has no memory."""
    what = f"input {position} of a compiled graph is {described(tensor)}"
    if torch_private.is_ordinary(tensor) or torch_private.is_emptied(tensor):
        raise RuntimeError(f"{what} whose storage was resized to nothing: its elements are not there")
    raise TypeError(f"{what}, whose elements kernels cannot read at its address")


def described(tensor: Tensor) -> str:
    """``a float32 tensor of shape (4, 8) on cpu``, and what is special about it."""
    special = [] if type(tensor) is Tensor else [f"of class {type(tensor).__name__}"]
    special += [str(tensor.layout)] if tensor.layout is not torch.strided else []
    try:
        special += ["a zero tensor"] if tensor._is_zerotensor() else []
        shape = f" of shape {tuple(tensor.shape)}"
    except (RuntimeError, TypeError):  # nested tensors have none
        shape = ""
    return ", ".join([f"a {str(tensor.dtype).removeprefix('torch.')} tensor{shape} on {tensor.device}", *special])


def picture(error: BaseException, about: Callable[[], str]) -> None:
    """Says on an out-of-memory error what was held, once. The frame whose graph raised it tells eager's own error."""
    if torch_private.is_out_of_memory(error) and not hasattr(error, "fuselens_picture"):
        text = about()
        error.fuselens_picture = text  # type: ignore[attr-defined]
        if text:
            error.add_note(text)


def ran_out(on_gpu: bool) -> Exception:
    """What torch itself raises: programs look for these types and words."""
    if on_gpu:
        return torch.OutOfMemoryError("CUDA out of memory. A compiled graph could not allocate a buffer")
    return RuntimeError("DefaultCPUAllocator: can't allocate memory: a compiled graph could not allocate a buffer")


def differs(where: str) -> RuntimeError:
    """What is raised where an operator gave something else than its rule for fake tensors says."""
    return RuntimeError(
        f"an operator of a compiled graph gave a tensor of another shape or dtype than its rule for fake tensors says: {where}"
    )


def note(error: BaseException, where: str, operands: tuple[object, ...]) -> None:
    """Says on an operator's error which one it is, on what, and in which line of the user's."""
    given = ", ".join(described(o) if isinstance(o, Tensor) else repr(o) for o in operands)
    error.add_note(f"In an operator of a compiled graph: {where}, given {given or 'nothing'}")


def settled(tensor: Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """``tensor`` if it starts its storage and has these strides, else a copy that does. It may be what an operator gave
    that has other sizes or another dtype than expected, which raises, or no memory."""
    if not torch_private.is_ordinary(tensor):
        tensor = materialised(tensor)
    if tensor.dtype != dtype or tensor.shape != sizes:
        raise differs(f"{described(tensor)} in the place of {sizes} of {dtype}")
    if tensor.stride() == strides and tensor.storage_offset() == 0:
        return tensor
    out = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return out.copy_(tensor)


def error_check(library: ctypes.CDLL, checks: tuple[str, ...] = ()) -> Callable[[], None]:
    """A function that raises if one of the unit's kernels reported an error in this thread since it was last called.

    The bits are kinds of errors: 1 an integer divided by zero, 2 an index out of range. Compiled code computes
    the whole result first (quotient and remainder 0, position 0); whoever called the graph runs its frame eagerly,
    which raises eager's own exception.
    """
    take = library.fuselens_take_errors

    def check() -> None:
        if kinds := take():
            raise kernel_error(kinds, checks)

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


def kernel_error(kinds: int, checks: tuple[str, ...] = ()) -> Exception:
    """The exception for error flags of kernels, one of which computes what ``checks`` say."""
    error = RuntimeError("ZeroDivisionError") if kinds & 1 else IndexError("an index is out of range")
    if checks:
        error.add_note(f"In a kernel of a compiled graph: {' or '.join(checks)}")
    return error
