"""Models whose memory is predicted and measured: each maker gives a module that returns its loss, and inputs. ``scale`` multiplies
the batch: 1 is for a processor."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .training_models import LanguageModel, Made, Seq2Seq, mlp, resnet


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class GPT(nn.Module):
    def __init__(self, width: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words[:, :-1]) + self.places(torch.arange(words.shape[1] - 1, device=words.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), words[:, 1:].flatten())


class ViT(nn.Module):
    def __init__(self, width: int, layers: int, side: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.ModuleList(Block(width, width // 64, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x[:, 0])), labels)


def _double(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU(),
        nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width]
        self.downs = nn.ModuleList([_double(3, w[0]), _double(w[0], w[1])])
        self.middle = _double(w[1], w[2])
        self.ups = nn.ModuleList([nn.ConvTranspose2d(w[2], w[1], 2, 2), nn.ConvTranspose2d(w[1], w[0], 2, 2)])
        self.joins = nn.ModuleList([_double(w[2], w[1]), _double(w[1], w[0])])
        self.out = nn.Conv2d(w[0], 3, 1)

    def forward(self, noisy: Tensor, noise: Tensor) -> Tensor:
        x, kept = noisy, list[Tensor]()
        for down in self.downs:
            x = down(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return F.mse_loss(self.out(x), noise)


class Recurrent(nn.Module):
    def __init__(self, vocabulary: int, width: int, hidden: int) -> None:
        super().__init__()
        self.tokens, self.lstm = nn.Embedding(vocabulary, width), nn.LSTM(width, hidden, 2, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.lstm(self.tokens(words[:, :-1]))
        return F.cross_entropy(self.head(states).flatten(0, 1), words[:, 1:].flatten())


class Autoencoder(nn.Module):
    """Each of its layers is computed again in the backward."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        pairs = [*itertools.pairwise(sizes), *itertools.pairwise(sizes[::-1])]
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, b), nn.LayerNorm(b)) for a, b in pairs
        )

    def forward(self, x: Tensor) -> Tensor:
        found = x
        for layer in self.layers:
            found = checkpoint(layer, found, use_reentrant=False)
        return F.mse_loss(found, x)


def _gpt(scale: int) -> Made:
    return GPT(512, 6, 8192, 256), (torch.randint(0, 8192, (4 * scale, 257)),)


def _vit(scale: int) -> Made:
    return ViT(384, 6, 128, 16, 100), (torch.randn(16 * scale, 3, 128, 128), torch.randint(0, 100, (16 * scale,)))


def _unet(scale: int) -> Made:
    shape = (4 * scale, 3, 128, 128)
    return UNet(32), (torch.randn(shape), torch.randn(shape))


def _lstm(scale: int) -> Made:
    return Recurrent(4096, 256, 512), (torch.randint(0, 4096, (16 * scale, 65)),)


def _bert(scale: int) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=8192, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048,
        max_position_embeddings=256,
    )  # fmt: skip
    return LanguageModel(BertForMaskedLM(config).train()), (torch.randint(0, 8192, (4 * scale, 256)),)


def _seq2seq(scale: int) -> Made:
    tokens = torch.randint(0, 4000, (8 * scale, 128))
    return Seq2Seq(512, 3, 4000, 128), (tokens, tokens.flip(1))


def _autoencoder(scale: int) -> Made:
    return Autoencoder((1024, 2048, 1024)), (torch.randn(4096 * scale, 1024),)


MAKERS: dict[str, Callable[[int], Made]] = {
    "mlp": lambda scale: mlp(width=2048, batch=4096 * scale),
    "resnet": lambda scale: resnet(width=64, side=64, batch=16 * scale),
    "gpt": _gpt,
    "vit": _vit,
    "unet": _unet,
    "lstm": _lstm,
    "seq2seq": _seq2seq,
    "autoencoder": _autoencoder,
    "bert": _bert,
}
