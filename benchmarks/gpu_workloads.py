"""What is measured on a GPU: workloads, and the systems that run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Call = Callable[[], Any]
Compile = Callable[[Any], Any]


@dataclass(frozen=True)
class Workload:
    """``make(wrap)`` gives a call. ``bytes`` moved at least, ``flops`` done, per call; ``held`` by a process, about."""

    make: Callable[[Compile], Call]
    bytes: int = 0
    flops: int = 0
    held: int = 5 << 30


def tensor(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(len(shape))
    return torch.randn(shape, generator=generator, device="cuda", dtype=dtype).requires_grad_(grad)


def function(
    fn: Callable[..., Any], *inputs: Callable[[], Tensor], training: bool = False
) -> Callable[[Compile], Call]:
    def make(wrap: Compile) -> Call:
        compiled, args = wrap(fn), [given() for given in inputs]
        if not training:
            return lambda: compiled(*args)
        leaves = [a for a in args if a.requires_grad]
        return lambda: torch.autograd.grad(compiled(*args), leaves)

    return make


def fused_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x + residual, (x.shape[-1],), weight, bias), approximate="tanh")


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


class Tiny(nn.Module):
    """Ten small layers: launches are all that they cost."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(128, 128), nn.GELU(), nn.LayerNorm(128)) for _ in range(10))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def tiny(wrap: Compile) -> Call:
    model, x = wrap(Tiny().cuda()), tensor(32, 128)

    def call() -> Any:
        with torch.no_grad():
            return model(x)

    return call


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(width, 2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50304, length: int = 1024):
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.last(x), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def gpt2_training(wrap: Compile) -> Call:
    torch.manual_seed(0)
    model = GPT2().cuda().bfloat16()
    compiled = wrap(model)
    ids = torch.randint(0, 50257, (16, 512), device="cuda")

    def call() -> Any:
        model.zero_grad(set_to_none=True)
        loss = compiled(ids, ids)
        loss.backward()
        return loss

    return call


class Layer(nn.Module):
    """A layer of the shapes of Llama 3 8B, for one token, with its cache of keys and values."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.first, self.second = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.q, self.k = nn.Linear(width, width, bias=False), nn.Linear(width, groups * self.size, bias=False)
        self.v, self.o = nn.Linear(width, groups * self.size, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, groups, length, self.size))
        self.register_buffer("values", torch.zeros(1, groups, length, self.size))

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        h = rms_norm(x, self.first)
        q = self.q(h).view(1, 1, self.heads, self.size).transpose(1, 2)
        k = self.k(h).view(1, 1, self.groups, self.size).transpose(1, 2)
        v = self.v(h).view(1, 1, self.groups, self.size).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(x.shape))
        h = rms_norm(x, self.second)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Decoder(nn.Module):
    def __init__(
        self, layers: int = 32, width: int = 4096, heads: int = 32, groups: int = 8, hidden: int = 14336,
        words: int = 128256, length: int = 512,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, hidden, length) for _ in range(layers))
        self.last, self.head = nn.Parameter(torch.ones(width)), nn.Linear(width, words, bias=False)
        angles = torch.outer(torch.arange(length), 500000.0 ** -(torch.arange(0, width // heads, 2) / (width // heads)))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())
        self.register_buffer("row", torch.arange(length))

    def forward(self, word: Tensor, at: Tensor) -> Tensor:
        x, mask = self.tokens(word), (self.row <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, at, self.cos[at], self.sin[at], mask)
        return self.head(rms_norm(x, self.last)).argmax(-1)


def decoder() -> Decoder:
    """Its weights take 16 GB."""
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        try:
            return Decoder().eval()
        finally:
            torch.set_default_dtype(torch.float32)


def decode(wrap: Compile) -> Call:
    compiled = wrap(decoder())
    word, at = torch.zeros(1, 1, dtype=torch.int64, device="cuda"), torch.full((1,), 200, device="cuda")

    def call() -> Any:
        with torch.no_grad():
            return compiled(word, at)

    return call


def decoder_bytes() -> int:
    """The weights that a token reads: all but the embedding's."""
    width, groups, hidden, words = 4096, 1024, 14336, 128256
    return 2 * (32 * (2 * width * width + 2 * groups * width + 3 * width * hidden) + words * width)


def convolutions(images: int, form: torch.memory_format) -> Callable[[Compile], Call]:
    """The convolutions of ResNet-50 that are not of single points, with their biases and activations."""
    layers = (
        (64, 56, 64, 1),
        (128, 56, 128, 2),
        (128, 28, 128, 1),
        (256, 28, 256, 2),
        (256, 14, 256, 1),
        (512, 7, 512, 1),
    )

    def fn(xs: list[Tensor], ws: list[Tensor], bs: list[Tensor]) -> list[Tensor]:
        taken = zip(xs, ws, bs, layers, strict=True)
        return [F.relu(F.conv2d(x, w, b, stride, 1)) for x, w, b, (*_, stride) in taken]

    def make(wrap: Compile) -> Call:
        compiled, half = wrap(fn), torch.float16
        xs = [tensor(images, c, n, n, dtype=half).contiguous(memory_format=form) for c, n, _, _ in layers]
        ws = [tensor(o, c, 3, 3, dtype=half).contiguous(memory_format=form) / 30 for c, _, o, _ in layers]
        bs = [tensor(o, dtype=half) for _, _, o, _ in layers]
        return lambda: compiled(xs, ws, bs)

    return make


class ConvNeXt(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.each = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.each(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


def convnext(wrap: Compile) -> Call:
    model = ConvNeXt(192).cuda().half().to(memory_format=torch.channels_last)
    compiled, x = (
        wrap(model),
        tensor(32, 192, 28, 28, dtype=torch.float16).contiguous(memory_format=torch.channels_last),
    )

    def call() -> Any:
        with torch.no_grad():
            return compiled(x)

    return call


def soft_capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = 50 * torch.tanh(q @ k.mT / (8 * 50))
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v


MI, WIDE, HALF = 1 << 20, (16384, 4096), torch.bfloat16
WORKLOADS: dict[str, Workload] = {
    "pointwise": Workload(
        function(lambda a, b: torch.relu(a + b) * a - b, *(lambda: tensor(64 * MI),) * 2), 3 * 4 * 64 * MI
    ),
    "softmax_4096": Workload(function(lambda x: x.softmax(-1), lambda: tensor(*WIDE)), 2 * 4 * 64 * MI),
    "log_softmax_131072": Workload(
        function(lambda x: x.log_softmax(-1), lambda: tensor(2048, 131072)), 2 * 4 * 256 * MI
    ),
    "layer_norm_gelu": Workload(
        function(
            fused_norm, *(lambda: tensor(*WIDE, dtype=HALF),) * 2, *(lambda: tensor(4096, dtype=HALF),) * 2
        ), 3 * 2 * 64 * MI,
    ),
    "rms_norm": Workload(
        function(rms_norm, lambda: tensor(*WIDE, dtype=HALF), lambda: tensor(4096, dtype=HALF)), 2 * 2 * 64 * MI
    ),
    "cross_entropy_training": Workload(
        function(
            lambda x, y: F.cross_entropy(x, y), lambda: tensor(8192, 50257, grad=True),
            lambda: torch.arange(8192, device="cuda"), training=True,
        ), 3 * 4 * 8192 * 50257,
    ),
    "column_sum": Workload(function(lambda x: x.square().sum(0), lambda: tensor(*WIDE)), 4 * 64 * MI),
    "transpose_add_relu": Workload(
        function(lambda a, b: torch.relu(a.t() + b), *(lambda: tensor(8192, 8192),) * 2), 3 * 4 * 64 * MI
    ),
    "swiglu": Workload(
        function(
            swiglu, lambda: tensor(4096, 4096, dtype=HALF), *(lambda: tensor(11008, 4096, dtype=HALF),) * 2,
            lambda: tensor(4096, 11008, dtype=HALF),
        ), flops=2 * 3 * 4096 * 4096 * 11008,
    ),
    "ten_tiny_layers": Workload(tiny),
    "gpt2_training": Workload(gpt2_training),
    "decode_8b": Workload(decode, decoder_bytes(), held=19 << 30),
}  # fmt: skip

MORE: dict[str, Workload] = {
    "log_softmax_32768": Workload(function(lambda x: x.log_softmax(-1), lambda: tensor(8192, 32768)), 2 * 4 * 256 * MI),
    "layer_norm_65536": Workload(
        function(lambda x: F.layer_norm(x, (65536,)) + x, lambda: tensor(4096, 65536)), 2 * 4 * 256 * MI
    ),
    "log_softmax_few_rows": Workload(function(lambda x: x.log_softmax(-1), lambda: tensor(64, MI)), 2 * 4 * 64 * MI),
    "resnet_convolutions": Workload(convolutions(32, torch.channels_last)),
    "resnet_in_order": Workload(convolutions(32, torch.contiguous_format)),
    "convnext_block": Workload(convnext),
    "soft_capped": Workload(
        function(soft_capped, *(lambda: tensor(8, 16, 1024, 64, dtype=HALF),) * 3), flops=4 * 8 * 16 * 1024 * 1024 * 64
    ),
    "written_out_decode": Workload(
        function(
            lambda q, k, v: ((q @ k.mT) * 0.088).float().softmax(-1).to(q.dtype) @ v,
            lambda: tensor(1, 8, 4, 128, dtype=HALF), *(lambda: tensor(1, 8, 8192, 128, dtype=HALF),) * 2,
        ), 2 * 2 * 8 * 8192 * 128,
    ),
}  # fmt: skip

SYSTEMS: dict[str, Callable[[], Compile]] = {
    "eager": lambda: lambda fn: fn,
    "peer": lambda: torch.compile,
    "peer_graphs": lambda: lambda fn: torch.compile(fn, mode="reduce-overhead"),
    "peer_tuned": lambda: lambda fn: torch.compile(fn, mode="max-autotune"),
    "own": lambda: _own("default"),
    "own_graphs": lambda: _own("reduce-overhead"),
    "own_tuned": lambda: _own("max-autotune"),
}


def _own(mode: str) -> Compile:
    import fuselens

    return lambda fn: fuselens.compile(fn, mode=mode)
