"""Products whose rows begin where memory is not aligned: padded where that was measured faster, with the values of before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens.rewrite import alignment

aten = torch.ops.aten
Fn = Callable[..., Tensor]


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


CASES: dict[str, tuple[Fn, tuple[Tensor, ...]]] = {
    "linear": (lambda x, w, b: F.linear(x, w, b), (randn(200, 203), randn(301, 203), randn(301))),
    "without bias": (lambda x, w: F.linear(x, w).relu(), (randn(200, 203), randn(304, 203))),
    "both plain": (torch.mm, (randn(200, 208), randn(208, 301))),
    "by columns": (lambda x, w: torch.mm(x.t(), w), (randn(208, 301), randn(208, 200))),
    "both by columns": (lambda x, w: torch.mm(x.t(), w.t()), (randn(203, 301), randn(200, 203))),
    "batches": (torch.bmm, (randn(3, 200, 203), randn(3, 203, 104))),
    "batches by columns": (lambda x, w: torch.bmm(x, w.mT), (randn(3, 200, 201), randn(3, 204, 201))),
}


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of this machine are taken for those of a GPU."""
    monkeypatch.setattr(alignment, "_DEVICE", "cpu")


def padded(fn: Fn, given: tuple[Tensor, ...], seconds: tuple[float, float] | None) -> tuple[fx.GraphModule, list[Any]]:
    module = make_fx(fn, tracing_mode="fake")(*given)
    return module, alignment.pad_products(module, lambda product, device: seconds)


@pytest.mark.parametrize("name", CASES)
def test_values_and_strides_are_the_same(name: str) -> None:
    fn, given = CASES[name]
    module, decisions = padded(fn, given, (2.0, 1.0))
    assert [d.verdict for d in decisions] == ["padded"]
    module.graph.lint()
    module.recompile()
    wanted, found = fn(*given), module(*given)
    assert found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=1e-1)
    for node in module.graph.nodes:
        if node.target in (aten.mm.default, aten.addmm.default, aten.bmm.default):
            for value in (n.meta["val"] for n in node.args[-2:]):
                long = max(value.stride()[-2:])
                assert long * 2 % 16 == 0, value.stride()


@pytest.mark.parametrize("seconds", [None, (1.0, 0.95), (1.0, 3.0)])
def test_what_does_not_pay_stays(seconds: tuple[float, float] | None) -> None:
    assert padded(*CASES["linear"], seconds)[1] == []


@pytest.mark.parametrize(("fn", "given"), [
    (torch.mm, (randn(200, 208), randn(208, 304))), (torch.mm, (randn(20, 13), randn(13, 11))),
    (lambda x, w: torch.mm(x.float(), w.float()), (randn(200, 203), randn(203, 301))),
    (lambda x, w: torch.mm(x[:, ::2], w), (randn(200, 406), randn(203, 301))),
    (lambda x, w, b: torch.addmm(b, x, w), (randn(200, 203), randn(203, 301), randn(200, 301))),
], ids=["aligned", "small", "single precision", "with gaps", "added to a matrix"])  # fmt: skip
def test_what_is_none_of_them_stays(fn: Fn, given: tuple[Tensor, ...]) -> None:
    assert padded(fn, given, (2.0, 1.0))[1] == []
