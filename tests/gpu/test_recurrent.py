"""Recurrent nets on a real GPU: one launch has all steps, and gives what torch's modules give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuselens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
KINDS: dict[str, Any] = {
    "lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}  # fmt: skip
ALLOWED = {torch.float32: 3e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    torch.manual_seed(0)


def _flat(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [t for v in value for t in _flat(v)]


def _equal(net: nn.Module, *args: Any, mode: str = "default") -> Any:
    """The report, after two calls that agree with eager ones."""
    compiled = fuselens.compile(net, mode=mode)
    with torch.no_grad():
        for _ in range(3):
            found = _flat(compiled(*args))
            with torch.backends.cudnn.flags(allow_tf32=False):
                expected = _flat(net(*args))
            for a, b in zip(found, expected, strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype
                assert (a.float() - b.float()).norm() <= ALLOWED[a.dtype] * b.float().norm()
        return fuselens.explain(net)(*args)


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("layers", "two_ways", "batch_first", "bias", "sizes"),
    [
        (3, False, True, True, (5, 33, 20, 100)),
        (1, True, False, True, (70, 20, 20, 300)),
        (2, True, True, False, (3, 16, 7, 32)),
        (2, False, False, True, (64, 24, 48, 256)),
        (1, False, True, True, (1, 9, 4, 5)),
    ],
)
def test_as_torch(
    kind: str, dtype: torch.dtype, layers: int, two_ways: bool, batch_first: bool, bias: bool, sizes: tuple[int, ...]
) -> None:
    batch, steps, wide, hidden = sizes
    net = KINDS[kind](wide, hidden, layers, bias=bias, batch_first=batch_first, bidirectional=two_ways)
    net = net.cuda().to(dtype).requires_grad_(False)
    shape = (batch, steps, wide) if batch_first else (steps, batch, wide)
    h = torch.randn(layers * (1 + two_ways), batch, hidden, device="cuda", dtype=dtype)
    state = (h, h.flip(0)) if kind == "lstm" else h
    report = _equal(net, torch.randn(shape, device="cuda", dtype=dtype), state)
    assert any("fuselens.recurrent" in e for g in report.graphs for e in g.externs)


def test_in_a_net_and_recorded() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.net, self.out = (
                nn.Embedding(50, 16),
                nn.LSTM(16, 64, 2, batch_first=True),
                nn.Linear(64, 5),
            )

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.net(self.words(ids))[0]).relu()

    net = Tagger().cuda().requires_grad_(False)
    ids = torch.randint(50, (8, 30), device="cuda")
    for mode in ("default", "reduce-overhead"):
        _equal(net, ids, mode=mode)


def test_exact_where_single_precision_is_to_be() -> None:
    net, x = nn.LSTM(16, 64).cuda().requires_grad_(False), torch.randn(20, 4, 16, device="cuda")
    with torch.backends.cudnn.flags(allow_tf32=False), torch.no_grad():
        assert torch.equal(fuselens.compile(net)(x)[0], net(x)[0])


def test_what_a_backward_needs_is_the_vendors() -> None:
    net = nn.GRU(8, 16, 2).cuda()
    x = torch.randn(10, 3, 8, device="cuda", requires_grad=True)
    compiled = fuselens.compile(net)
    found = torch.autograd.grad(compiled(x)[0].sum(), [x, *net.parameters()])
    expected = torch.autograd.grad(net(x)[0].sum(), [x, *net.parameters()])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_wider_than_a_card() -> None:
    net = nn.LSTM(16, 6000).cuda().requires_grad_(False)
    _equal(net, torch.randn(9, 2, 16, device="cuda"))
