"""Operands that eager's kernels refuse, although torch's decompositions of them would compute with those.

Which they are depends on torch's version, so the kernel is asked, on zeros of the operands' sizes and strides. It is rarely: most
programs have operands of one dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuselens import torch_private
from fuselens.torch_private.result_layouts import suggested_memory_format

aten = torch.ops.aten

# Kernels that promote no operand to the dtype of another, or give the dtype of their first. (Normalisations of halves by
# parameters of float32 are common, and fine.)
_ELEMENTWISE = frozenset({
    "mse_loss_backward", "smooth_l1_loss_backward", "huber_loss", "huber_loss_backward", "soft_margin_loss",
    "soft_margin_loss_backward", "mish_backward", "threshold_backward", "gelu_backward", "silu_backward", "elu_backward",
    "softplus_backward", "hardswish_backward", "hardsigmoid_backward", "hardtanh_backward", "leaky_relu_backward",
    "logit_backward", "log_sigmoid_backward", "glu_backward", "_prelu_kernel", "_prelu_kernel_backward",
    "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "heaviside", "lerp", "linalg_cross",
    "_softmax_backward_data", "_log_softmax_backward_data", "_cdist_forward", "_cdist_backward",
})  # fmt: skip
_BY_POSITION = frozenset({"nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"})
_NORMS = frozenset({
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit_functional", "batch_norm_backward",
    "_batch_norm_with_update_functional",
})  # fmt: skip
_WIDE_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})  # few kernels exist for them
_MIXED_PRECISION = frozenset({torch.float32, torch.float16, torch.bfloat16})


def refusal(func: Any, args: Sequence[Any], kwargs: Any, result: Any, *, training: bool) -> str:
    """Why eager does not compute ``result``, which a decomposition did; "" where it does."""
    name = func.overloadpacket.__name__
    if training and name in ("logaddexp", "logaddexp2") and any(t.dtype is torch.bool for t in args):
        return f"eager's backward of {name} subtracts, which is not defined for booleans"
    if training and func is aten.clamp.Tensor:
        return _of_bounds(args, result)
    if training and func is aten.addcdiv.default:
        return _of_divisor(args)
    if name == "native_group_norm" and not args[0].is_contiguous(memory_format=suggested_memory_format(args[0])):
        if isinstance(_by_kernel(func, args, kwargs), str):  # until torch 2.14
            return f"{func} refuses operands that are not contiguous"
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
    if any(t.dtype in _WIDE_UNSIGNED and t.device.type == "cpu" for t in tensors):
        found = _by_kernel(func, args, kwargs)
        return f"{func} refuses wide unsigned integers: {found}" if isinstance(found, str) else ""
    if name not in _ELEMENTWISE and name not in _BY_POSITION and name not in _NORMS:
        return ""
    dtypes = {t.dtype for t in tensors if name in _ELEMENTWISE or t.is_floating_point()}
    if len(dtypes) < 2 or (name in _NORMS and dtypes <= _MIXED_PRECISION):
        return ""
    found = _by_kernel(func, args, kwargs)
    if isinstance(found, str):
        return f"{func} refuses operands of such dtypes: {found}"
    given = [t.dtype for t in torch_private.PYTREE.tree_leaves(result) if isinstance(t, torch.Tensor)]
    return "" if found == given else f"{func} gives another dtype for operands of such dtypes"


def _by_kernel(func: Any, args: Any, kwargs: Any) -> str | list[torch.dtype]:
    """The dtypes of what the kernel returns for zeros, or the error."""

    def real(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        sizes, strides = ([torch_private.size_hint(n) for n in numbers] for numbers in (value.shape, value.stride()))
        reach = 0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        return torch.zeros(reach, dtype=value.dtype).as_strided(sizes, strides)

    with torch_private.real_tensors():
        try:
            result = func(
                *torch_private.PYTREE.tree_map(real, tuple(args)), **torch_private.PYTREE.tree_map(real, dict(kwargs))
            )
        except (RuntimeError, NotImplementedError) as error:
            return (str(error).splitlines() or [""])[0]
        return [t.dtype for t in torch_private.PYTREE.tree_leaves(result) if isinstance(t, torch.Tensor)]


def _of_bounds(args: Sequence[Any], result: torch.Tensor) -> str:
    """Eager's backward combines comparisons with each bound in place, which fails where they have different shapes."""
    bounds = [b for b in args[1:3] if isinstance(b, torch.Tensor)]
    shapes = [torch.broadcast_shapes(args[0].shape, b.shape) for b in bounds]
    if len(bounds) == 2 and any(s != result.shape for s in shapes):
        return "eager's backward of clamp refuses bounds of different shapes"
    return ""


def _of_divisor(args: Sequence[Any]) -> str:
    """Some versions divide integers in place in the backward."""
    if args[2].is_floating_point() or args[2].is_complex():
        return ""
    with torch_private.real_tensors(), torch.enable_grad():
        x, y = (torch.zeros(1, requires_grad=True) for _ in range(2))
        try:
            torch.autograd.grad(torch.addcdiv(x, y, torch.ones(1, dtype=args[2].dtype)), (x, y), torch.ones(1))
        except RuntimeError as error:
            return f"eager's backward of addcdiv refuses integers: {error}"
    return ""
