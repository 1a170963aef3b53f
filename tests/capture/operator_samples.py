"""torch's own database of operators with sample inputs, and what one call of an operator leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import fuselens

from .databases import database

invocations = database("common_methods_invocations")
invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)  # seeded here, outside the compiled code

OPERATORS: dict[str, Any] = {
    f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}": op for op in invocations.op_db
}
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
UNDEFINED = {  # results that hold what was in memory: the state of random numbers, where none are drawn
    "torch.ops.aten._flash_attention_forward": (2, 3),
    "torch.ops.aten._efficient_attention_forward": (2, 3),
}
NOT_SHARED = {"unsafe_chunk", "unsafe_split"}  # their schemas say so
RESHAPING = (
    "as_strided_",
    "resize_",
    "resize_as_",
    "squeeze_",
    "swapaxes_",
    "t_",
    "transpose_",
    "unsqueeze_",
)  # break on inputs


def copied(value: Any, grad: bool) -> Any:
    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.detach().clone()
        if leaf.layout is torch.strided and made.stride() != leaf.stride():
            made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
            made.copy_(leaf.detach())
        return made.requires_grad_(leaf.requires_grad and grad)

    return pytree.tree_map(copy, value)


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def layout(result: Any, given: Any) -> Any:
    """Strides, and who shares memory or identity with whom."""
    found = [t for t in tensors((given, result)) if t.layout is torch.strided]
    keys = [t.untyped_storage().data_ptr() if t.numel() else -1 for t in found]
    places = [(t.stride(), t.storage_offset(), keys.index(k)) for t, k in zip(found, keys, strict=True)]
    return places, [next(i for i, u in enumerate(found) if u is t) for t in found]


def observe(fn: Callable[..., Any], sample: Any, in_place: bool) -> dict[str, Any]:
    """Values, layout, arguments afterwards and gradients, or the exception."""
    given, keywords = copied(((sample.input, *sample.args), sample.kwargs), not in_place)
    torch.manual_seed(0)
    try:
        result = fn(*given, **keywords)
    except fuselens.GraphBreakError:
        raise
    except Exception as error:  # noqa: BLE001 - exceptions are compared too
        return {"exception": f"{type(error).__name__}: {error}"}
    leaves = [t for t in tensors((given, keywords)) if t.requires_grad and t.is_leaf]
    outputs = [t for t in tensors(result) if t.grad_fn is not None and t.layout is torch.strided]
    seen = {"layout": layout(result, (given, keywords)), "arguments": (given, keywords), "result": result}
    if leaves and outputs:
        tangents = [torch.linspace(0.5, 1.5, t.numel()).to(t).view(t.shape) for t in outputs]
        try:
            seen["gradients"] = torch.autograd.grad(outputs, leaves, tangents, allow_unused=True)
        except RuntimeError as error:  # eigenvectors are defined up to a phase
            seen["gradients"] = str(error)
    return {part: pytree.tree_map(dense, found) for part, found in seen.items()}


def dense(leaf: Any) -> Any:
    return leaf.to_dense() if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided else leaf
