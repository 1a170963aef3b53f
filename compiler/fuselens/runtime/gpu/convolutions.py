"""How long a convolution takes on this card with contiguous and with channels-last operands: measured once a shape, and
remembered on disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...config import Config
from ...torch_private.result_layouts import CHANNELS_LAST
from .turns import remembered_in_turns


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, or with ``mask`` the gradients that it asks for. Sizes are those of the example."""

    dtype: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    bias: bool
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    mask: tuple[bool, ...] = ()


def seconds(convolution: Convolution, config: Config, device: torch.device) -> tuple[float, float] | None:
    """Of one call: with contiguous, and with channels-last operands and result (a gradient's weight is contiguous). None where
    it cannot be measured now."""
    question = {"formats": dataclasses.asdict(convolution), "cudnn": [torch.backends.cudnn.version(), *_settings()]}
    found = remembered_in_turns(
        question, lambda: [_call(convolution, device, last) for last in (False, True)], config, device
    )
    return (found[0], found[1]) if found else None


def _settings() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32


def _call(c: Convolution, device: torch.device, last: bool) -> Callable[[], Any]:
    dtype, layout = getattr(torch, c.dtype), CHANNELS_LAST[len(c.input)] if last else torch.contiguous_format
    x = torch.full(c.input, 0.5, dtype=dtype, device=device).contiguous(memory_format=layout)
    w = torch.full(c.weight, 0.5, dtype=dtype, device=device)
    how = (c.stride, c.padding, c.dilation, c.transposed, c.output_padding, c.groups)
    if not c.mask:
        w = w.contiguous(memory_format=layout)
        b = torch.zeros(c.output[1], dtype=dtype, device=device) if c.bias else None
        return lambda: torch.convolution(x, w, b, *how).contiguous(memory_format=layout)
    gradient = torch.full(c.output, 0.5, dtype=dtype, device=device).contiguous(memory_format=layout)
    sizes = [c.output[1]] if c.bias else None

    def backward() -> Any:
        found = torch.ops.aten.convolution_backward.default(gradient, x, w, sizes, *how, c.mask)
        return found[0] is not None and found[0].contiguous(memory_format=layout)

    return backward
