"""On a real GPU: a model that generates one token at a time, with its caches, against eager."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens
from fuselens.pipeline import tuning
from fuselens.runtime.gpu import tune as tune_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()


def rms(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, hidden: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.first, self.second = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, groups * self.size)
        self.v, self.o = nn.Linear(width, groups * self.size), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, groups, length, self.size))
        self.register_buffer("values", torch.zeros(1, groups, length, self.size))

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        h = rms(x, self.first)
        q, k, v = (p(h).view(1, 1, -1, self.size).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        self.keys.index_copy_(2, at, k)
        self.values.index_copy_(2, at, v)
        attended = F.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(x.shape))
        h = rms(x, self.second)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, groups: int, hidden: int, words: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width, heads, groups, hidden, length) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        angles = torch.outer(torch.arange(length), 1e4 ** -torch.linspace(0, 1, width // heads // 2))
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos())
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin())
        self.register_buffer("row", torch.arange(length))

    def forward(self, word: Tensor, at: Tensor) -> Tensor:
        x, mask = self.tokens(word), (self.row <= at)[None, None, None]
        for layer in self.layers:
            x = layer(x, at, self.cos[at], self.sin[at], mask)
        return self.head(x)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.06), (torch.float16, 0.01), (torch.float32, 1e-4)])
def test_tokens_one_at_a_time(dtype: torch.dtype, tolerance: float, mode: Any) -> None:
    torch.manual_seed(0)
    model = Decoder(3, 512, 8, 2, 1408, 1000, 96).to("cuda", dtype).eval()
    model.row = torch.arange(96, device="cuda")
    other = copy.deepcopy(model)
    compiled = fuselens.compile(other, mode=mode)
    with torch.no_grad():
        for step in range(12):
            word = torch.full((1, 1), 7 * step, device="cuda")
            at = torch.full((1,), step, device="cuda")
            expected, found = model(word, at), compiled(word, at)
            scale = float(expected.abs().max())
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)
    for (name, ours), theirs in zip(other.named_buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * float(theirs.abs().max()), msg=name)


def test_norms_in_the_products_that_read_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As measuring chooses where that is faster: here always."""
    measured = tune_gpu.on_card

    def choose(questions: Any, *how: Any) -> list[list[float]]:
        found = measured(questions, *how)
        for question, row in zip(questions, found, strict=True):
            if question[-1].label == tuning.EACH:
                row[:] = [1.0, 0.9]
        return found

    monkeypatch.setattr(tuning, "MEASURE", choose)
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model = Decoder(2, 512, 8, 2, 1408, 1000, 96).to("cuda", torch.bfloat16).eval()
    model.row = torch.arange(96, device="cuda")
    compiled: Any = fuselens.compile(copy.deepcopy(model), mode="max-autotune")
    with torch.no_grad():
        for step in range(3):
            word, at = torch.full((1, 1), 7 * step, device="cuda"), torch.full((1,), step, device="cuda")
            expected, found = model(word, at), compiled(word, at)
            torch.testing.assert_close(found, expected, rtol=0, atol=0.06 * float(expected.abs().max()))
    decisions = [d for g in compiled.__fuselens__.recorder.report.graphs for d in g.decisions]
    assert any(tuning.EACH in d.reason and d.verdict == "taken" for d in decisions)
