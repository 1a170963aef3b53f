"""Training on a real GPU: curves, random numbers, writes in place, checkpoints, against eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuselens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.second(F.gelu(self.norm(self.first(x)))), y)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = F.relu(self.norm(self.first(x.view(-1, 2, 4, 4))))
        return F.cross_entropy(self.head((self.second(h) + h).mean((2, 3))), y)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.project, self.head = nn.Embedding(10, 32), nn.Linear(32, 96), nn.Linear(32, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = (x.view(16, 2, 16) > 0).long().sum(-1) % 10
        q, k, v = self.project(self.embedding(h)).view(16, 2, 2, 48).transpose(1, 2).chunk(3, -1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(out.mean(1)), y)


def train(model: nn.Module, run: Any, optimiser: Any, step: Callable[[], Any], steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 32, generator=generator).cuda().to(next(model.parameters()).dtype)
        loss = run(x, torch.arange(16).cuda() % 10)
        loss.backward()
        step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


OPTIMISERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "adam capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-3).cuda(), capturable=True),
}


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("kind", [Perceptron, Convolutions, Attention])
def test_curve(kind: type[nn.Module], optimiser: str) -> None:
    torch.manual_seed(0)
    model = kind().cuda().double()  # Adam amplifies the rounding of gradients near zero
    other = copy.deepcopy(model)
    mine, theirs = OPTIMISERS[optimiser](model.parameters()), OPTIMISERS[optimiser](other.parameters())
    found = train(model, fuselens.compile(model), mine, fuselens.compile(mine.step), 30)
    wanted = train(other, other, theirs, theirs.step, 30)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(dict(model.named_buffers()), dict(other.named_buffers()), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(dict(model.named_parameters()), dict(other.named_parameters()), rtol=1e-5, atol=1e-7)


def test_graphs_that_start_on_the_cpu() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * 2).sum() + torch.ones(8, 8, device="cuda") * 3

    x = torch.ones(4)
    torch.testing.assert_close(fuselens.compile(fn)(x), fn(x))


def test_dropout_is_the_same_forward_and_backward() -> None:
    x = torch.zeros(4096, device="cuda", requires_grad=True)
    out = fuselens.compile(lambda x: F.dropout(x.exp(), 0.5))(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, out.detach()) and 1700 < int((out == 0).sum()) < 2400


def test_runs_are_reproducible() -> None:
    compiled = fuselens.compile(lambda x: F.dropout(x, 0.3) + torch.randn_like(x) * torch.rand_like(x))
    x, runs = torch.ones(1000, device="cuda"), []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append([compiled(x), compiled(x)])
    assert torch.equal(runs[0][0], runs[1][0]) and torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])


def test_eagers_stream() -> None:
    fn = lambda x: F.dropout(x.sin(), 0.3)  # noqa: E731
    compiled, x = fuselens.compile(fn, options={"fallback_random": True}), torch.ones(1000, device="cuda")
    torch.manual_seed(5)
    wanted = fn(x)
    torch.manual_seed(5)
    torch.testing.assert_close(compiled(x), wanted)


@pytest.mark.parametrize("budget", [0.0, 0.5, 1.0])
def test_checkpoints_and_budgets(budget: float) -> None:
    def block(x: Tensor, w: Tensor) -> Tensor:
        return F.gelu(x @ w).sin()

    def fn(x: Tensor, *weights: Tensor) -> Tensor:
        for i, w in enumerate(weights):
            x = checkpoint(block, x, w, use_reentrant=False) if i % 2 else block(x, w)
        return x.sum()

    args = [torch.randn(16, 16, device="cuda", dtype=torch.float64, requires_grad=True) for _ in range(5)]
    wanted = torch.autograd.grad(fn(*args), args)
    found = torch.autograd.grad(fuselens.compile(fn, options={"memory_budget": budget})(*args), args)
    torch.testing.assert_close(found, wanted)


def test_inputs_are_written_in_place() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2).add_(y)
        y[1:] = x[:-1]
        return x.sum(1)

    def made() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")

    compiled = fuselens.compile(fn)
    for _ in range(2):
        mine, theirs = made(), made()
        pointers = [t.data_ptr() for t in mine]
        torch.testing.assert_close(compiled(*mine), fn(*theirs))
        torch.testing.assert_close(mine, theirs)
        assert [t.data_ptr() for t in mine] == pointers


def test_half_precision_with_scaling() -> None:
    torch.manual_seed(0)
    model = Perceptron().cuda()
    other = copy.deepcopy(model)
    curves = []
    for m, run in ((model, fuselens.compile(model)), (other, other)):
        optimiser, scaler = torch.optim.SGD(m.parameters(), lr=0.05), torch.amp.GradScaler("cuda")
        losses = []
        for k in range(20):
            x = torch.randn(16, 32, generator=torch.Generator().manual_seed(k)).cuda()
            with torch.autocast("cuda", torch.float16):
                loss = run(x, torch.arange(16).cuda() % 10)
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
            optimiser.zero_grad()
            losses.append(loss.item())
        curves.append(losses)
    torch.testing.assert_close(curves[0], curves[1], rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_of_rows_that_begin_anywhere(dtype: torch.dtype) -> None:
    """Rows of 20001 elements: aligned blocks, then both ends, in the forward and in the backward."""
    x = torch.randn(1500, 20001, device="cuda", dtype=dtype, requires_grad=True)
    y = torch.arange(1500, device="cuda")
    y[7], y[8] = -100, 20000
    fn = lambda x: F.cross_entropy(x.float(), y)  # noqa: E731
    found, wanted = fuselens.compile(fn)(x), fn(x)
    torch.testing.assert_close(found, wanted)
    (mine,), (theirs,) = torch.autograd.grad(found, x), torch.autograd.grad(wanted, x)
    torch.testing.assert_close(mine, theirs)


def test_gradient_of_an_embedding_whose_rows_repeat() -> None:
    words = torch.randn(300, 96, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ids = torch.arange(4000, device="cuda") * 7 % 250
    scale = torch.randn(4000, 96, device="cuda")
    fn = lambda words: (F.embedding(ids, words).float() * scale).sum()  # noqa: E731
    (mine,) = torch.autograd.grad(fuselens.compile(fn)(words), words)
    wanted = torch.zeros(300, 96, device="cuda").index_add(0, ids, scale.bfloat16().float())
    torch.testing.assert_close(mine.float(), wanted, rtol=1e-2, atol=6e-2)  # of 16 halves that are summed
