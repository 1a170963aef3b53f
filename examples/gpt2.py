"""A small GPT-2 of 12 layers: one graph, whose layers share their kernels."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fuselens

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT = 12, 4, 256, 8192, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            t.view(batch, length, HEADS, -1).transpose(1, 2) for t in self.qkv(self.before(x)).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(x)
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh")) * 1.0


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        x = self.tokens(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return F.linear(self.last(x[:, -1]), self.tokens.weight)


model = fuselens.compile(GPT2().eval(), example_inputs=(torch.zeros(1, 64, dtype=torch.int64),))


if __name__ == "__main__":
    with torch.no_grad():
        print(model(torch.zeros(1, 64, dtype=torch.int64)).argmax(-1))
