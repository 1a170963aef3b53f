"""Torch functions that do otherwise for fake tensors: traced as Python. Most look at values only to refuse some, and
have their looks as checks in the graph.

A check that fails makes the graph raise, and the frame runs again eagerly, where torch's function says why.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ... import torch_private

check = torch_private.check_values


def legacy_tensor(dtype: torch.dtype, device: Any, *given: Any) -> Any:
    """``torch.FloatTensor(…)`` and its kin, ``torch.Tensor(…)`` and ``tensor.new(…)``: by size, by data, or another tensor."""
    first = given[0] if given else 0
    if len(given) == 1 and isinstance(first, torch.Tensor):
        if first.dtype != dtype:
            raise TypeError(f"expected a tensor of {dtype}, but got one of {first.dtype}")
        return torch.ops.aten.alias(first)
    if len(given) == 1 and not isinstance(first, (int, torch.Size)):
        return torch.tensor(first, dtype=dtype, device=device)
    return torch.empty(*given or (0,), dtype=dtype, device=device)


def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"  # noqa: A002
) -> Any:  # fmt: skip
    check(~torch.any(var < 0), "ValueError", "var has negative entry/entries")
    if var.size() != input.size():
        if input.size()[:-1] == var.size():
            var = torch.unsqueeze(var, -1)
        elif input.ndim != var.ndim or sum(v for n, v in zip(input.size(), var.size(), strict=True) if n != v) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(reduction + " is not valid")
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss += 0.5 * math.log(2 * math.pi)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


def quantile(
    input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"  # noqa: A002
) -> Any:  # fmt: skip
    return _quantile(input, q, dim, keepdim, interpolation, False)


def nanquantile(
    input: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"  # noqa: A002
) -> Any:  # fmt: skip
    return _quantile(input, q, dim, keepdim, interpolation, True)


def _quantile(x: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignore_nan: bool) -> Any:
    if isinstance(q, torch.Tensor) and q.device.type == "cpu":
        check(torch.all((q >= 0) & (q <= 1)), "RuntimeError", "quantile() q values must be in the range [0, 1]")
    elif not isinstance(q, torch.Tensor):
        q = torch.scalar_tensor(q, dtype=x.dtype, device=x.device)
    rank = x.dim()
    if dim is None or rank == 0:
        kept, rows = [1] * rank, x.flatten()
    else:
        dim = dim % rank
        kept = [1 if d == dim else n for d, n in enumerate(x.shape)]
        rows = x if dim == rank - 1 else x.unsqueeze(-1).transpose(dim, -1)
    shape = kept if keepdim else [n for d, n in enumerate(kept) if dim is not None and d != dim]
    ordered = rows.sort().values
    last = ordered.size(-1) - 1
    ordered = ordered.view([*shape, last + 1])
    if ignore_nan:
        ranks = q * (ordered.isnan().logical_not().sum(-1, True) - 1)
        ranks = ranks.masked_fill(ranks < 0, 0)
    else:
        ranks, undefined = torch.broadcast_tensors(q * last, ordered.isnan().any(-1, True))
        ranks = ranks.masked_fill(undefined, last)
    if interpolation in ("lower", "higher", "nearest"):
        ranks = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}[interpolation](ranks)
    below = ranks.long()
    values = ordered.gather(-1, below)
    if interpolation in ("linear", "midpoint"):
        weights = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - below
        values = values.lerp(ordered.gather(-1, ranks.ceil().long()), weights)
    if q.dim() == 0:
        return values.squeeze(-1)
    return values.unsqueeze(0).transpose(0, -1).squeeze(-1)


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:  # noqa: A002
    x = input.view(1, -1) if input.dim() < 2 else input
    if fweights is None and aweights is None:
        average, weighted, factor = x.sum(1) / x.size(1), None, x.size(1) - correction
    else:
        for name, weights in (("fweights", fweights), ("aweights", aweights)):
            if weights is not None:
                check(weights.min().ge(0), "RuntimeError", f"cov(): {name} cannot be negative")
        weighted = aweights if fweights is None else fweights if aweights is None else fweights * aweights
        total = weighted.sum()
        check(total.ne(0), "RuntimeError", "cov(): weights sum to zero, can't be normalized")
        average, factor = (x * weighted).sum(1) / total, total - correction
        if aweights is not None and correction != 0:
            factor = total - correction * (weighted * aweights).sum() / total
        check(
            factor > 0, "UserWarning",
            "cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of observations.",
        )  # fmt: skip
        factor = factor.clamp(min=0)
    x = x - average.unsqueeze(1)
    return torch.true_divide(torch.mm(x, (x if weighted is None else x * weighted).t()), factor).squeeze()


def corrcoef(input: Any) -> Any:  # noqa: A002
    found = cov(input)
    if found.dim() == 0:
        return found / found
    deviations = found.diagonal().sqrt()
    return (found / deviations.view(-1, 1) / deviations.view(1, -1)).clip(-1, 1)


def max_pool1d(
    input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,  # noqa: A002
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """Where no gradient is asked for, ATen has a kernel of its own, whose result is contiguous."""
    steps = () if stride is None else stride
    return torch.max_pool1d_with_indices(input, kernel_size, steps, padding, dilation, ceil_mode)[0].contiguous()
