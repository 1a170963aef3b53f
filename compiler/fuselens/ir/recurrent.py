"""``fuselens::recurrent``: torch's recurrent nets on a GPU, of which all steps are one launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RELU, TANH, LSTM, GRU = range(4)  # as the vendor's library numbers them


def vendors(
    x: Tensor,
    weights: Sequence[Tensor],
    h0: Tensor,
    c0: Tensor | None,
    kind: int,
    layers: int,
    batch_first: bool,
    ways: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator means, by the vendor's library."""
    each = len(weights) // (layers * ways)
    out, h, c, *_ = torch.ops.aten._cudnn_rnn.default(
        x, weights, each, None, h0, c0, kind, h0.shape[-1], 0, layers, batch_first, 0.0, False, ways == 2, [], None
    )
    return out.contiguous(), h, c if c0 is not None else torch.empty_like(h)


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
_library.impl("recurrent", vendors, "CompositeExplicitAutograd")
_library.impl("recurrent", _meta, "Meta")
RECURRENT = torch.ops.fuselens.recurrent.default
