"""How long a product of matrices takes on this card as it is, and on padded operands: measured once a shape, and remembered on disk."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F

from ...config import Config
from ...ir.contracts.padding import Product, lacking
from .turns import remembered_in_turns


def seconds(product: Product, config: Config, device: torch.device) -> tuple[float, float] | None:
    """Of one call; padded, with the copies that takes. None where it cannot be measured now."""
    question = {
        "alignment": dataclasses.asdict(product),
        "cuda": [torch.version.cuda, torch.backends.cuda.matmul.allow_tf32],
    }
    found = remembered_in_turns(question, lambda: _calls(product, device), config, device)
    return (found[0], found[1]) if found else None


def _calls(p: Product, device: torch.device) -> list[Any]:
    dtype = getattr(torch, p.dtype)
    (_, right), rows = p.turned, lacking(p.rows, dtype) if p.turned[0] else 0
    columns, summed = lacking(p.columns, dtype), lacking(p.summed, dtype)

    def lying(high: int, wide: int, turned: bool) -> torch.Tensor:
        sizes = (wide, high) if turned else (high, wide)
        return torch.full((p.batch, *sizes), 0.5, dtype=dtype, device=device)

    a, b = lying(p.rows, p.summed, p.turned[0]), lying(p.summed, p.columns, right)
    bias = torch.zeros(p.columns, dtype=dtype, device=device) if p.bias else None

    def multiplied(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        a, b = (t.mT if turned else t for t, turned in zip((a, b), p.turned, strict=True))
        if p.batch > 1:
            return torch.bmm(a, b)
        return torch.mm(a[0], b[0]) if bias is None else torch.addmm(bias, a[0], b[0])

    def padded() -> torch.Tensor:
        more = [(summed, rows) if p.turned[0] else (rows, summed), (columns, summed) if right else (summed, columns)]
        wider = [
            F.pad(t, [0, wide, 0, high]) if high or wide else t for t, (high, wide) in zip((a, b), more, strict=True)
        ]
        longer = F.pad(bias, [0, columns]) if bias is not None and columns else bias
        result = multiplied(wider[0], wider[1], longer)
        return result[..., : p.rows, : p.columns].contiguous() if rows or columns else result

    return [lambda: multiplied(a, b, bias), padded]
