"""``fuselens::recurrent``: torch's recurrent nets in inference, whose steps are one launch on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RELU, TANH, LSTM, GRU = range(4)  # as the vendor's library numbers them
FUNCTIONS = {RELU: torch.rnn_relu, TANH: torch.rnn_tanh, LSTM: torch.lstm, GRU: torch.gru}


def reference(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    layers: int,
    batch_first: bool,
    ways: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states of the last layer, and the last hidden states and cells of all layers, as torch computes them. A net without
    cells has its last hidden states for them."""
    bias = len(weights) > 2 * layers * ways
    state = h0 if c0 is None else (h0, c0)
    out, *ends = FUNCTIONS[kind](x, state, weights, bias, layers, 0.0, False, ways == 2, batch_first)  # pyright: ignore
    return out.contiguous(), ends[0], ends[-1] if c0 is not None else ends[0].clone()


def _meta(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    layers: int,
    batch_first: bool,
    ways: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(*x.shape[:2], h0.shape[2] * ways), h0.new_empty(h0.shape), h0.new_empty(h0.shape)


_library = torch.library.Library("fuselens", "FRAGMENT")
_library.define(
    "recurrent(Tensor x, Tensor[] weights, Tensor h0, Tensor? c0, int kind, int layers, bool batch_first, int ways)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.impl("recurrent", reference, "CompositeExplicitAutograd")
_library.impl("recurrent", _meta, "Meta")
RECURRENT = torch.ops.fuselens.recurrent.default
