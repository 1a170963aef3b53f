"""Recurrent nets for a GPU that is not here: one operator in inference, and torch's own steps where a backward follows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fuselens

TARGET = "cuda:sm_90"
KINDS: dict[str, Any] = {
    "lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN, "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}  # fmt: skip


def _operators(net: nn.Module, *args: Any) -> list[str]:
    return [e for g in fuselens.explain(net, target=TARGET)(*args).graphs for e in g.externs]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{"batch_first": True}, {"bidirectional": True, "bias": False}], ids=str)
def test_one_operator_in_inference(kind: str, how: dict[str, Any]) -> None:
    net, x = KINDS[kind](8, 16, 2, **how).requires_grad_(False), torch.randn(9, 12, 8)
    torch.testing.assert_close(fuselens.compile(net, options={"target": TARGET})(x), net(x))
    assert _operators(net, x) == ["fuselens.recurrent.default"]


def test_gradients_are_torchs() -> None:
    net, x = nn.GRU(8, 16), torch.randn(9, 4, 8)
    found, expected = (
        torch.autograd.grad(f(x)[0].sum(), list(net.parameters()))
        for f in (fuselens.compile(net, options={"target": TARGET}), net)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (nn.LSTM(8, 16, proj_size=4), torch.randn(9, 4, 8)),
        (nn.LSTM(8, 16), torch.randn(3, 4, 8)),
        (nn.LSTM(8, 16).double(), torch.randn(9, 4, 8, dtype=torch.float64)),
    ],
    ids=["projected", "few steps", "double"],
)
def test_what_the_operator_is_not_for(net: nn.Module, x: Tensor) -> None:
    net = net.requires_grad_(False)
    torch.testing.assert_close(fuselens.compile(net, options={"target": TARGET})(x), net(x))
    assert not any("recurrent" in e for e in _operators(net, x))


def test_packed_sequences() -> None:
    net = nn.LSTM(8, 16).requires_grad_(False)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(12, 3, 8), torch.tensor([12, 9, 4]))
    compiled = fuselens.compile(net, options={"target": TARGET})
    torch.testing.assert_close(compiled(packed)[0].data, net(packed)[0].data)
