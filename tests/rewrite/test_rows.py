"""Attention that is written out for a GPU becomes one operator; what it computes is eager's, or closer to what is exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens import torch_private
from fuselens.autograd.decompositions import table
from fuselens.ir.attention import OF_SCORES
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Attention, Graph, Kernel
from fuselens.ir.verify import verify
from fuselens.lowering.lower import lower
from fuselens.rewrite.own_attention import call_own_attention
from fuselens.rewrite.simplify import simplify
from fuselens.schedule.fuse import fuse
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order

from .spellings import HEADS, SPELLINGS, inputs, plain

KEYS = 256


def traced(fn: Callable[..., Any], given: list[Tensor], device: str = "cuda") -> fx.GraphModule:
    """The graph of ``fn`` on a device, whose masks are made by it."""

    def moved(*args: Any) -> Any:
        with torch.device(device):
            return fn(*args)

    mode = torch_private.fake_mode()
    with mode:
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in given]
        return simplify(make_fx(moved, decomposition_table=dict(table()), tracing_mode="real")(*fakes))


def kernels(module: fx.GraphModule) -> Graph:
    return order(for_gpu(fuse(lower(module, name="g", device="cuda"))))


@pytest.mark.parametrize(("rows", "keys", "dtype"), [
    (1, 300, torch.float16), (3, 200, torch.float32), (20, KEYS, torch.bfloat16),
])  # fmt: skip
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, rows: int, keys: int, dtype: torch.dtype) -> None:
    spelling = SPELLINGS[name]
    given = inputs(spelling, rows, keys, dtype)
    module = traced(spelling.write, given, "cpu")
    decisions = call_own_attention(module, "cuda")
    shared = spelling.groups is not None and spelling.groups < HEADS
    taken = spelling.taken and (dtype != torch.float32 or shared)
    assert [d.verdict for d in decisions] == ["own"] * taken
    graph = kernels(module)
    verify(graph)
    if taken:
        assert all(isinstance(n, (Attention, Kernel)) for n in graph.nodes)
        stored = [graph.buffers[b] for n in graph.kernels() for b in n.writes()]
        assert not [b for b in stored if graph.hint(b.numel()) == 2 * HEADS * rows * keys]
        (node,) = graph.attentions()
        assert graph.buffers[node.operands()[1]].sizes[1] == (spelling.groups or HEADS) or "baddbmm" in name
    (found,) = evaluate(graph, given)
    eager = spelling.write(*given)
    exact = spelling.write(*(t.double() if t.is_floating_point() else t for t in given))
    assert torch.equal(found.isnan(), eager.isnan())
    errors = [(t.double() - exact).nan_to_num().abs().max().item() for t in (found, eager)]
    assert errors[0] <= 1.2 * errors[1] + 2 * torch.finfo(dtype).eps
    assert (found.shape, found.stride()) == (eager.shape, eager.stride())


def test_what_is_read_elsewhere_stays() -> None:
    def weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        made = (q @ k.transpose(-1, -2)).softmax(-1)
        return made @ v, made

    def scores(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        made = (q @ k.transpose(-1, -2)) * 0.5
        return made.tanh().softmax(-1) @ v, made.sum()

    def product(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        made = q @ k.transpose(-1, -2)
        return made.softmax(-1) @ v, made

    def seen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = q @ k.transpose(-1, -2)
        return (made - made.mean(-1, keepdim=True)).softmax(-1) @ v

    for fn in (weights, scores, product, seen):
        assert call_own_attention(traced(fn, [torch.randn(2, 2, KEYS, 64).bfloat16()] * 3, "cpu"), "cuda") == []


def test_softmax_of_something_else_stays() -> None:
    def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).transpose(-1, -2).softmax(-1) @ v

    def along_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).softmax(-2) @ v

    def another_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).softmax(-1).flip(1) @ v

    def by_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-1, -2)).softmax(-1).transpose(-1, -2) @ v

    def shifted_by_another(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = q @ k.transpose(-1, -2)
        powers = (made - made.amax(-1, keepdim=True)).exp()
        return (powers / powers.sum(-2, keepdim=True)) @ v

    def shifted_before_its_sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = q @ k.transpose(-1, -2)
        beside = torch.zeros(*made.shape[:3], 1, dtype=made.dtype)
        return torch.cat((made - made.amax(-1, keepdim=True), beside), -1).softmax(-1)[..., :-1] @ v

    for fn in (shifted_before_its_sink, turned, along_rows, another_head, by_keys, shifted_by_another):
        assert call_own_attention(traced(fn, [torch.randn(2, 2, KEYS, 64).bfloat16()] * 3, "cpu"), "cuda") == []


def test_the_operator_computes_it_anywhere() -> None:
    """Graphs that are not lowered run it through ATen."""
    q, k, v = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    sink = torch.randn(1, 4, 1, 1)
    product = q @ k.repeat_interleave(2, 1).mT
    scores = product.masked_fill(torch.rand(2, 1, 3, 9) < 0.4, -math.inf)
    scores[0, 0, 0] = -math.inf
    wide = v.repeat_interleave(2, 1)
    found = OF_SCORES(q, k, v, product, scores, None, False, True)
    torch.testing.assert_close(found, scores.softmax(-1) @ wide, equal_nan=True)
    torch.testing.assert_close(OF_SCORES(q, k, v, product, scores, None, True, True), found.nan_to_num())
    whole = torch.cat((scores, sink.expand(2, 4, 3, 1)), -1).softmax(-1)
    torch.testing.assert_close(OF_SCORES(q, k, v, product, scores, sink, False, True), whole[..., :-1] @ wide)


def test_short_and_wide_attention_stays() -> None:
    for rows, keys, width in ((64, 64, 64), (KEYS, KEYS, 192), (1, 40, 64), (1, 70, 300)):
        q, k = torch.randn(1, 2, rows, width).bfloat16(), torch.randn(1, 2, keys, width).bfloat16()
        assert call_own_attention(traced(plain, [q, k, k])) == []
