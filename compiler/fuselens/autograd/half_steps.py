"""Operators whose kernels compute halves as halves, and so round at every step, where loops would round at the end.

Each is the operator in single precision of which ``rounded`` takes the steps; the differences of the two are largest
where steps cancel, as in the logit of what is nearly one half.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fuselens import torch_private

from .definitions import soft_margin_loss_backward

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
Step = Callable[[Any], Any]  # rounds a tensor, or a number


def _rounded(dtype: torch.dtype) -> Step:
    def step(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(dtype).float()
        with torch_private.real_tensors():
            return torch.tensor(value, dtype=dtype).item()

    return step


def in_steps(
    rule: Callable[..., Any], compute: Callable[..., Tensor], dtypes: tuple[torch.dtype, ...] = _HALVES
) -> Callable[..., Any]:
    """``rule``, and for operands of one of ``dtypes`` what ``compute`` makes of a way to round and of them."""

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [t for t in (x, *args, *kwargs.values()) if isinstance(t, Tensor)]
        if not isinstance(x, Tensor) or x.dtype not in dtypes or any(t.dtype is not x.dtype for t in tensors):
            return rule(x, *args, **kwargs)
        wide = [a.float() if isinstance(a, Tensor) else a for a in args]
        made = compute(_rounded(x.dtype), x.float(), *wide, **kwargs)
        return made.to(x.dtype)

    return run


def _of_loss(each: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A loss of elements, reduced as asked."""

    def run(step: Step, x: Tensor, y: Tensor, reduction: int = 1, *numbers: float, **named: float) -> Tensor:
        loss = each(step, x, y, *numbers, **named)
        return loss if reduction == 0 else step(loss).mean() if reduction == 1 else step(loss).sum()

    return run


def _mse(step: Step, x: Tensor, y: Tensor) -> Tensor:
    difference = step(x - y)
    return difference * difference


def _huber(step: Step, x: Tensor, y: Tensor, delta: float = 1.0) -> Tensor:
    size, far = step(x - y).abs(), step(delta)
    return torch.where(size < far, step(0.5 * size) * size, far * step(size - step(0.5 * far)))


def _smooth_l1(step: Step, x: Tensor, y: Tensor, beta: float = 1.0) -> Tensor:
    size, far = step(x - y).abs(), step(beta)
    near = step(step(0.5 * size) * size) / far if far else size
    return torch.where(size < far, near, size - step(0.5 * far))


def _logit(step: Step, x: Tensor, eps: float | None = None) -> Tensor:
    if eps is not None and eps >= 0:
        low = step(eps)
        high = step(1 - low)
        x = torch.where(x < low, low, torch.where(x > high, high, x))
    return step(x / step(1 - x)).log()


def _xlogy(step: Step, x: Tensor, y: Tensor, log: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.where(y.isnan(), y, torch.where(x == 0, 0.0, x * step(log(y))))


def _softshrink(step: Step, x: Tensor, lambd: float = 0.5) -> Tensor:
    """Nothing is rounded on the way; the limit is from torch 2.14 on."""
    lambd = step(lambd) if torch_private.SHRINKS_BY_ROUNDED else lambd
    return torch.where(x.abs() > lambd, x - x.sign() * lambd, x * 0)


def _soft_margin_backward(step: Step, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return soft_margin_loss_backward(grad, x, target, reduction, step)


_STEPS: dict[Any, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    aten.mse_loss.default: lambda rule: in_steps(rule, _of_loss(_mse)),
    aten.huber_loss.default: lambda rule: in_steps(rule, _of_loss(_huber)),
    aten.smooth_l1_loss.default: lambda rule: in_steps(rule, _of_loss(_smooth_l1), (torch.float16,)),
    aten.logit.default: lambda rule: in_steps(rule, _logit),
    aten.xlogy.Tensor: lambda rule: in_steps(rule, functools.partial(_xlogy, log=torch.log)),
    aten.special_xlog1py.default: lambda rule: in_steps(rule, functools.partial(_xlogy, log=torch.log1p)),
    aten.soft_margin_loss_backward.default: lambda rule: in_steps(rule, _soft_margin_backward),
    aten.softshrink.default: lambda rule: in_steps(rule, _softshrink),
}


def over(rules: Mapping[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Rules for the operators here, which for other types than halves are those of ``rules``."""
    return {op: make(rules.get(op, _kept)) for op, make in _STEPS.items()}


def _kept(*_: Any, **__: Any) -> Any:
    return NotImplemented
