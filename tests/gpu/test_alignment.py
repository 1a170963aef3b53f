"""Products of sizes that no aligned row has: padded where that was measured faster. Results and gradients are eager's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fuselens

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "summed", "columns"), [(4096, 4093, 4093), (1000, 250, 1023), (33, 4093, 64)])
def test_agrees_with_eager(rows: int, summed: int, columns: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(summed, columns), nn.Tanh()).to("cuda", dtype)
    compiled = fuselens.compile(net, fullgraph=True)
    given = [torch.randn(rows, summed, device="cuda", dtype=dtype).requires_grad_() for _ in range(1)] * 2
    wanted, found = net(given[0]), compiled(given[1])
    assert found.stride() == wanted.stride()
    cotangent = torch.randn_like(wanted)
    expected, actual = (torch.autograd.grad(out, [given[0], *net.parameters()], cotangent) for out in (wanted, found))
    for a, b in zip((found, *actual), (wanted, *expected), strict=True):
        assert a.stride() == b.stride()
        assert (a.float() - b.float()).norm() <= 2e-2 * b.float().norm()


def test_it_is_said_where_it_pays() -> None:
    x, w = torch.randn(4096, 4093, device="cuda").half(), torch.randn(4093, 4093, device="cuda").half()
    (graph,) = fuselens.explain(lambda x, w: x @ w)(x, w).graphs
    assert "padded" in [d.verdict for d in graph.decisions if d.code == "FL415"]
