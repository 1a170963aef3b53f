"""``flex_attention``: functions of scores and of masks, what they close over, block masks made inside and outside."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .programs import Program, Programs, t, verify

PROGRAMS = Programs()
case = PROGRAMS.case


def causal(b, h, q, k):
    return q >= k


OUTSIDE = create_block_mask(causal, None, None, 16, 16, device="cpu")


@case(t(1, 2, 16, 8))
def plain(q):
    return flex_attention(q, q, q), flex_attention(q, q, q, scale=0.5)


@case(t(1, 2, 16, 8))
def scores(q):
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.5)


@case(t(1, 2, 16, 8), t(2, seed=1))
def biased(q, bias):
    return flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + bias[h] * (i - j))


@case(t(1, 2, 16, 8))
def block_masks(q):
    inside = create_block_mask(causal, None, None, 16, 16, device="cpu")
    return flex_attention(q, q, q, block_mask=inside), flex_attention(q, q, q, block_mask=OUTSIDE)


@case(t(1, 2, 16, 8), lambda: torch.arange(16) // 5)
def documents(q, doc):
    mask = create_block_mask(lambda b, h, i, j: (doc[i] == doc[j]) & (i >= j), None, None, 16, 16, device="cpu")
    return flex_attention(q, q, q, block_mask=mask)


@case(t(1, 4, 16, 8), t(1, 2, 16, 8, seed=1))
def grouped(q, k):
    return flex_attention(q, k, k, enable_gqa=True), flex_attention(q, k, k, enable_gqa=True, return_lse=True)


@case(t(1, 2, 16, 8), t(1, 3, 16, 8))
def refused(q, k):
    try:
        return flex_attention(q, k, k)
    except ValueError as e:
        return str(e)


@pytest.mark.parametrize("backend", ["eager", "fuselens"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_agrees_with_eager(program: Program, backend: str) -> None:
    verify(program, backend)


def test_it_is_one_graph_in_a_new_process() -> None:
    """Eager imports the peer compiler for the layout of the result."""
    program = """
import sys, torch, fuselens
from torch.nn.attention.flex_attention import flex_attention

def f(q, k):
    return flex_attention(q, k, k, score_mod=lambda s, b, h, i, j: 5 * torch.tanh(s / 5), enable_gqa=True)

k = torch.randn(2, 2, 9, 8)
for q in (torch.randn(2, 4, 5, 8), torch.randn(2, 5, 4, 8).transpose(1, 2), torch.randn(2, 4, 8, 5).mT):
    with torch.no_grad():
        report = fuselens.explain(f)(q, k)
        found = fuselens.compile(f)(q, k)
    assert not report.breaks and len(report.graphs) == 1, report.breaks
    assert "torch._inductor.ir" not in sys.modules
    print(*found.stride(), float(found.sum()))
"""
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.manual_seed(0)\n" + program], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    k = torch.randn(2, 2, 9, 8)
    for line, q in zip(
        done.stdout.splitlines(),
        (torch.randn(2, 4, 5, 8), torch.randn(2, 5, 4, 8).transpose(1, 2), torch.randn(2, 4, 8, 5).mT),
        strict=True,
    ):
        eager = flex_attention(q, k, k, score_mod=lambda s, b, h, i, j: 5 * torch.tanh(s / 5), enable_gqa=True)
        *strides, total = line.split()
        assert tuple(map(int, strides)) == eager.stride()
        assert float(total) == pytest.approx(float(eager.sum()), rel=1e-4, abs=1e-4)
