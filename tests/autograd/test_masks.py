"""Attention masks that are the same in every call: left out, or said as `is_causal`; the rest stay. Results are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuselens


def rows(q: Tensor) -> Tensor:
    return torch.arange(q.shape[-2], device=q.device)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = rows(q)
    mask = (i[None, :] <= i[:, None])[None, None].expand(q.shape[0], 1, -1, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).contiguous()


def added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    n = q.shape[-2]
    mask = torch.full((n, n), torch.finfo(q.dtype).min, device=q.device).triu(1)
    return F.scaled_dot_product_attention(q, k, v, mask[None, None], 0.0, scale=0.3)


def nothing_hidden(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = (rows(q) >= 0)[None, None, :, None].expand(q.shape[0], 1, -1, k.shape[-2])
    return F.scaled_dot_product_attention(q, k, v, mask)


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = rows(q)
    return F.scaled_dot_product_attention(q, k, v, (i[None, :] <= i[:, None]) & (i[None, :] > i[:, None] - 4))


def future(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = rows(q)
    return F.scaled_dot_product_attention(q, k, v, i[None, :] >= i[:, None])


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = rows(q)
    return F.scaled_dot_product_attention(q, k, v, -0.5 * (i[None, :] - i[:, None]).abs().float())


def of_an_input(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(
        q, k, v, (q.sum((-1, -3)) > -1e9)[:, None, :, None].expand(-1, 1, -1, k.shape[-2])
    )


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    mask[0, 1:] = False
    return F.scaled_dot_product_attention(q, k, v, mask)


CASES: list[tuple[Callable[..., Tensor], str]] = [
    (causal, "causal"), (added, "causal"), (nothing_hidden, "none"), (window, "mask"), (future, "mask"), (biased, "mask"),
    (of_an_input, "mask"), (written, "mask"),
]  # fmt: skip


def said(fn: Callable[..., Tensor], *given: Any) -> str:
    report = fuselens.explain(fn)(*given)
    (graph,) = report.graphs
    joint = next(s.text for s in graph.stages if s.name == "joint")
    call = next(line for line in joint.splitlines() if "attention_for_cpu.default(" in line)
    return "mask" if "attn_mask=" in call.replace("attn_mask=None", "") else "causal" if "0.0, True" in call else "none"


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("fn", "kind"), CASES, ids=[fn.__name__ for fn, _ in CASES])
def test_masks(fn: Callable[..., Tensor], kind: str, training: bool) -> None:
    torch.manual_seed(0)
    given = [torch.randn(2, 4, 16, 8, requires_grad=training) for _ in range(3)]
    assert said(fn, *given) == kind
    wanted, found = fn(*given), fuselens.compile(fn)(*given)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    if training:
        expected, actual = (torch.autograd.grad(out.square().sum(), given) for out in (wanted, found))
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_sizes_that_vary_keep_their_mask() -> None:
    compiled = fuselens.compile(causal, dynamic=True)
    for n in (5, 9, 12):
        given = [torch.randn(2, 4, n, 8) for _ in range(3)]
        torch.testing.assert_close(compiled(*given), causal(*given), rtol=1e-4, atol=1e-5)


def test_a_mask_of_more_batches_than_the_query_says_how_many_the_result_has() -> None:
    """As where torch writes attention out; its kernel for the CPU refuses such a mask in eager."""

    def fn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, torch.ones(3, 1, 16, 16, dtype=torch.bool))

    given = [torch.randn(1, 4, 16, 8) for _ in range(3)]
    wanted = F.scaled_dot_product_attention(*(t.expand(3, -1, -1, -1) for t in given))
    torch.testing.assert_close(fuselens.compile(fn)(*given), wanted, rtol=1e-4, atol=1e-5)
