"""Large tensors without their values: what a program makes of them has its sizes, types and views, and is not computed.

A tensor on the CPU that nobody writes to takes addresses and no memory, so a model of a hundred gigabytes can be looked at.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Callable
from typing import Any

import torch

from .. import torch_private
from .structures import tensors_in

LARGE = 1 << 21
"""Elements of a tensor whose values are not computed."""

_PAGE = mmap.PAGESIZE
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000) if sys.platform == "linux" else 0  # 3.11 and 3.12 do not name it
_UNRESERVED: dict[str, Any] = (  # not on every system
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE} if hasattr(mmap, "MAP_PRIVATE") else {}
)
_aten = torch.ops.aten
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_READS = frozenset({_aten._local_scalar_dense.default, _aten.equal.default, _aten.is_nonzero.default})
_MOVES_NOTHING = frozenset(
    {"c10d::allreduce_", "c10d::allreduce_coalesced_"}
)  # on ranks that are not there; they return work


class Weightless(torch_private.RecordingMode):
    """Inside, operators with a large operand or result compute nothing: what they return is new and unwritten where it is
    large, and else one half (of integers, zero), which is neither a bad logarithm nor a bad divisor; what they would
    write to stays as it is. Views are views. All others run."""

    def __init__(self, least: int = LARGE) -> None:
        super().__init__()
        self._fakes = torch_private.fake_mode()
        self._least = least

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if any(map(torch_private.is_distributed, types)):
            return NotImplemented  # its parts come by themselves
        kwargs = kwargs or {}
        tensors = list(tensors_in((args, kwargs)))
        large = any(map(self._is_large, tensors)) if tensors else _makes_large(func, args, self._least)
        if not large or func in _READS or torch_private.shares_memory(func) or not all(map(_is_plain, tensors)):
            return func(*args, **kwargs)
        if torch_private.fakes_are_made() or func.name() in _MOVES_NOTHING:  # a fake mode is below this one
            return func(*args, **kwargs)
        try:
            return self._unwritten(func, args, kwargs)
        except Exception:  # noqa: BLE001  no rule for fake tensors, or one that asks for data
            return func(*args, **kwargs)

    def _is_large(self, tensor: torch.Tensor) -> bool:
        return is_large(tensor, self._least)

    def _unwritten(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        fakes: dict[int, Any] = {}
        given: dict[int, torch.Tensor] = {}

        def fake(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in fakes:
                made = fakes[id(value)] = torch_private.fake_of_layout(self._fakes, value, value.shape, value.stride())
                given[id(made)] = value
            return fakes[id(value)]

        def real(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) in given:
                return given[id(value)]
            if self._is_large(value):
                return _unwritten(value)
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            return made.fill_(0.5 if made.dtype.is_floating_point or made.dtype.is_complex else 0)

        tree_map = torch_private.PYTREE.tree_map
        fake_args, fake_kwargs = tree_map(fake, (args, kwargs))
        with self._fakes:
            made = func(*fake_args, **fake_kwargs)
        return tree_map(real, made)


def _unwritten(like: torch.Tensor) -> torch.Tensor:
    """A new tensor of that layout, on memory that the system has not given yet: zeros, to one who reads them."""
    from ..ir.evaluate import extent  # not above: programs import this module, and sympy comes with that one

    storage = memory_of(extent(like.shape, like.stride()) * like.dtype.itemsize, like.dtype)
    return torch.empty(0, dtype=like.dtype, device="cpu").set_(storage, 0, like.shape, like.stride())  # type: ignore[call-overload]


def memory_of(count: int, dtype: torch.dtype) -> torch.UntypedStorage:
    """Bytes that the system has not given yet, or, where they are few, with halves (of integers, zeros) in them."""
    if count < _PAGE:
        made = torch.empty(-(-count // dtype.itemsize), dtype=dtype, device="cpu")
        return made.fill_(0.5 if dtype.is_floating_point or dtype.is_complex else 0).untyped_storage()
    return torch.frombuffer(mmap.mmap(-1, count, **_UNRESERVED), dtype=torch.uint8).untyped_storage()


def is_large(tensor: torch.Tensor, least: int = LARGE) -> bool:
    """Whether the values of a tensor (or a fake one) are not to be computed; symbolic sizes count by their examples."""
    if type(tensor) in _PLAIN and tensor.numel() < least:
        return False
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    return math.prod(map(torch_private.size_hint, tensor.shape)) >= least


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor can have its layout."""
    return type(tensor) in _PLAIN and tensor.layout == torch.strided


def _makes_large(func: Any, args: tuple[Any, ...], least: int) -> bool:
    """Whether an operator that is given no tensor makes a large one."""
    sizes = next((a for a in args if isinstance(a, (list, tuple))), None)
    if sizes is None:
        return func.name().startswith("aten::arange") and max(map(abs, args), default=0) >= least
    return all(isinstance(n, int) for n in sizes) and math.prod(sizes) >= least
