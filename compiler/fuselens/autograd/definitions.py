"""Operators by their definitions, where torch keeps them whole: distances, copies of views.

Functions of the operators' arguments, for the recorder's table; NotImplemented keeps the operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_BY_MATMUL = 25  # rows from which ATen computes Euclidean distances by a matrix product


def _dist(x: Tensor, y: Tensor, p: float = 2.0) -> Tensor:
    return aten.linalg_vector_norm(x - y, p)


def _differences(x: Tensor, y: Tensor) -> Tensor:
    """Row i of ``x`` minus row j of ``y``."""
    return x.unsqueeze(-2) - y.unsqueeze(-3)


def _cdist(x: Tensor, y: Tensor, p: float, mode: int | None) -> Any:
    rows = (x.shape[-2], y.shape[-2])
    if p == 2.0 and (mode == 1 or (mode != 2 and any(n > _BY_MATMUL for n in rows))):
        return NotImplemented
    if x.shape[-1] == 0:
        return NotImplemented
    return aten.linalg_vector_norm(_differences(x, y), p, [-1])


def _cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Any:
    """The derivative to ``x``; 0 at points that coincide, where there is none."""
    if not x.numel() or not y.numel():
        return NotImplemented
    if p == 0.0:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    difference = _differences(x, y)
    size = difference.abs()
    far, grad = distance.unsqueeze(-1), grad.unsqueeze(-1)
    if p == 1.0:
        each = grad * difference.sign()
    elif math.isinf(p):
        each = torch.where(size == far, grad * difference.sign(), 0.0)
    elif p == 2.0:
        each = torch.where(far == 0, 0.0, grad * difference / far)
    else:
        each = difference.sign() * size ** (p - 1) * grad / far ** (p - 1)
        each = torch.where((far == 0) | ((difference == 0) if p < 1.0 else False), 0.0, each)
    return each.sum(-2)


def linspace(rule: Callable[..., Tensor]) -> Callable[..., Any]:
    """torch's decomposition. Of integers ATen adds fractional steps to bases that it truncates, one for each of its
    vectors, so theirs are left to it unless the steps are whole."""

    def run(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **rest: Any) -> Any:
        if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
            if not isinstance(start, (int, float)) or not isinstance(end, (int, float)) or not isinstance(steps, int):
                return NotImplemented
            start, end = int(start), int(end)
            if steps > 1 and (end - start) % (steps - 1):
                return NotImplemented
        return rule(start, end, steps, dtype=dtype, **rest)

    return run


def logspace(rule: Callable[..., Tensor]) -> Callable[..., Any]:
    """torch's decomposition, in double precision. A GPU truncates powers of single precision to integers: left to ATen."""

    def run(*args: Any, dtype: torch.dtype | None = None, **rest: Any) -> Any:
        if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
            return NotImplemented
        return rule(*args, dtype=dtype, **rest)

    return run


def group_norm(rule: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, with the statistics of halves in the type of the parameters, as ATen computes them. On a GPU torch
    normalizes a view by groups; like ATen's kernel, ours scales and shifts the channels of the tensor as it lies."""

    def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, n: Any, c: Any, rest: Any, *more: Any) -> Any:
        if rest == 0:
            return NotImplemented
        chosen = rule if x.device.type == "cpu" else _scaled_groups
        if not any(p is not None and p.dtype is torch.float32 and x.dtype is not torch.float32 for p in (weight, bias)):
            return chosen(x, weight, bias, n, c, rest, *more)
        out, mean, rstd = chosen(x.float(), weight, bias, n, c, rest, *more)
        return out.to(x.dtype), mean, rstd

    return run


def group_norm_backward(rule: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition. The only element of a group is its mean, as that was rounded when it was saved: made anew it may be rounded
    elsewhere, and what the two differ by is divided by nearly nothing."""

    def run(
        grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: Any, c: Any, rest: Any, groups: int, mask: Any
    ) -> Any:  # fmt: skip
        alone = c == groups and rest == 1
        return rule(
            grad, mean.reshape(x.shape).to(x.dtype) if alone else x, mean, rstd, weight, n, c, rest, groups, mask
        )

    return run


def _scaled_groups(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: Any, c: Any, rest: Any, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Group norm as ``x * scale + shift``: of each channel, ``scale = weight / sqrt(var + eps)`` and ``shift = bias - mean * scale``."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    each = c // groups
    var, mean = torch.var_mean(wide.reshape(n, groups, each, rest), dim=(2, 3), correction=0, keepdim=True)
    rstd = torch.rsqrt(var + eps)
    scale = rstd if weight is None else rstd * weight.view(1, groups, each, 1)
    shift = -mean * scale
    if bias is not None:
        shift = shift + bias.view(1, groups, each, 1)
    channels = [n, c, *[1] * (x.dim() - 2)]
    scale, shift = (t.expand(n, groups, each, 1).reshape(channels) for t in (scale, shift))
    return (wide * scale + shift).to(x.dtype), mean.view(n, groups).to(x.dtype), rstd.view(n, groups).to(x.dtype)


def each_channel_a_group(
    input: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,  # noqa: A002  torch's name
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor | None:  # fmt: skip
    """``F.instance_norm`` of an image's own statistics as a group norm of as many groups as channels, which keeps an order of
    channels in memory where ATen's batch norm of a view does not; None for any other."""
    if not use_input_stats or running_mean is not None or running_var is not None or input.dim() < 3:
        return None
    if any(p is not None and p.dtype is not input.dtype for p in (weight, bias)) or math.prod(input.shape[2:]) <= 1:
        return None
    n, channels, rest = input.shape[0], input.shape[1], math.prod(input.shape[2:])
    made = torch.native_group_norm(input, weight, bias, n, channels, rest, channels, eps)[0]
    return made.contiguous()


def threshold_backward(rule: Callable[..., Any]) -> Callable[..., Any]:
    """torch's decomposition, whose comparison is small to save, where the threshold is a number of every dtype."""

    def run(grad: Tensor, x: Tensor, threshold: Any) -> Any:
        return rule(grad, x, threshold) if threshold == 0 else NotImplemented

    return run


def _eye(n: Any, m: Any = None, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any) -> Tensor:
    """Torch's decomposition counts in the narrowest type that holds the sizes, which its kernels and ours lack."""
    sizes = (n, n if m is None else m)
    if 0 in sizes:
        return torch.empty(sizes, dtype=dtype, device=device)
    rows, columns = (torch.arange(k, device=device) for k in sizes)
    return (rows.unsqueeze(-1) == columns).to(dtype or torch.get_default_dtype())


def _shrink_backward(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    return torch.where((x >= -limit) & (x <= limit), 0, grad)


def _unbind_copy(x: Tensor, dim: int = 0) -> list[Tensor]:
    return [part.clone(memory_format=torch.contiguous_format) for part in aten.unbind.int(x, dim)]


def _copied(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: view(*args, **kwargs).clone(memory_format=torch.contiguous_format)


def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Any:
    """Each element that is set goes to the row of its rank, all others to a row past the last."""
    if x.dim() == 0 or x.numel() == 0:
        return torch.full((size, x.dim()), fill_value, dtype=torch.int64, device=x.device)
    chosen = (x != 0).flatten()
    ranks = chosen.cumsum(0) - 1
    rows = torch.where(chosen & (ranks < size), ranks, size)
    numbers = torch.arange(x.numel(), device=x.device)
    flat = torch.full((size + 1,), -1, dtype=torch.int64, device=x.device).scatter(0, rows, numbers)[:size]
    columns, below = [], 1
    for n in reversed(x.shape):
        columns.append(torch.where(flat < 0, fill_value, flat // below % n))
        below = below * n
    return torch.stack(columns[::-1], 1)


def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, missing_a: list[int], missing_b: list[int], missing_c: list[int], summed: list[int],
    unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """The product of three, each without some of the dimensions, summed over others: as matrix products."""
    letters = "abcdefghijklmnopqrstuvwxyz"[: a.dim() + len(missing_a)]
    own = [
        "".join(letter for d, letter in enumerate(letters) if d not in m)
        for m in (missing_a, missing_b, missing_c, summed)
    ]
    made = torch.einsum(f"{own[0]},{own[1]},{own[2]}->{own[3]}", a, b, c)
    return made.contiguous()


def soft_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int, step: Callable[[Any], Any] = lambda value: value
) -> Tensor:
    """As ATen computes it, where torch's decomposition would not overflow: NaN where the exponential does; and unsigned
    targets wrap when they are negated. ``step`` rounds what ATen stores on the way."""
    norm = 1.0 / x.numel() if reduction == 1 and x.numel() else 1.0
    z = step(torch.exp(step(-target * x)))
    return step(step(step(target * z) * -norm) / step(z + 1)) * grad


def _smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """NaN, and so a difference of infinities, is in the parabola, as in ATen."""
    difference = x - target
    scale = 1.0 / difference.numel() if reduction == 1 else 1.0
    slope = torch.where(difference <= -beta, -scale, torch.where(difference >= beta, scale, scale * difference / beta))
    return slope * grad


TABLE: dict[Any, Callable[..., Any]] = {
    aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
    aten.soft_margin_loss_backward.default: soft_margin_loss_backward,
    aten.nonzero_static.default: _nonzero_static,
    aten._trilinear.default: _trilinear,
    aten.dist.default: _dist,
    aten._cdist_forward.default: _cdist,
    aten._cdist_backward.default: _cdist_backward,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    aten.hardshrink_backward.default: _shrink_backward,
    aten.softshrink_backward.default: _shrink_backward,
    aten.as_strided_copy.default: _copied(aten.as_strided.default),
    aten.view_copy.default: _copied(aten.view.default),
    aten.unbind_copy.int: _unbind_copy,
    aten.narrow_copy.default: _copied(aten.narrow.default),
    aten.permute_copy.default: _copied(aten.permute.default),
}
