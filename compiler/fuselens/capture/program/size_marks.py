"""What programs say about tensors: ``mark_dynamic`` and its kin, in torch's spelling and as torch keeps it on the tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ... import torch_private

Dims = int | Iterable[int]


def mark_dynamic(
    tensor: torch.Tensor, dim: Dims, *, min: int | None = None, max: int | None = None, buckets: Iterable[int] = ()  # noqa: A002
) -> None:  # fmt: skip
    """``dim`` of ``tensor`` varies between calls, within the range: one compilation must serve all its sizes.

    ``buckets`` are the upper ends of ranges, in order: each has a compilation of its own, whose kernels rely on the range and are
    planned and tuned for its upper end. Sizes above the last are one more range. Nothing is padded: a tensor keeps its size.

    A call whose compilation would specialise it raises :class:`fuselens.ConstraintError`. The mark is kept on the tensor
    object. Raises IndexError for what is no dimension, ValueError for a size that is out of the range, and for buckets that do not
    rise from 2 or more, or come with a range.
    """
    ends = [*buckets]
    if ends and (min is not None or max is not None):
        raise ValueError("give buckets, or min and max")
    if any(type(end) is not int or end < 2 for end in ends) or ends != sorted({*ends}):
        raise ValueError(f"buckets are upper ends that rise from 2 or more, not {ends}")
    for d in _dims(tensor, dim):
        size = tensor.shape[d]
        if ends:
            _mark_bucket(tensor, d, size, ends)
            continue
        if not (min is None or min <= size) or not (max is None or size <= max):
            raise ValueError(f"the size of dimension {d} is {size}, which is not between {min} and {max}")
        torch_private.mark_size(tensor, d, "dynamic", min, max)


def _mark_bucket(tensor: torch.Tensor, dim: int, size: int, ends: list[int]) -> None:
    """Sizes 0 and 1 are compiled apart, in no bucket."""
    low = next((end + 1 for end in reversed(ends) if end < size), None)
    high = next((end for end in ends if size <= end), None)
    torch_private.mark_size(tensor, dim, "dynamic" if size > 1 else "", low, high, bucket=size > 1)


def maybe_mark_dynamic(tensor: torch.Tensor, dim: Dims) -> None:
    """``dim`` of ``tensor`` should be symbolic from the first compilation on, where the program allows it."""
    for d in _dims(tensor, dim):
        torch_private.mark_size(tensor, d, "weakly_dynamic")


def mark_static(tensor: torch.Tensor, dim: Dims | None = None) -> None:
    """``dim`` of ``tensor`` (None: every dimension) is never symbolic, even when it changes or with ``dynamic=True``."""
    for d in _dims(tensor, range(tensor.dim()) if dim is None else dim):
        torch_private.mark_size(tensor, d, "static")


def mark_unbacked(tensor: torch.Tensor, dim: Dims) -> None:
    """Not supported: raises NotImplementedError."""
    raise NotImplementedError("mark_unbacked is not supported: use mark_dynamic, which may look at the example size")


def mark_static_address(tensor: torch.Tensor, guard: bool = False) -> None:
    """The memory of ``tensor`` stays where it is: CUDA graphs read it there, however small it is. Where it does move, calls are
    recorded again, with ``guard`` or without. Parameters and buffers need no mark. Raises TypeError for what is no tensor.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mark_static_address expects a tensor, got {type(tensor).__name__}")
    torch_private.mark_address(tensor, guard)


def _dims(tensor: torch.Tensor, dim: Dims) -> list[int]:
    dims = [dim] if isinstance(dim, int) else list(dim)
    for d in dims:
        if not -tensor.dim() <= d < tensor.dim():
            raise IndexError(f"dimension {d} of a tensor with {tensor.dim()} dimensions")
    return [d % tensor.dim() for d in dims]
