"""Files that are written for measurements: a large one, and a whole model."""

from __future__ import annotations

_HEAD = """\
import torch
import fuselens
from torch import nn

SCALE = 1.5


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * SCALE


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x))
"""
_FUNCTION = '''

@fuselens.compile
def stage_{k}(x: torch.Tensor, y: torch.Tensor, n: int = {n}) -> torch.Tensor:
    """What stage {k} does with its two tensors."""
    a = helper(x) + y * {n}
    b = torch.softmax(a, -1)
    for i in range(3):
        b = b * 2 + i
        c = (b - b.mean(-1, keepdim=True)) / (b.std(-1, keepdim=True) + 1e-5)
        b = c.relu() + y.sigmoid()
    if n > 3:
        d = a @ b.transpose(0, 1)
    else:
        d = a * b
    if {condition}:
        d = d + 1
    e = torch.cat([d, a], 0)
    f = e.reshape(-1)
    g = [t * 2 for t in (a, b, d)]
    h = sum(v.sum() for v in g)
    {statement}
    # some words about the line that follows
    return f * h + torch.tanh(f)


def table_{k}(values, scale=1.0):
    """Plain Python beside it."""
    result = {{}}
    for name, value in values.items():
        result[name] = value * scale
        if value is None:
            continue
    return result
'''
GPT2 = """\
import fuselens
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers: int = 12, width: int = 256, heads: int = 4, words: int = 1000, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear((self.last(x) * 1.0), self.tokens.weight)


model = fuselens.compile(GPT2(), example_inputs=lambda: (torch.arange(128).view(2, 64),))
"""


def large(functions: int = 300) -> str:
    """33 lines for each of that many annotated functions, half of which break."""
    return _HEAD + "".join(
        _FUNCTION.format(
            k=k,
            n=k % 7 + 1,
            condition="d.sum() > 0" if k % 2 else "n > 4",
            statement="print(h)" if k % 3 == 0 else "h = h * 2",
        )
        for k in range(functions)
    )
