"""Attention on a GPU that is written out, ``softmax(f(q @ k.T)) @ v``, as one operator for which there is a kernel of ours.

The kernel holds scores in registers, and what the program makes of them, with its masks, is computed as it is needed;
written out, each step of half precision goes through memory. Keys that are repeated for the heads that share them are
read where they are.
"""

from __future__ import annotations

import torch
from torch import fx

from fuselens.ir.attention import OF_SCORES, ROWS, SHARED
from fuselens.ir.attention import WIDTH as WIDEST
from fuselens.record.report import Decision

from .find_attention import Maker, Written, find_attention, operands, remade

aten = torch.ops.aten
_HALVES = (torch.bfloat16, torch.float16)
KEYS, WIDTH = 256, 128  # from which, and up to which, the kernel is the better one
FEW_KEYS = 64  # from which it is for few rows


def call_own_attention(module: fx.GraphModule, device: str | None = None) -> list[Decision]:
    """Replaces what is written out in a functional ATen graph, in place. ``device`` is where it is to run."""
    products = [n for n in module.graph.nodes if n.target is aten.bmm.default]
    on_gpu = [n for n in products if (device or n.meta["val"].device.type) == "cuda"]
    decisions = [made for n in on_gpu if (made := _replace(n))]
    if on_gpu:
        module.graph.eliminate_dead_code()
    return decisions


def _replace(node: fx.Node) -> Decision | None:
    found = find_attention(node)
    value = node.meta["val"]
    if found is None or value.dtype not in (*_HALVES, torch.float32):
        return None
    if found.product.meta["val"].dtype not in (value.dtype, torch.float32):
        return None
    make = Maker(node)
    given = operands(found, make)
    if given is None or not _is_better(found, *given):
        return None
    of = remade(found, make)
    out = make(OF_SCORES, *given, of.product, of.scores, of.sink, found.zero, of.masked)
    node.replace_all_uses_with(make(aten.view.default, out, list(value.shape)))
    _, _, queries, keys = found.shape
    subject = f"attention of {queries} queries and {keys} keys"
    return Decision("FL415", "own", subject, "its scores are never stored", node.meta.get("span"))


def _is_better(found: Written, query: fx.Node, key: fx.Node, value: fx.Node) -> bool:
    _, heads, rows, keys = found.shape
    groups = key.meta["val"].shape[1]
    widest = max(t.meta["val"].shape[3] for t in (query, value))
    half = query.meta["val"].dtype in _HALVES
    if rows <= ROWS and rows * heads // groups <= SHARED:
        return keys >= FEW_KEYS and widest <= WIDEST and (half or groups < heads)
    return half and keys >= KEYS and widest <= WIDTH
