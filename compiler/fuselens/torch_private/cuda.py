"""Streams, pools and storages of GPUs."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch.utils.checkpoint

from .names import private

STORAGE_USES: Callable[[int], int] = private.storage_uses
"""How many references there are to the storage with this ``_cdata``: its tensors, and objects like ``untyped_storage()``."""


occupy: Callable[[int], object] = private.occupy
"""Keeps the current device busy for so many cycles."""

profiler_listens: Callable[[], bool] = private.profiler_listens
"""Whether one of torch's profilers wants to hear of what this thread does."""


def storage_over(address: int, count: int, device: torch.device) -> torch.UntypedStorage:
    """A storage over memory that belongs to somebody else."""
    return private.storage_over(address, device, count)


def current_stream() -> int:
    """The address of the current device's current CUDA stream."""
    return private.cuda_stream(private.cuda_device())


def current_queue() -> tuple[int, int]:
    """The current CUDA device, and the address of its current stream."""
    device = private.cuda_device()
    return device, private.cuda_stream(device)


@functools.cache
def watch_streams(noted: Callable[[torch.Tensor, Any], object]) -> None:
    """From now on ``noted`` is told when a program says that a stream uses a tensor (``record_stream``): torch's allocator
    ignores that for memory that is not its own."""
    told = torch.Tensor.record_stream

    @functools.wraps(told)
    def record_stream(self: torch.Tensor, s: Any) -> None:
        told(self, s)
        noted(self, s)

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign]


def stop_allocating(device: int, pool: Any) -> None:
    """After a recording that failed: torch may have left its allocator giving memory from ``pool``."""
    with contextlib.suppress(RuntimeError):
        private.end_pool(device, pool)
        private.release_pool(device, pool)


COPY_ALL: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None] = private.foreach_copy
"""Copies tensors to tensors, few kernels for many of them."""

_STATIC_ADDRESS = "_dynamo_static_input_type"


def mark_address(tensor: torch.Tensor, guard: bool) -> None:
    """Says that a tensor's memory stays where it is, as torch itself keeps it on the tensor."""
    setattr(tensor, _STATIC_ADDRESS, "guarded" if guard else "unguarded")


def has_marked_address(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, _STATIC_ADDRESS)
