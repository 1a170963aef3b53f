"""Operators on lists of tensors in terms of operators on tensors: ``torch._foreach_*`` and the fused optimisers.

They run on the wrappers of the joint trace, above autograd and functionalization, so that writes count as eager counts
them and every list becomes pointwise work that fuses. Fused optimisers round as ATen's kernels on the CPU do, but for
the order of some products.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def on_tensors(target: Any) -> Callable[..., Any] | None:
    """What runs in place of ``target``, when that is an operator on lists for which there are operators on tensors."""
    name = getattr(target, "__name__", "")
    if getattr(torch, name, None) is not target:
        return None
    if name in _FUSED:
        return _FUSED[name]
    if not name.startswith("_foreach_"):
        return None
    name = name.removeprefix("_foreach_")
    each = _EACH.get(name) or getattr(Tensor if name.endswith("_") else torch, name, None)
    return functools.partial(_each, each, name.endswith("_")) if each is not None else None


def _each(run: Callable[..., Any], in_place: bool, *args: Any, **kwargs: Any) -> Any:
    lists = next(a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple)))

    def at(value: Any, i: int) -> Any:
        return value[i] if isinstance(value, (list, tuple)) else value

    made = [run(*(at(a, i) for a in args), **{k: at(v, i) for k, v in kwargs.items()}) for i in range(len(lists))]
    return lists if in_place else made


def _clamp_or(clamp: Callable[..., Any], extremum: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, other: extremum(x, other) if isinstance(other, Tensor) else clamp(x, other)


def _scaled(run: Callable[..., Any]) -> Callable[..., Any]:
    """``addcdiv`` and its like, whose factor ``_foreach`` takes by position or under another name."""

    def scaled(x: Any, a: Any, b: Any, value: Any = 1, *, scalars: Any = None) -> Any:
        return run(x, a, b, value=value if scalars is None else scalars)

    return scaled


_EACH: dict[str, Callable[..., Any]] = {
    "maximum": _clamp_or(torch.clamp_min, torch.maximum),
    "minimum": _clamp_or(torch.clamp_max, torch.minimum),
    "maximum_": Tensor.clamp_min_,
    "minimum_": Tensor.clamp_max_,
    "addcdiv": _scaled(torch.addcdiv),
    "addcmul": _scaled(torch.addcmul),
    "addcdiv_": _scaled(Tensor.addcdiv_),
    "addcmul_": _scaled(Tensor.addcmul_),
    "norm": torch.linalg.vector_norm,
}


# --- optimisers in one operator


def _adam(
    params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, max_exp_avg_sqs: Any, state_steps: Any, *, lr: Any,
    beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Any = None,
    found_inf: Any = None, decoupled: bool,
) -> None:  # fmt: skip
    """``_fused_adam_`` and ``_fused_adamw_``."""
    for i, (p, g, m, v, step) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, state_steps, strict=True)):
        most = max_exp_avg_sqs[i] if amsgrad else None
        old = (p, g, m, v, most)
        scaled, g = _unscaled(g, grad_scale, maximize)
        if weight_decay != 0:
            p, g = (p * (1 - lr * weight_decay), g) if decoupled else (p, g + p * weight_decay)
        m = torch.lerp(m, g, 1 - beta1)
        v = v * beta2 + (1 - beta2) * g * g
        step = step.to(torch.float64)
        size = lr / (1 - beta1**step)
        peak = v if most is None else torch.maximum(most, v)
        denominator = peak.sqrt() / (1 - beta2**step).sqrt() + eps
        p = p - size * m / denominator
        _write_unless(found_inf, old, (p, scaled, m, v, peak))


def _sgd(
    params: Any, grads: Any, momentum_buffers: Any, *, weight_decay: float, momentum: float, lr: Any, dampening: float,
    nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    """``_fused_sgd_``."""
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        buffer = momentum_buffers[i] if momentum_buffers else None
        old = (p, g, buffer)
        scaled, g = _unscaled(g, grad_scale, maximize)
        if weight_decay != 0:
            g = g + p * weight_decay
        if buffer is not None:
            buffer = g.clone() if is_first_step else buffer * momentum + g * (1 - dampening)
            g = g + buffer * momentum if nesterov else buffer
        _write_unless(found_inf, old, (p - lr * g, scaled, buffer))


def _adagrad(
    params: Any, grads: Any, state_sums: Any, state_steps: Any, *, lr: Any, lr_decay: float, weight_decay: float,
    eps: float, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    """``_fused_adagrad_``."""
    for p, g, total, step in zip(params, grads, state_sums, state_steps, strict=True):
        old = (p, g, total)
        scaled, g = _unscaled(g, grad_scale, maximize)
        if weight_decay != 0:
            g = g + p * weight_decay
        rate = lr / (1 + (step.to(torch.float64) - 1) * lr_decay)
        total = total + g * g
        _write_unless(found_inf, old, (p - rate * g / (total.sqrt() + eps), scaled, total))


def _unscaled(g: Any, grad_scale: Any, maximize: bool) -> tuple[Any, Any]:
    """The gradient without its scale, as it is left behind, and in the direction of the step."""
    if grad_scale is not None:
        g = g / grad_scale
    return g, -g if maximize else g


def _write_unless(found_inf: Any, old: tuple[Any, ...], new: tuple[Any, ...]) -> None:
    """Writes what changed, unless a gradient was infinite."""
    for before, after in zip(old, new, strict=True):
        if before is not None and after is not before:
            after = after.to(before.dtype)
            before.copy_(after if found_inf is None else torch.where(found_inf == 1, before, after))


_FUSED: dict[str, Callable[..., Any]] = {
    "_fused_adam_": functools.partial(_adam, decoupled=False),
    "_fused_adamw_": functools.partial(_adam, decoupled=True),
    "_fused_sgd_": _sgd,
    "_fused_adagrad_": _adagrad,
}
