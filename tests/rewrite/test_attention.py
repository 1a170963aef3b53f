"""Attention that is written out becomes the vendor's flash kernel, with eager's values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens
from tests.support.tensors import assert_same

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
KEYS = 160


def heads(*shape: int) -> torch.Tensor:
    """(batch, heads, length, width) as models make it: a transposed view."""
    return torch.randn(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


def causal(n: int = KEYS) -> torch.Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def plain(q: Any, k: Any, v: Any) -> Any:
    return (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25 + bias, -1) @ v


def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = (q @ k.transpose(-1, -2) * 0.25).masked_fill(mask == 0, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def both(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
    scores = torch.where(mask, q @ k.transpose(-1, -2) + bias, -math.inf)
    return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)


def half_masked() -> torch.Tensor:
    mask = torch.zeros(KEYS, KEYS)
    mask[3] = -math.inf
    mask[:, 100:] = -math.inf
    return mask


def qkv(batch: int = 2, width: int = 16, make: Callable[..., torch.Tensor] = torch.randn) -> list[torch.Tensor]:
    return [make(batch, 3, KEYS, width) for _ in range(3)]


TAKEN = {
    "plain": (plain, lambda: qkv()),
    "heads": (plain, lambda: qkv(make=heads)),
    "three_dimensions": (plain, lambda: [torch.randn(5, KEYS, 16) for _ in range(3)]),
    "causal": (masked, lambda: [*qkv(make=heads), causal()]),
    "bias": (biased, lambda: [*qkv(make=heads), torch.randn(1, 3, KEYS, KEYS)]),
    "bias_of_keys": (biased, lambda: [*qkv(), torch.randn(KEYS)]),
    "bias_of_queries": (biased, lambda: [*qkv(), torch.randn(2, 1, KEYS, 1)]),
    "bias_transposed": (biased, lambda: [*qkv(), torch.randn(KEYS, KEYS).t()]),
    "masked_rows_are_nan": (biased, lambda: [*qkv(), half_masked()]),
    "padding": (biased, lambda: [*qkv(), torch.zeros(2, 1, 1, KEYS).masked_fill(torch.rand(2, 1, 1, KEYS) < 0.3, -1e9)]),
    "mask_and_bias": (both, lambda: [*qkv(make=heads), causal(), torch.randn(3, 1, KEYS)]),
    "nan_in_bias": (biased, lambda: [*qkv(), torch.full((KEYS, 1), math.nan)]),
    "other_lengths": (plain, lambda: [torch.randn(2, 3, 40, 16), *[torch.randn(2, 3, KEYS, 16) for _ in range(2)]]),
}  # fmt: skip

KEPT = {
    "short": (plain, lambda: [torch.randn(2, 3, 24, 16) for _ in range(3)]),
    "other_width": (plain, lambda: [*qkv()[:2], torch.randn(2, 3, KEYS, 24)]),
    "double": (plain, lambda: [t.double() for t in qkv()]),
    "weights_are_read": (lambda q, k, v: (lambda p: (p @ v, p.sum()))((q @ k.transpose(-1, -2)).softmax(-1)), qkv),
    "scores_are_read": (lambda q, k, v: (lambda s: (s.softmax(-1) @ v, s.amax()))(q @ k.transpose(-1, -2)), qkv),
    "other_dimension": (lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-2) @ v, qkv),
    "scaled_bias": (lambda q, k, v: ((q @ k.transpose(-1, -2) + k[0, 0, 0, 0]) * 0.5).softmax(-1) @ v, qkv),
    "negative_scale": (lambda q, k, v: (q @ k.transpose(-1, -2) * -0.5).softmax(-1) @ v, qkv),
    "finite_mask": (lambda q, k, v: (q @ k.transpose(-1, -2)).masked_fill(q[..., :1] > 0, -5.0).softmax(-1) @ v, qkv),
}  # fmt: skip


def replaced_and_agrees(fn: Callable[..., Any], make: Callable[[], list[torch.Tensor]]) -> list[str]:
    torch.manual_seed(0)
    inputs = make()
    report = fuselens.explain(fn)(*inputs)
    expected = fn(*inputs)
    assert_same(fuselens.compile(fn)(*inputs), expected, rtol=1e-4, atol=1e-5)
    return [d.subject for g in report.graphs for d in g.decisions if d.code == "FL415"]


@pytest.mark.parametrize("name", TAKEN)
def test_flash(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    assert replaced_and_agrees(*TAKEN[name]), "not replaced"


@pytest.mark.parametrize("name", KEPT)
def test_stays_written_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    assert not replaced_and_agrees(*KEPT[name])


def test_training_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    torch.manual_seed(0)
    inputs = [*qkv(), torch.randn(KEYS, KEYS)]
    grads = []
    for fn in (biased, fuselens.compile(biased)):
        leaves = [t.clone().requires_grad_() for t in inputs]
        fn(*leaves).square().sum().backward()
        grads.append([t.grad for t in leaves])
    for expected, actual in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
