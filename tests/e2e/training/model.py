"""A small language model."""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    words: int = 65
    length: int = 64
    width: int = 48
    heads: int = 4
    layers: int = 2
    dropout: float = 0.0


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.inputs = nn.Linear(config.width, 3 * config.width)
        self.output = nn.Linear(config.width, config.width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.inputs(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.first, self.second = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.up, self.down = nn.Linear(config.width, 4 * config.width), nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.words, config.width)
        self.places = nn.Embedding(config.length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = nn.Linear(config.width, config.words)

    def forward(self, tokens, targets=None):
        x = self.words(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if targets is None:
            return logits[:, [-1]], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
