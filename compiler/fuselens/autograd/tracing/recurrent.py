"""Recurrent nets: on a GPU, in inference, as one operator whose steps are one launch of ours, and in training layer by layer.

The vendor's library launches two kernels for each step of each layer, which is most of what small nets take. Torch's rules in Python,
which symbolic sizes need, leave out the dropout between layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fuselens import torch_private
from fuselens.ir.recurrent import LSTM, RECURRENT

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_STEPS = 8  # from which on launches are worth saving


def all_steps(kind: int, *args: Any, **kwargs: Any) -> Any:
    """What ``torch.lstm`` and its like return, by our operator; None where they are better called, or a backward follows."""
    if kwargs or len(args) != 9 or not isinstance(args[2], (list, tuple)):  # packed sequences have other arguments
        return None
    x, state, weights, bias, layers, dropout, train, two_ways, batch_first = args
    h0, c0 = state if kind == LSTM else (state, None)
    given = [t for t in (x, h0, c0, *weights) if t is not None]
    if not all(isinstance(t, Tensor) for t in given) or x.dim() != 3 or (dropout and train):
        return None
    if torch.is_autocast_enabled("cuda") or (torch.is_grad_enabled() and any(t.requires_grad for t in given)):
        return None
    if x.dtype not in _DTYPES or any(t.dtype != x.dtype for t in given):
        return None
    ways = 2 if two_ways else 1
    projects = len(weights) != (4 if bias else 2) * layers * ways
    if projects or torch_private.size_hint(x.shape[1 if batch_first else 0]) < _STEPS:
        return None
    out, h, c = RECURRENT(x, weights, h0, c0, kind, layers, batch_first, ways)
    return (out, h) if c0 is None else (out, h, c)


def layer_by_layer(kind: int, function: Any, *args: Any, **kwargs: Any) -> Any:
    """What ``torch.lstm`` and its like return with dropout, by calls of one layer each; None where torch's rules make the whole."""
    if kwargs or len(args) != 9 or not torch_private.follows_python_rules():
        return None
    x, state, weights, bias, layers, dropout, train, two_ways, batch_first = args
    if not dropout or not train or layers < 2 or not isinstance(weights, (list, tuple)):
        return None
    x = x.transpose(0, 1) if batch_first else x
    ways, each = 2 if two_ways else 1, len(weights) // layers
    ends = []
    for layer in range(layers):
        own = [t[layer * ways : (layer + 1) * ways] for t in (state if kind == LSTM else [state])]
        begin = own if kind == LSTM else own[0]
        of_layer = weights[layer * each : (layer + 1) * each]
        x, *end = function(x, begin, of_layer, bias, 1, 0.0, train, two_ways, False)
        ends.append(end)
        x = torch.dropout(x, dropout, True) if layer < layers - 1 else x
    return (x.transpose(0, 1) if batch_first else x, *(torch.cat(parts) for parts in zip(*ends, strict=True)))
