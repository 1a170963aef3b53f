"""Samplers, decoders and language models' odds and ends."""

import random

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int64
from torch import Tensor, nn

import fuselens

DEBUG = False
EOS = 2


@fuselens.compile
def greedy(logits: Float32[Tensor, "n 11"]):
    token = logits[-1].argmax().item()
    if token == EOS:
        return torch.tensor(EOS)
    return torch.tensor(token)


@fuselens.compile
def temperature(logits: Float32[Tensor, "n 11"], t: Float32[Tensor, ""]):
    if t > 0:
        logits = logits / t
    return logits.softmax(-1)


@fuselens.compile
def repetition(logits: Float32[Tensor, "11"], penalty: float = 1.2):
    for i in range(3):
        if logits[i] < 0:
            logits[i] *= penalty
        else:
            logits[i] /= penalty
    return logits


@fuselens.compile
def top_p(logits: Float32[Tensor, "11"], p: float = 0.9):
    probabilities, index = logits.softmax(-1).sort(descending=True)
    cut = int((probabilities.cumsum(-1) < p).sum())
    mask = torch.arange(11) > cut
    return probabilities.masked_fill(mask, 0.0)


@fuselens.compile
def all_done(tokens: Int64[Tensor, "n"], x: Float32[Tensor, "n"]):
    if (tokens == EOS).all():
        return x * 0
    return x + 1


@fuselens.compile
def dropped(x: Float32[Tensor, "n 8"], training: bool = True):
    if training and random.random() < 0.5:
        return x
    return x * 0.5


@fuselens.compile
def debugged(x: Float32[Tensor, "n 8"]):
    y = torch.relu(x)
    if DEBUG:
        print(y.mean())
    print(y.shape, y.dtype)
    print("max:", y.max().item())
    return y + 1


@fuselens.compile
def causal(x: Float32[Tensor, "n 8"]):
    scores = x @ x.T
    mask = torch.full(scores.shape, float("-inf")).triu(1)
    assert not torch.isnan(scores).any()
    return (scores + mask).softmax(-1) @ x


class Attention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, hidden_states, attention_mask=None, output_attentions=False):
        batch, length, width = hidden_states.shape
        q, k, v = self.qkv(hidden_states).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = scores.softmax(-1)
        if torch.isnan(weights).any():
            weights = torch.nan_to_num(weights)
        out = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out(out), weights if output_attentions else None


attention = fuselens.compile(Attention(), example_inputs=(torch.randn(2, 4, 8),))


class Overflowing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, hidden):
        hidden = self.linear(hidden)
        if torch.isinf(hidden).any() or torch.isnan(hidden).any():
            clamp = torch.finfo(hidden.dtype).max - 1000
            hidden = torch.clamp(hidden, min=-clamp, max=clamp)
        return hidden


overflowing = fuselens.compile(Overflowing(), example_inputs=(torch.randn(2, 8),))


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(8, 2)
        self.experts = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.calls = {}

    def forward(self, x):
        out = torch.zeros_like(x)
        choice = self.gate(x).argmax(-1)
        for i, expert in enumerate(self.experts):
            chosen = torch.where(choice == i)[0]
            if chosen.numel() == 0:
                continue
            out[chosen] = expert(x[chosen])
        return out


router = fuselens.compile(Router(), example_inputs=(torch.randn(4, 8),))


class LayerDrop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x):
        states = ()
        for layer in self.layers:
            drop = torch.rand([])
            if self.training and drop < 0.1:
                continue
            x = torch.relu(layer(x))
            states += (x,)
        return x


layerdrop = fuselens.compile(LayerDrop(), example_inputs=(torch.randn(4, 8),))
