"""Attention that is written out for a GPU becomes one operator; what it computes is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens import torch_private
from fuselens.autograd.decompositions import table
from fuselens.ir.attention import OWN
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Attention
from fuselens.lowering.lower import lower
from fuselens.rewrite.rows import own_attention
from fuselens.rewrite.simplify import simplify
from fuselens.schedule.fuse import fuse
from fuselens.schedule.order import order
from fuselens.schedule.split import for_gpu

KEYS = 256


def heads(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).bfloat16()


def causal(n: int = KEYS) -> Tensor:
    at = torch.arange(n)
    return at.unsqueeze(1) >= at


def repeated(x: Tensor, times: int) -> Tensor:
    batch, groups, length, width = x.shape
    return x.unsqueeze(2).expand(batch, groups, times, length, width).reshape(batch, groups * times, length, width)


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / 8).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As transformers write it."""
    k, v = repeated(k, 4), repeated(v, 4)
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.125
    scores = scores + torch.where(causal(), 0.0, torch.finfo(torch.bfloat16).min).bfloat16()
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = causal() & (torch.arange(KEYS) != 3).unsqueeze(1)  # the fourth row sees nothing
    return (q @ k.transpose(-1, -2) * 0.125).masked_fill(torch.logical_not(mask), float("-inf")).softmax(-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(KEYS)
    slope = ((at - at.unsqueeze(1)) * 0.1).bfloat16()
    return torch.where(causal(), q @ k.transpose(-1, -2) * 0.125 + slope, float("-inf")).softmax(-1) @ v


CASES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "plain": (plain, 2), "grouped": (grouped, 1), "masked": (masked, 2), "biased": (biased, 2),
}  # fmt: skip


def traced(fn: Callable[..., Any], inputs: list[Tensor]) -> fx.GraphModule:
    """The graph of ``fn`` for a GPU, whose masks are made by it."""

    def moved(*args: Any) -> Any:
        with torch.device("cuda"):
            return fn(*args)

    mode = torch_private.fake_mode()
    with mode:
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in inputs]
        return simplify(make_fx(moved, decomposition_table=dict(table()), tracing_mode="real")(*fakes))


@pytest.mark.parametrize("name", CASES)
def test_written_out_attention_is_one_kernel(name: str) -> None:
    fn, groups = CASES[name]
    lead = (2, 4, KEYS) if groups == 1 else (2, 2, KEYS)
    inputs = [heads(*lead, 64), *(heads(2, groups, KEYS, 64 + 0 * n) * (1 + n) for n in range(2))]
    module = traced(fn, inputs)
    (decision,) = own_attention(module)
    assert decision.verdict == "own"
    (called,) = (n for n in module.graph.nodes if n.target is OWN)
    assert called.args[1].meta["val"].shape[1] == groups
    graph = order(for_gpu(fuse(lower(module, name="g"))))
    assert [n for n in graph.nodes if isinstance(n, Attention)]
    assert not [b for b in graph.buffers.values() if b.sizes[-2:] == (KEYS, KEYS)]
    (found,) = evaluate(graph, inputs)
    exact = fn(*(t.double() for t in inputs)) if name == "plain" else fn(*inputs)
    torch.testing.assert_close(found.double(), exact.double(), rtol=2e-2, atol=2e-2, equal_nan=True)


def test_what_is_read_elsewhere_stays() -> None:
    def fn(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.transpose(-1, -2)).softmax(-1)
        return weights @ v, weights

    assert own_attention(traced(fn, [heads(2, 2, KEYS, 64)] * 3)) == []


def test_short_and_wide_attention_stays() -> None:
    for keys, width in ((64, 64), (KEYS, 192)):
        assert own_attention(traced(plain, [heads(1, 2, keys, width)] * 3)) == []
