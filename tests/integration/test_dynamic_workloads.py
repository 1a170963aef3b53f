"""Batches and lengths that vary take two compilations; a decode loop, whose caches grow, a small number that its length does not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fuselens

SHAPES = [(2 + i * 7 % 5, 8 + i * 13 % 29) for i in range(20)]
Cache = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    fuselens.reset()
    yield
    fuselens.reset()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, turned: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size, self.turned = heads, kv_heads, width // heads, turned
        self.query = nn.Linear(width, width, bias=not turned)
        self.key_value = nn.Linear(width, 2 * kv_heads * self.size, bias=not turned)
        self.out = nn.Linear(width, width, bias=not turned)

    def forward(self, x: Tensor, cache: Cache | None, past: int) -> tuple[Tensor, Cache]:
        batch, length, width = x.shape
        query = self.query(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        key, value = (
            part.view(batch, length, self.kv_heads, self.size).transpose(1, 2)
            for part in self.key_value(x).chunk(2, dim=-1)
        )
        if self.turned:
            query, key = rotated(query, past), rotated(key, past)
        if cache is not None:
            key, value = torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
        groups = self.heads // self.kv_heads
        keys, values = (t.repeat_interleave(groups, 1) if groups > 1 else t for t in (key, value))
        found = F.scaled_dot_product_attention(query, keys, values, is_causal=cache is None)
        return self.out(found.transpose(1, 2).reshape(batch, length, width)), (key, value)


def rotated(x: Tensor, past: int) -> Tensor:
    size = x.shape[-1]
    places = torch.arange(past, past + x.shape[2])[:, None] * 0.1 ** torch.arange(0, size, 2)[None]
    turn = torch.cat([places, places], dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * turn.cos() + torch.cat([-second, first], dim=-1) * turn.sin()


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False) for a, b in ((width, 24), (width, 24), (24, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Language(nn.Module):
    """Learnt positions, LayerNorm and GELU as in GPT-2; ``turned``: rotary positions, RMSNorm, gates and shared keys as in Llama."""

    def __init__(self, turned: bool, width: int = 16, words: int = 40) -> None:
        super().__init__()
        norm = nn.RMSNorm if turned else nn.LayerNorm
        wide = lambda: Gated(width) if turned else nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))  # noqa: E731
        self.words = nn.Embedding(words, width)
        self.places = None if turned else nn.Embedding(128, width)
        self.blocks = nn.ModuleList(
            nn.ModuleList([norm(width), Attention(width, 4, 2 if turned else 4, turned), norm(width), wide()])
            for _ in range(2)
        )
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, caches: list[Cache] | None = None) -> tuple[Tensor, list[Cache]]:
        past = 0 if caches is None else caches[0][0].shape[2]
        x = self.words(ids)
        if self.places is not None:
            x = x + self.places(torch.arange(past, past + ids.shape[1]))
        grown = []
        for i, (before, attention, between, wide) in enumerate(self.blocks):  # type: ignore[misc]
            found, cache = attention(before(x), None if caches is None else caches[i], past)
            x = x + found
            x = x + wide(between(x))
            grown.append(cache)
        return self.head(x), grown


def model(turned: bool) -> Language:
    torch.manual_seed(0)
    return Language(turned)


def texts(batch: int, length: int) -> Tensor:
    return torch.randint(0, 40, (batch, length), generator=torch.Generator().manual_seed(batch * 100 + length))


def compilations(compiled: Any) -> int:
    report = compiled.__fuselens__.recorder.report
    assert not report.breaks and not any(g.fallback for g in report.graphs)
    assert not any(d.code == "FL202" for d in report.diagnostics)
    return len(report.graphs)


@pytest.mark.parametrize("turned", [False, True])
def test_forward_of_twenty_shapes(turned: bool) -> None:
    eager = model(turned)
    compiled = fuselens.compile(eager)
    with torch.no_grad():
        for shape in SHAPES:
            torch.testing.assert_close(compiled(texts(*shape)), eager(texts(*shape)), rtol=1e-4, atol=1e-5)
    assert compilations(compiled) == 2


@torch.no_grad()
def test_sizes_that_are_the_same_by_chance() -> None:
    eager = model(False)
    compiled = fuselens.compile(eager)
    for shape in [(2, 8), (6, 6), (3, 9), (4, 4), (5, 7)]:
        torch.testing.assert_close(compiled(texts(*shape)), eager(texts(*shape)), rtol=1e-4, atol=1e-5)
    assert compilations(compiled) == 2


@pytest.mark.parametrize("turned", [False, True])
def test_training_on_twenty_shapes(turned: bool) -> None:
    def trained(call: Callable[..., Any], module: nn.Module) -> list[Tensor]:
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        losses = []
        for shape in SHAPES:
            ids = texts(*shape)
            logits = call(ids)[0]
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())
        return [*losses, *(p.detach() for p in module.parameters())]

    eager, other = model(turned), model(turned)
    compiled = fuselens.compile(other)
    torch.testing.assert_close(trained(compiled, other), trained(eager, eager), rtol=1e-3, atol=1e-4)
    assert compilations(compiled) == 2


def generated(call: Callable[..., Any], ids: Tensor, steps: int) -> tuple[Tensor, list[Tensor]]:
    """A text that goes on by its likeliest words, and their logits."""
    logits, caches = call(ids)
    said, all_logits = [ids], [logits]
    for _ in range(steps):
        word = logits[:, -1:].argmax(-1)
        logits, caches = call(word, caches)
        said.append(word)
        all_logits.append(logits)
    return torch.cat(said, 1), all_logits


@torch.no_grad()
@pytest.mark.parametrize("turned", [False, True])
def test_decode_loop_with_growing_caches(turned: bool) -> None:
    eager = model(turned)
    compiled = fuselens.compile(eager)

    def check(batch: int, length: int, steps: int) -> int:
        prompt = texts(batch, length)
        found, expected = generated(compiled, prompt, steps), generated(eager, prompt, steps)
        assert torch.equal(found[0], expected[0])
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)
        return compilations(compiled)

    first = check(2, 5, 24)
    assert (
        first <= 4
    )  # the prompt; a word with the caches that a prompt leaves; with those that torch.cat makes, in any length
    second = check(2, 9, 24)
    assert second <= first + 2  # the prompt in any length; a word with the caches of such a prompt
    assert check(2, 12, 30) == check(2, 6, 40) == second
    batches = check(3, 4, 24)
    assert batches <= second + 3  # each of them for any batch
    assert check(4, 7, 24) == check(5, 11, 24) == batches
    alone = check(1, 6, 24)
    assert alone <= batches + 3  # a size of 1 is always compiled apart
    assert check(1, 10, 40) == alone
    assert check(3, 8, 50) == alone


@torch.no_grad()
def test_what_runs_eagerly_was_not_recompiled() -> None:
    compiled = fuselens.compile(lambda x, name: x * len(name), options={"recompile_limit": 2})
    report = compiled.__fuselens__.recorder.report  # type: ignore[attr-defined]
    for name in ("a", "bb", "ccc", "dddd", "eeeee"):
        assert torch.equal(compiled(torch.ones(3), name), torch.ones(3) * len(name))
    assert [d.code for d in report.diagnostics] == ["FL201", "FL202"]
    assert len(report.graphs) == 2
