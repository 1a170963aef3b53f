"""Where the elements of tensors lie in memory, and how to compare that; sizes may be symbols."""

from __future__ import annotations

from typing import Any

import torch

from fuselens import torch_private
from fuselens.torch_private.result_layouts import is_dense

from ..recorder import OperatorRecorder


def has_symbols(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(torch_private.is_symbolic_number(s) for s in (*value.shape, *value.stride()))
    return torch_private.is_symbolic_number(value)


def offset_of(value: Any) -> Any:
    """Where a tensor begins in its memory; None for what has none to read."""
    return value.storage_offset() if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def reach(t: torch.Tensor) -> tuple[Any, Any]:
    """The first byte of a tensor in its storage, and that after its last."""
    start = t.storage_offset()
    last = start + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) if t.numel() else start - 1
    return start * t.element_size(), (last + 1) * t.element_size()


def holds(base: torch.Tensor, t: torch.Tensor) -> bool:
    """Whether all memory of ``t`` lies in that of ``base``, which has no gaps."""
    extents = (*base.shape, *base.stride(), base.storage_offset(), *t.shape, *t.stride(), t.storage_offset())
    if not all(isinstance(e, int) for e in extents):
        return base is t or same_shape(base, t)
    return is_dense(base) and reach(base)[0] <= reach(t)[0] and reach(t)[1] <= reach(base)[1]


def has_gaps(value: torch.Tensor) -> bool:
    """Whether a tensor's elements repeat in memory or leave some of it out, as far as its sizes are known."""
    if has_symbols(value):
        return any(isinstance(s, int) and s == 0 and n != 1 for n, s in zip(value.shape, value.stride(), strict=True))
    return value.layout is torch.strided and value.numel() > 0 and not is_dense(value)


def overlaps(t: torch.Tensor) -> bool:
    """Whether elements share memory, as far as sizes and strides that are known tell."""
    steps = [
        (s, n) for n, s in zip(t.shape, t.stride(), strict=True) if isinstance(s, int) and isinstance(n, int) and n > 1
    ]
    if any(isinstance(s, int) and s == 0 and not (isinstance(n, int) and n <= 1)
           for n, s in zip(t.shape, t.stride(), strict=True)):  # fmt: skip
        return True
    reach = 0
    for step, n in sorted(steps):
        if step <= reach:
            return True
        reach += (n - 1) * step
    return False


def same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors in the same memory have the same elements, as those that ``t_()`` and ``unsqueeze_()`` change."""

    def steps(t: torch.Tensor) -> list[tuple[str, str]]:
        return sorted((str(step), str(n)) for n, step in zip(t.shape, t.stride(), strict=True) if n != 1)

    return steps(a) == steps(b) and str(a.storage_offset()) == str(b.storage_offset())


def same_shape(a: torch.Tensor, b: torch.Tensor) -> bool:
    return tuple(map(str, (*a.shape, *a.stride()))) == tuple(map(str, (*b.shape, *b.stride())))


def fresh_like(recorder: OperatorRecorder, value: torch.Tensor) -> torch.Tensor:
    """A fresh fake tensor of ``value``'s shape, with its strides where those are dense; not recorded."""
    with recorder.pause():
        if value.layout is torch.strided and not has_symbols(value) and is_dense(value):
            # empty_like chooses other strides where sizes are 1
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return torch.empty_like(value, requires_grad=False, memory_format=torch.preserve_format)
