"""Chains of operators, made by chance from a seed: a heavy operator or a norm, then one to four more.

A name says all of a chain: ``conv2d 64→128 k3 s1 · batch_norm · relu · max_pool k2 | 16×64×57×57 bf16``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DTYPES = ("fp32", "tf32", "bf16", "fp16")
ELEMENTS = (1 << 20, 1 << 25)  # of the input, about
CHANNELS = (3, 8, 16, 24, 30, 32, 48, 64, 100, 128)
WIDTHS = (64, 127, 250, 256, 512, 768, 1000, 1024, 2048, 4093)


class Step(nn.Module):
    """A function of one tensor as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Bias(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.rand(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "softplus": F.softplus,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "scale": lambda x: x * 0.7 + 0.1,
    "swish": lambda x: torch.sigmoid(x) * x,
    "residual": lambda x: x + x.abs().sqrt(),
}


@dataclass(frozen=True)
class Chain:
    """``make()`` gives the module, on the CPU in float32; ``shape`` is that of its input."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dtype: str


def chains(seed: int, count: int) -> Iterator[Chain]:
    for number in range(count):
        yield chain(random.Random(f"{seed} {number}"))


def chain(r: random.Random) -> Chain:
    dtype = r.choice(DTYPES)
    begin = r.choice((_convolution, _convolution, _transposed, _linear, _linear, _norm))
    names, makers, shape = begin(r)
    given = shape
    shape = _after(makers, shape)
    for _ in range(r.randint(1, 4)):
        found = _next(r, shape)
        if found is None:
            break
        name, maker = found
        names.append(name)
        makers.append(maker)
        shape = _after([maker], shape)
    text = f"{' · '.join(names)} | {'×'.join(map(str, given))} {dtype}"
    return Chain(text, lambda: nn.Sequential(*(make() for make in makers)), given, dtype)


Maker = Callable[[], nn.Module]
Begun = tuple[list[str], list[Maker], tuple[int, ...]]


def _after(makers: list[Maker], shape: tuple[int, ...]) -> tuple[int, ...]:
    with torch.device("meta"):
        return tuple(nn.Sequential(*(make() for make in makers))(torch.empty(shape)).shape)


def _image(r: random.Random, rank: int, channels: int, most: int = ELEMENTS[1]) -> tuple[int, ...]:
    """Batch, channels and ``rank`` sizes; about half of them no multiples of 8."""
    wanted = math.exp(r.uniform(math.log(ELEMENTS[0]), math.log(most)))
    batch = r.choice((1, 8, 16, 32, 64, 128))
    size = max(8, round((wanted / batch / channels) ** (1 / rank)))
    sizes = [max(6, size + r.choice((0, -1, 1, 3))) if r.random() < 0.5 else max(8, size // 8 * 8) for _ in range(rank)]
    return (batch, channels, *sizes)


def _convolution(r: random.Random) -> Begun:
    rank = r.choice((1, 2, 2, 2, 3))
    layer = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    wide, out = r.choice(CHANNELS), r.choice(CHANNELS[1:])
    kernel, stride, groups = r.choice((1, 3, 3, 3, 5, 7) if rank < 3 else (1, 3, 3)), r.choice((1, 1, 1, 2)), 1
    if wide > 8 and r.random() < 0.2:
        out = groups = wide
    bias = r.random() < 0.7
    options: dict[str, Any] = {"stride": stride, "padding": r.choice((0, kernel // 2)), "groups": groups, "bias": bias}
    name = f"conv{rank}d {wide}→{out} k{kernel} s{stride}" + (f" g{groups}" if groups > 1 else "")
    most = ELEMENTS[1] // max(1, out // wide)
    return [name], [lambda: layer(wide, out, kernel, **options)], _image(r, rank, wide, most)


def _transposed(r: random.Random) -> Begun:
    rank = r.choice((1, 2, 2, 3))
    layer = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1]
    wide, out = r.choice(CHANNELS[1:]), r.choice(CHANNELS[1:])
    kernel, stride = r.choice((2, 3, 4)), r.choice((1, 2))
    name = f"conv_transpose{rank}d {wide}→{out} k{kernel} s{stride}"
    most = ELEMENTS[1] // max(1, stride**rank * out // wide)
    return [name], [lambda: layer(wide, out, kernel, stride=stride)], _image(r, rank, wide, max(most, ELEMENTS[0]))


def _linear(r: random.Random) -> Begun:
    wide, out = r.choice(WIDTHS), r.choice(WIDTHS)
    rows = r.choice((1, 64, 128, 1000, 4096, 16384))
    shape = (rows, wide) if r.random() < 0.6 else (r.choice((4, 8)), max(1, rows // 8), wide)
    bias = r.random() < 0.7
    return [f"linear {wide}→{out}"], [lambda: nn.Linear(wide, out, bias=bias)], shape


def _norm(r: random.Random) -> Begun:
    if r.random() < 0.4:
        width = r.choice(WIDTHS)
        layer: Maker = r.choice((lambda: nn.LayerNorm(width), lambda: nn.RMSNorm(width)))
        return [type(layer()).__name__.lower()], [layer], (r.choice((128, 4096, 8192)), width)
    channels = r.choice([c for c in CHANNELS if c % 8 == 0])
    rank = r.choice((1, 2, 2, 3))
    name, make = _image_norm(r, channels, rank)
    return [name], [make], _image(r, rank, channels)


def _image_norm(r: random.Random, channels: int, rank: int) -> tuple[str, Maker]:
    batch = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1]
    instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[rank - 1]
    groups = next(n for n in (8, 4, 2, 1) if channels % n == 0)
    return r.choice((
        ("batch_norm", lambda: batch(channels)),
        ("instance_norm", lambda: instance(channels)),
        (f"group_norm {groups}", lambda: nn.GroupNorm(groups, channels)),
    ))  # fmt: skip


def _next(r: random.Random, shape: tuple[int, ...]) -> tuple[str, Maker] | None:
    """What may follow a value of ``shape``; None where nothing should."""
    rank = len(shape) - 2
    if len(shape) < 2 or math.prod(shape) < 1 << 12:
        return None
    kinds = ["pointwise"] * 5 + ["reduction", "bias", "softmax"]
    if rank >= 1 and len(shape) > 2:
        kinds += ["pooling", "norm"] if min(shape[2:]) >= 4 and rank <= 3 and shape[1] > 1 else []
    kind = r.choice(kinds)
    if kind == "pointwise":
        name = r.choice(list(POINTWISE))
        return name, lambda: Step(POINTWISE[name])
    if kind == "bias":
        weight = (shape[1], *(1 for _ in shape[2:])) if len(shape) > 2 else (shape[-1],)
        return "bias", lambda: Bias(weight)
    if kind == "softmax":
        dim = r.randrange(1, len(shape))
        return f"softmax {dim}", lambda: nn.Softmax(dim)
    if kind == "reduction":
        return _reduction(r, shape)
    if kind == "norm":
        return _image_norm(r, shape[1], rank)
    pool = r.choice(("max", "avg", "adaptive_avg"))
    if pool == "adaptive_avg":
        layer = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)[rank - 1]
        return "adaptive_avg_pool 1", lambda: layer(1)
    kernel = r.choice((2, 3))
    pools = {
        "max": (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), "avg": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
    }  # fmt: skip
    return f"{pool}_pool k{kernel}", lambda: pools[pool][rank - 1](kernel)


def _reduction(r: random.Random, shape: tuple[int, ...]) -> tuple[str, Maker]:
    dims = sorted(r.sample(range(1, len(shape)), r.randint(1, min(2, len(shape) - 1))))
    name = r.choice(("mean", "sum", "max", "logsumexp"))
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": lambda x: x.mean(dims, keepdim=True),
        "sum": lambda x: x.sum(dims, keepdim=True),
        "max": lambda x: x.amax(dims, keepdim=True),
        "logsumexp": lambda x: torch.logsumexp(x, dims, keepdim=True),
    }
    return f"{name} {','.join(map(str, dims))}", lambda: Step(functions[name])
