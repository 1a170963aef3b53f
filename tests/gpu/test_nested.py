"""Nested tensors in the jagged layout on a real GPU: a GPT on texts of different lengths trains as it does eagerly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
WORDS, LENGTH, WIDTH, HEADS = 65, 64, 64, 4


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = False


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.contiguous().unflatten(-1, [HEADS, WIDTH // HEADS]).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(y.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.narrow(F.gelu(self.wide(self.between(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        x = self.words(words) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.last(x)).values(), targets.values())


def batch(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(3, LENGTH, (5,), generator=generator).tolist()
    offsets = torch.tensor([0, *lengths]).cumsum(0).cuda()
    words, targets = (torch.randint(WORDS, (sum(lengths),), generator=generator) for _ in range(2))
    positions = torch.cat([torch.arange(n) for n in lengths])
    return [
        torch.nested.nested_tensor_from_jagged(v.cuda(), offsets, min_seqlen=min(lengths), max_seqlen=max(lengths))
        for v in (words, positions, targets)
    ]


def losses(wrap: Callable[[nn.Module], Any], dtype: torch.dtype) -> tuple[list[float], Any]:
    torch.manual_seed(0)
    model = GPT().cuda()
    fn = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for step in range(8):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            loss = fn(*batch(step))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, fn


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpt_trains_on_texts_of_any_length(dtype: torch.dtype) -> None:
    expected, _ = losses(lambda model: model, dtype)
    found, compiled = losses(fuselens.compile, dtype)
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    assert found == pytest.approx(expected, rel=tolerance)
    report = compiled.__fuselens__.recorder.report
    assert {d.code for d in (*report.breaks, *report.diagnostics)} == set()
    assert len(report.graphs) == 1, "one for all lengths"
