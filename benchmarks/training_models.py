"""Models whose training is measured, and trained in tests: each maker gives a module that returns its loss, and inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Any, ...]]


class MLP(nn.Module):
    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(width // 2, width), nn.LayerNorm(width)
        self.second, self.drop, self.head = nn.Linear(width, width), nn.Dropout(dropout), nn.Linear(width, classes)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        hidden = F.gelu(self.norm(self.first(x)))
        return F.cross_entropy(self.head(self.drop(F.gelu(self.second(hidden)))), target)


def mlp(width: int = 1024, classes: int = 64, batch: int = 256, dropout: float = 0.1) -> Made:
    return MLP(width, classes, dropout), (torch.randn(batch, width // 2), torch.randint(0, classes, (batch,)))


class Residual(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)])
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))) + self.short(x))


class ResNet(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            Residual(width, width, 1), Residual(width, 2 * width, 2), Residual(2 * width, 4 * width, 2)
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3))), target)


def resnet(width: int = 16, side: int = 32, batch: int = 32) -> Made:
    return ResNet(width, 10), (torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,)))


class LanguageModel(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, labels=tokens).loss


def gpt2(layers: int = 4, width: int = 256, length: int = 128, batch: int = 4, vocabulary: int = 2000,
         dropout: float = 0.0) -> Made:  # fmt: skip
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=max(1, width // 64), vocab_size=vocabulary, n_positions=length,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return LanguageModel(GPT2LMHeadModel(config).train()), (torch.randint(0, vocabulary, (batch, length)),)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.both, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, causal: bool = False) -> Tensor:
        def split(t: Tensor) -> Tensor:
            return t.view(t.shape[0], t.shape[1], self.heads, -1).transpose(1, 2)

        keys, values = self.both(memory).chunk(2, -1)
        mixed = F.scaled_dot_product_attention(split(self.query(x)), split(keys), split(values), is_causal=causal)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    """Of the encoder, or with ``crossed`` of the decoder."""

    def __init__(self, width: int, heads: int, crossed: bool) -> None:
        super().__init__()
        self.own, self.crossed = Attention(width, heads), Attention(width, heads) if crossed else None
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3 if crossed else 2)])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.own(normed, normed, causal=memory is not None)
        if self.crossed is not None and memory is not None:
            x = x + self.crossed(self.norms[2](x), memory)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Seq2Seq(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.encoder = nn.ModuleList([Layer(width, heads, False) for _ in range(layers)])
        self.decoder = nn.ModuleList([Layer(width, heads, True) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embed(target[:, :-1])
        for layer in self.decoder:
            x = layer(x, memory)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target[:, 1:].flatten())


def seq2seq(width: int = 256, layers: int = 2, length: int = 64, batch: int = 8, vocabulary: int = 1000) -> Made:
    tokens = torch.randint(0, vocabulary, (batch, length))
    return Seq2Seq(width, layers, vocabulary, length), (tokens, tokens.flip(1))


MAKERS: dict[str, Callable[[], Made]] = {
    "mlp": mlp,
    "resnet": resnet,
    "gpt2": gpt2,
    "gpt2_dropout": lambda: gpt2(dropout=0.1),
    "gpt2_wide": lambda: gpt2(layers=6, width=512, length=256, vocabulary=8000),
    "seq2seq": seq2seq,
}
