"""What programs say about tensors: ``mark_dynamic`` and its kin, in torch's spelling and as torch keeps it on the tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ... import torch_private

Dims = int | Iterable[int]


def mark_dynamic(tensor: torch.Tensor, dim: Dims, *, min: int | None = None, max: int | None = None) -> None:  # noqa: A002
    """``dim`` of ``tensor`` varies between calls, within the range: one compilation must serve all its sizes.

    A call whose compilation would specialise it raises :class:`fuselens.ConstraintError`. The mark is kept on the tensor
    object. Raises IndexError for what is no dimension, ValueError for a size that is out of the range.
    """
    for d in _dims(tensor, dim):
        size = tensor.shape[d]
        if not (min is None or min <= size) or not (max is None or size <= max):
            raise ValueError(f"the size of dimension {d} is {size}, which is not between {min} and {max}")
        torch_private.mark_size(tensor, d, "dynamic", min, max)


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
