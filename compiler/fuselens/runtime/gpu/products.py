"""How long a product of matrices takes on this card as it is, on padded operands, and without its bias: measured once a shape, and
remembered on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F

from ...config import Config
from ...ir.contracts.padding import Product, lacking
from .turns import remembered_in_turns

Call = Callable[[], torch.Tensor]


def seconds(product: Product, config: Config, device: torch.device) -> tuple[float, float] | None:
    """Of one call; padded, with the copies that takes. None where it cannot be measured now."""
    return _remembered("alignment", product, lambda: _padded(product, device), config, device)


def seconds_of_bias(product: Product, config: Config, device: torch.device) -> tuple[float, float] | None:
    """Of one call with the bias, and of one without. None where it cannot be measured now."""

    def calls() -> list[Call]:
        a, b, bias = _operands(product, device)
        return [lambda: _multiplied(product, a, b, bias), lambda: _multiplied(product, a, b, None)]

    return _remembered("bias", product, calls, config, device)


def _remembered(
    what: str, product: Product, calls: Callable[[], list[Call]], config: Config, device: torch.device
) -> tuple[float, float] | None:
    question = {what: dataclasses.asdict(product), "cuda": [torch.version.cuda, torch.backends.cuda.matmul.allow_tf32]}
    found = remembered_in_turns(question, calls, config, device)
    return (found[0], found[1]) if found else None


def _operands(p: Product, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """As they lie in memory."""
    dtype = getattr(torch, p.dtype)

    def lying(high: int, wide: int, turned: bool) -> torch.Tensor:
        sizes = (wide, high) if turned else (high, wide)
        return torch.full((p.batch, *sizes), 0.5, dtype=dtype, device=device)

    bias = torch.zeros(p.columns, dtype=dtype, device=device) if p.bias else None
    return lying(p.rows, p.summed, p.turned[0]), lying(p.summed, p.columns, p.turned[1]), bias


def _multiplied(p: Product, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    a, b = (t.mT if turned else t for t, turned in zip((a, b), p.turned, strict=True))
    if p.batch > 1:
        return torch.bmm(a, b)
    return torch.mm(a[0], b[0]) if bias is None else torch.addmm(bias, a[0], b[0])


def _padded(p: Product, device: torch.device) -> list[Call]:
    (_, right), dtype = p.turned, getattr(torch, p.dtype)
    rows = lacking(p.rows, dtype) if p.turned[0] else 0
    columns, summed = lacking(p.columns, dtype), lacking(p.summed, dtype)
    a, b, bias = _operands(p, device)

    def padded() -> torch.Tensor:
        more = [(summed, rows) if p.turned[0] else (rows, summed), (columns, summed) if right else (summed, columns)]
        wider = [
            F.pad(t, [0, wide, 0, high]) if high or wide else t for t, (high, wide) in zip((a, b), more, strict=True)
        ]
        longer = F.pad(bias, [0, columns]) if bias is not None and columns else bias
        result = _multiplied(p, wider[0], wider[1], longer)
        return result[..., : p.rows, : p.columns].contiguous() if rows or columns else result

    return [lambda: _multiplied(p, a, b, bias), padded]
