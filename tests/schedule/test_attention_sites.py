"""The vendor's attention on a GPU: which calls our kernel could do, and what is measured and taken. Times are given by the tests."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fuselens.codegen.triton.choices.attention_plan import keys_near
from fuselens.config import Config
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Attention, Graph
from fuselens.ir.verify import verify
from fuselens.lowering.lower import lower
from fuselens.pipeline import tuning
from fuselens.schedule.fuse import fuse
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order
from fuselens.schedule.sites.attention import attentions
from tests.rewrite.test_rows import traced
from tests.runtime.test_tune_gpu import Card

aten = torch.ops.aten
OWN = "64 rows x 128 keys, 4 warps, 2 stages"


def heads(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes))).half()


def window(length: int, keys: int) -> Tensor:
    row, key = torch.arange(length).unsqueeze(1), torch.arange(keys)
    return torch.where((key <= row) & (row - key < 50), -0.1 * (row - key), -math.inf).half()


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, False, scale=0.5)[0]


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = window(q.shape[2], k.shape[2]).expand(q.shape[0], q.shape[1], -1, -1)
    return aten._scaled_dot_product_efficient_attention(q, k, v, mask, False)[0]


def expected(fn: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = window(q.shape[2], k.shape[2]).double() if fn is masked else None
    q, k, v = (t.double() for t in (q, k, v))
    scale = 0.5 if fn is scaled else None
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=fn is causal, scale=scale, enable_gqa=True).half()


def graphs(fn: Callable[..., Any], inputs: list[Tensor]) -> tuple[Graph, Graph]:
    """The loops, and the fused graph."""
    loops = lower(traced(fn, inputs), name="g")
    return loops, for_gpu(fuse(loops))


CASES: dict[str, tuple[Callable[..., Tensor], int, int]] = {
    "causal": (causal, 2, 100), "scaled": (scaled, 1, 130), "masked": (masked, 2, 129),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_our_kernel_is_taken_where_that_is_faster(name: str, tmp_path: Path) -> None:
    fn, groups, keys = CASES[name]
    inputs = [heads(2, 2, 100, 24), heads(2, groups, keys, 24), heads(2, groups, keys, 40 if fn is not causal else 24)]
    loops, fused = graphs(fn, inputs)
    card = Card(**{OWN: 0.5})
    changed, tunings, (decision, *_) = tuning.for_gpu(fused, Config(cache_dir=tmp_path), card, loops)
    assert [type(n) for n in changed.nodes] == [Attention]  # the mask is in it
    (node,) = changed.attentions()
    assert str(tunings[node.name]) == OWN
    assert (decision.code, decision.verdict, decision.subject) == ("FL416", "taken", node.name)
    assert card.asked[0][0] == tuning.VENDOR
    verify(changed)
    if fn is masked:
        assert keys_near(node) == (49, 0)
    (found,) = evaluate(order(changed), inputs)
    torch.testing.assert_close(found, expected(fn, *inputs), rtol=1e-2, atol=1e-2)
    again = Card()
    assert tuning.for_gpu(fused, Config(cache_dir=tmp_path), again, loops)[1] == tunings
    assert again.asked == []


def test_the_vendors_stays_where_nothing_is_faster(tmp_path: Path) -> None:
    loops, fused = graphs(masked, [heads(2, 2, 100, 24)] * 3)
    changed, tunings, decisions = tuning.for_gpu(fused, Config(cache_dir=tmp_path), Card(), loops)
    assert changed.nodes == fused.nodes
    assert tunings == {}
    assert [d.verdict for d in decisions] == ["vendor", "default"]


def test_masks_of_several_calls_are_made_once_for_the_vendors(tmp_path: Path) -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = window(q.shape[2], k.shape[2]).expand(q.shape[0], q.shape[1], -1, -1)
        once = aten._scaled_dot_product_efficient_attention(q, k, v, mask, False)[0]
        return aten._scaled_dot_product_efficient_attention(once, k, v, mask, False)[0]

    asked: list[list[int]] = []

    def measured(questions: Any, *_: Any) -> list[list[float]]:
        asked.extend([len(c.graph.nodes) for c in q] for q in questions)
        return [[1.0] * len(q) for q in questions]

    loops, fused = graphs(both, [heads(1, 2, 100, 24)] * 3)
    tuning.for_gpu(fused, Config(cache_dir=tmp_path), measured, loops)
    assert asked[0] == [1] * len(asked[0])


def test_what_our_kernel_cannot_do_stays() -> None:
    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.1, False)[0]

    def trained(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return aten._scaled_dot_product_flash_attention(q, k, v)[:2]

    for fn in (dropped, trained):
        assert attentions(graphs(fn, [heads(1, 2, 64, 16)] * 3)[0]) == {}
    assert attentions(graphs(scaled, [heads(1, 2, 64, 264)] * 3)[0]) == {}
    assert attentions(graphs(causal, [heads(1, 2, 64, 16), *[heads(1, 2, 80, 16)] * 2])[0]) == {}
