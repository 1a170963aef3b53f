"""Attention of few rows on a real GPU: our kernel against eager's attention, and in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fuselens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.backends.cuda.matmul.allow_tf32 = False


CASES: dict[str, dict[str, Any]] = {
    "decoded token": {},
    "long": {"keys": 5000},
    "batch": {"batch": 3, "keys": 777},
    "some rows": {"rows": 4, "keys": 300, "mask": "rows"},
    "sixteen rows": {"rows": 16, "keys": 1000, "mask": "rows"},
    "a bias": {"rows": 3, "mask": "bias"},
    "causal": {"rows": 8, "keys": 8, "causal": True},
    "no groups": {"groups": 32, "mask": ""},
    "rows that see nothing": {"rows": 2, "mask": "nothing"},
    "narrow": {"width": 40, "keys": 90},
    "wide": {"width": 256, "keys": 400},
    "rows of all heads": {"rows": 5, "by_row": True},
}


def operands(
    dtype: torch.dtype, *, batch: int = 1, heads: int = 32, groups: int = 8, rows: int = 1, keys: int = 512, width: int = 128,
    mask: str = "position", causal: bool = False, by_row: bool = False,
) -> tuple[list[Tensor], dict[str, Any]]:  # fmt: skip
    seed = torch.Generator("cuda").manual_seed(keys)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=seed, device="cuda").to(dtype)

    query = random(batch, rows, heads, width).transpose(1, 2) if by_row else random(batch, heads, rows, width)
    key, value = (random(batch, groups, keys + 8, width)[:, :, :keys] for _ in range(2))
    given: Any = {
        "": None, "position": (torch.arange(keys, device="cuda") <= keys // 2)[None, None, None] if not causal else None,
        "rows": torch.rand(1, 1, rows, keys, device="cuda") < 0.5, "bias": random(batch, 1, rows, keys),
        "nothing": torch.arange(rows, device="cuda")[:, None].expand(rows, keys) > 0,
    }[mask]  # fmt: skip
    return [query, key, value], {"attn_mask": given, "is_causal": causal, "enable_gqa": heads != groups}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, mode: str) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        inputs, more = operands(dtype, **CASES[name])
        compiled = fuselens.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **more) * 1.5, mode=mode)
        with torch.no_grad():
            eager = F.scaled_dot_product_attention(*inputs, **more) * 1.5
            for _ in range(3):
                found = compiled(*inputs)
            mask = more["attn_mask"]
            if mask is not None and mask.dtype != torch.bool:
                mask = mask.double()
            exact = F.scaled_dot_product_attention(*(t.double() for t in inputs), **{**more, "attn_mask": mask}) * 1.5
        kinds = [k.kind for k in compiled.__fuselens__.recorder.report.kernels]
        assert "attention" in kinds or (name == "no groups" and dtype == torch.float32)  # which torch has a kernel for
        assert found.stride() == eager.stride()
        hidden = name == "rows that see nothing"  # which cuDNN lets see everything
        reference = eager.double() if hidden else exact
        worst, eagers = ((t.double() - reference).abs().max().item() for t in (found, eager))
        assert worst <= max(2 * eagers, {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype])
        torch.testing.assert_close(compiled(*inputs), found, rtol=0, atol=0)


def test_a_cache_that_is_written() -> None:
    """The keys of this token are written, then read, in place."""

    def step(q: Tensor, k: Tensor, keys: Tensor, values: Tensor, row: Tensor, at: Tensor) -> Tensor:
        keys.index_copy_(2, at, k)
        values.index_copy_(2, at, k * 2)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=(row <= at)[None, None, None], enable_gqa=True)

    q, k = torch.randn(1, 32, 1, 64, device="cuda").half(), torch.randn(1, 8, 1, 64, device="cuda").half()
    keys, row = torch.randn(1, 8, 256, 64, device="cuda").half(), torch.arange(256, device="cuda")
    for mode in ("default", "reduce-overhead"):
        compiled = fuselens.compile(step, mode=mode)
        mine, theirs = [[keys.clone(), keys.clone()] for _ in range(2)]
        with torch.no_grad():
            for position in range(100, 106):
                at = torch.tensor([position], device="cuda")
                found, expected = compiled(q, k, *mine, row, at), step(q, k, *theirs, row, at)
                torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)
                assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_lengths_that_vary() -> None:
    def step(q: Tensor, keys: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, keys, keys, enable_gqa=True)

    compiled = fuselens.compile(step, dynamic=True)
    q = torch.randn(1, 8, 1, 64, device="cuda")
    with torch.no_grad():
        for n in (40, 41, 300, 1000):
            keys = torch.randn(1, 2, n, 64, device="cuda")
            torch.testing.assert_close(compiled(q, keys), step(q, keys), rtol=1e-4, atol=1e-5)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    at = torch.arange(k.shape[2], device=k.device)
    mask = at[: q.shape[2], None] >= at
    return (q @ k.transpose(-1, -2) * 0.125).masked_fill(~mask, float("-inf")).softmax(-1) @ v


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As transformers write it."""
    k, v = (
        t[:, :, None].expand(-1, -1, 4, -1, -1).reshape(q.shape[0], q.shape[1], t.shape[2], t.shape[3]) for t in (k, v)
    )
    at = torch.arange(k.shape[2], device=k.device)
    bias = torch.where(at[: q.shape[2], None] >= at, 0.0, torch.finfo(q.dtype).min).to(q.dtype)
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.125 + bias
    return torch.matmul(torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v).transpose(1, 2)


@pytest.mark.parametrize("fn", [causal, grouped])
def test_attention_that_is_written_out(fn: Any) -> None:
    for rows, keys in ((300, 300), (256, 1024), (1, 700)):
        for dtype in (torch.float16, torch.bfloat16):
            heads, groups = (8, 2) if fn is grouped else (4, 4)
            q, k, v = (
                torch.randn(2, h, n, 64, device="cuda").to(dtype)
                for h, n in ((heads, rows), (groups, keys), (groups, keys))
            )
            compiled = fuselens.compile(fn)
            with torch.no_grad():
                found, eager, exact = compiled(q, k, v), fn(q, k, v), fn(q.float(), k.float(), v.float())
            assert "attention" in [k.kind for k in compiled.__fuselens__.recorder.report.kernels]
            worst, eagers = ((t.float() - exact).abs().max().item() for t in (found, eager))
            assert worst <= max(2 * eagers, 1e-2), (rows, keys, dtype)
