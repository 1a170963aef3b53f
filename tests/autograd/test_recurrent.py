"""Recurrent nets for a GPU that is not here: one operator in inference, and torch's own steps where a backward follows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fuselens
from fuselens.inputs.structures import tensors_in

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


class Net(nn.Module):
    """With ``norm`` torch's rules in Python hold for the whole graph, whatever its sizes are."""

    def __init__(self, kind: str, norm: bool, packed: bool, **how: Any) -> None:
        super().__init__()
        self.net, self.packed = KINDS[kind](8, 6, 3, dropout=0.4, **how), packed
        self.norm = nn.LayerNorm(8) if norm else nn.Identity()

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        x = self.norm(x)
        if not self.packed:
            return self.net(x)
        out, end = self.net(pack_padded_sequence(x, lengths, enforce_sorted=False))
        return pad_packed_sequence(out)[0], end


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("norm", "packed", "how"),
    [
        (False, False, {}),
        (True, False, {"batch_first": True}),
        (True, False, {"bidirectional": True, "bias": False}),
        (False, True, {}),
    ],
    ids=str,
)
def test_dropout_between_layers(kind: str, norm: bool, packed: bool, how: dict[str, Any], dynamic: bool | None) -> None:
    """Torch's own rules for symbolic sizes leave it out."""
    torch.manual_seed(0)
    net = Net(kind, norm, packed, **how)
    compiled = fuselens.compile(net, dynamic=dynamic, options={"fallback_random": True})
    lengths = torch.tensor([5, 3, 2])
    for length in (5, 6):
        x, found = torch.randn(length, 3, 8), []
        for run in (net, compiled):
            torch.manual_seed(1)
            out = tensors_in(run(x, lengths))
            gradients = torch.autograd.grad(sum(t.sin().sum() for t in out), list(net.parameters()))
            found.append((out, gradients, [t.stride() for t in out], torch.get_rng_state()))
        torch.testing.assert_close(found[1], found[0])
