"""The suite of the CPU backend: memory-bound operations and small models, each resident in cache and, ``_big``, not.

``bytes`` counts what must move between memory and the processor at least: inputs read once, outputs written once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[Callable[..., Any], tuple[Any, ...]]
Make = Callable[[str], Made]


@dataclass(frozen=True)
class Workload:
    """``make(device)`` gives (function or module, inputs). ``training`` runs a backward from the summed result.
    ``bytes`` (per call, inputs read once and outputs written once) gives a bandwidth where it is memory-bound."""

    name: str
    make: Make
    training: bool = False
    bytes: int | None = None


def randn(*shape: int, device: str = "cpu", grad: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(repr(shape).encode()))
    return torch.randn(*shape, generator=generator).to(device).requires_grad_(grad)


def function(fn: Callable[..., Any], *shapes: tuple[int, ...], extra: tuple[Any, ...] = (), grad: bool = False) -> Make:
    """A workload of ``fn`` on normal numbers of ``shapes``, followed by ``extra``."""
    return lambda device: (fn, (*(randn(*s, device=device, grad=grad) for s in shapes), *extra))


def chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(torch.relu(x * y + 1) + x.abs()).clamp(max=3.0) - 0.5 * y


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_erf(x: Tensor) -> Tensor:
    return F.gelu(x)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    return torch.log_softmax(x, -1)


def layer_norm_residual(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x + residual, (x.shape[-1],), weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target)


def sum_0(x: Tensor) -> Tensor:
    return x.sum(0)


def sum_1(x: Tensor) -> Tensor:
    return x.sum(1)


def sum_all(x: Tensor) -> Tensor:
    return x.sum()


def transpose_add(x: Tensor, y: Tensor) -> Tensor:
    return x.t() + y


def argmax(x: Tensor) -> Tensor:
    return x.argmax(-1)


def argmax_0(x: Tensor) -> Tensor:
    return x.argmax(0)


def cumsum(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def embedding(tokens: Tensor, table: Tensor) -> Tensor:
    return F.embedding(tokens, table)


def attention_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias, -1) @ v


class ConvBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """One layer of GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.mlp = nn.Linear(width, 3 * width), nn.Linear(width, width), FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


def _module(make: Callable[[], nn.Module], *shape: int, training: bool = False) -> Make:
    def made(device: str) -> Made:
        torch.manual_seed(0)
        module = make().to(device)
        if not training:
            module.requires_grad_(False).eval()
        return module, (randn(*shape, device=device),)

    return made


def _classes(rows: int, classes: int) -> Make:
    return lambda device: (
        cross_entropy,
        (randn(rows, classes, device=device), torch.arange(rows, device=device) * 7919 % classes),
    )


def _embedding(rows: int, width: int, *tokens: int) -> Make:
    def made(device: str) -> Made:
        generator = torch.Generator().manual_seed(0)
        return embedding, (
            torch.randint(0, rows, tokens, generator=generator).to(device),
            randn(rows, width, device=device),
        )

    return made


def _adam(*shapes: tuple[int, ...]) -> Make:
    """The step of an Adam optimiser whose state exists."""

    def made(device: str) -> Made:
        parameters = [nn.Parameter(randn(*s, device=device)) for s in shapes]
        for p in parameters:
            p.grad = randn(*p.shape, device=device) * 1e-3
        optimizer = torch.optim.Adam(parameters, lr=1e-4)
        optimizer.step()
        return lambda: optimizer.step(), ()

    return made


def _suite() -> Iterator[Workload]:
    def both(
        name: str, small: Make, big: Make, traffic: tuple[int, int] | None = None, training: bool = False
    ) -> Iterator[Workload]:
        """``traffic`` counts 4-byte elements moved by each size."""
        few, many = (4 * t for t in traffic) if traffic else (None, None)
        yield Workload(f"{name}_cache", small, training, few)
        yield Workload(f"{name}_big", big, training, many)

    rows, width, big_rows = 256, 1024, 16384
    small, big = (rows, width), (big_rows, width)

    def pair(
        fn: Callable[..., Any], name: str = "", full: int = 1, writes: int = 1, vectors: int = 0
    ) -> Iterator[Workload]:
        """``fn`` of ``full`` matrices and ``vectors`` rows, writing ``writes`` matrices."""
        moved = full + writes
        more = [(width,)] * vectors
        yield from both(
            name or fn.__name__, function(fn, *[small] * full, *more), function(fn, *[big] * full, *more),
            (moved * rows * width, moved * big_rows * width),
        )  # fmt: skip

    yield from pair(chain, full=2)
    yield from pair(gelu_tanh)
    yield from pair(gelu_erf)
    yield from pair(softmax)
    yield from pair(log_softmax)
    yield from pair(layer_norm_residual, full=2, vectors=2)
    yield from pair(rms_norm, vectors=1)
    yield from both("cross_entropy", _classes(64, 4096), _classes(1024, 32768), (2**18, 2**25))
    yield from pair(sum_0, writes=0)
    yield from pair(sum_1, writes=0)
    yield from pair(sum_all, writes=0)
    yield from both(
        "sum_middle", function(sum_1, (16, 64, 256)), function(sum_1, (32, 512, 1024)), (16 * 64 * 256, 2**24)
    )
    yield from both(
        "transpose_add", function(transpose_add, (512, 512), (512, 512)),
        function(transpose_add, (4096, 4096), (4096, 4096)), (3 * 512**2, 3 * 4096**2),
    )  # fmt: skip
    yield from pair(argmax, writes=0)
    yield from pair(argmax_0, writes=0)
    yield from pair(cumsum)
    yield from both(
        "embedding", _embedding(1000, 256, 4, 128), _embedding(50257, 768, 24, 1024), (2 * 512 * 256, 2 * 24576 * 768)
    )
    yield from both(
        "conv_bn_relu", _module(lambda: ConvBlock(32), 1, 32, 32, 32), _module(lambda: ConvBlock(64), 16, 64, 112, 112)
    )
    yield from both("mlp", _module(lambda: FeedForward(256), 64, 256), _module(lambda: FeedForward(1024), 2048, 1024))
    heads = (2, 4, 128, 64), (4, 12, 512, 64)
    yield from both(
        "attention_bias", function(attention_bias, *[heads[0]] * 3, (1, 4, 128, 128)),
        function(attention_bias, *[heads[1]] * 3, (1, 12, 512, 512)),
    )  # fmt: skip
    blocks = (lambda: Block(256, 4)), (lambda: Block(768, 12))
    yield from both("gpt2_block", _module(blocks[0], 2, 64, 256), _module(blocks[1], 2, 512, 768))
    yield from both(
        "gpt2_block_train", _module(blocks[0], 2, 64, 256, training=True),
        _module(blocks[1], 2, 512, 768, training=True), training=True,
    )  # fmt: skip
    yield from both(
        "adam", _adam((256, 256), (256,), (256, 64)), _adam((2048, 2048), (2048,), (4096, 1024)),
        (7 * 82176, 7 * 8390656),
    )  # fmt: skip


SUITE: tuple[Workload, ...] = tuple(_suite())
