"""Recurrent nets on a GPU, in inference, as one operator whose steps are one launch of ours.

The vendor's library launches two kernels for each step of each layer, which is most of what small nets take.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.ir.recurrent import LSTM, RECURRENT
from fuselens.record.report import Decision

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_STEPS = 8  # from which on launches are worth saving
_RESULTS = 3  # of the vendor's operator, that ours has: hidden states, the last of them, and the last cells


def call_own_recurrent(module: fx.GraphModule) -> list[Decision]:
    """Replaces the vendor's nets of a functional ATen graph, in place, but for those that a backward needs more of."""
    decisions = [
        made
        for n in list(module.graph.nodes)
        if n.target is aten._cudnn_rnn.default and (made := _replace(n)) is not None
    ]
    if decisions:
        module.graph.eliminate_dead_code()
    return decisions


def _replace(node: fx.Node) -> Decision | None:
    given: Any = node.args
    x, weights, _, _, h0, c0, kind, hidden, projected, layers, batch_first, dropout, train, two_ways, sizes, _ = given
    values = [n.meta["val"] for n in (x, h0, *weights)]
    steps = values[0].shape[1 if batch_first else 0]
    steps = torch_private.symint_hint(steps) if isinstance(steps, torch.SymInt) else steps
    used = {u.args[1] for u in node.users if u.target is operator.getitem and u.users}
    most = _RESULTS if kind == LSTM else _RESULTS - 1
    if projected or sizes or (train and dropout) or not used <= set(range(most)) or (steps or 0) < _STEPS:
        return None
    if (
        values[0].device.type != "cuda"
        or any(v.dtype != values[0].dtype for v in values)
        or values[0].dtype not in _DTYPES
    ):
        return None
    graph = node.graph
    with graph.inserting_before(node):
        made = graph.call_function(RECURRENT, (x, weights, h0, c0, kind, layers, batch_first, 2 if two_ways else 1))
    made.meta = {**node.meta, "val": (*node.meta["val"][:2], values[1])}
    for reader in list(node.users):
        if reader.args[1] in used:
            reader.replace_input_with(node, made)
    subject = f"a recurrent net of {layers} layer{'s' * (layers > 1)}, {hidden} wide, {steps} steps"
    return Decision(
        "FL415", "own", subject, "all steps are one launch, and layers run at the same time", node.meta.get("span")
    )
