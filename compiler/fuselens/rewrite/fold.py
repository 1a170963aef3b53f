"""Constants in place of what a graph makes anew in each call, of nothing but numbers, with kernels of its own: the masks of shifted
windows, tables of positions. What loops compute where it is read, as a comparison of two ranges, stays: that is cheaper than memory."""

from __future__ import annotations

import torch
from torch import fx

from fuselens import torch_private
from fuselens.ir.graphs.known_values import is_known_from, known_value
from fuselens.torch_private.result_layouts import is_dense

from .constants import constant

_OWN_KERNELS = frozenset({
    "slice_scatter", "select_scatter", "index_put", "_unsafe_index_put", "scatter", "cat", "constant_pad_nd", "index", "roll",
    "cumsum", "sort", "flip", "gather",
})  # fmt: skip
_MOST_BYTES = 4 << 20
_MOST_NODES = 1024
_LEAST_NODES = 4


def fold(graph: fx.Graph, root: torch.nn.Module) -> int:
    """Rewrites a functional ATen graph in place, whose constants ``root`` holds; how many values became such."""
    depth: dict[fx.Node, int] = {}  # of known values: how many nodes make them, at most
    heavy: set[fx.Node] = set()
    for node in graph.nodes:
        if is_known_from(node) and all(n in depth for n in node.all_input_nodes):
            depth[node] = 1 + sum(depth[n] for n in node.all_input_nodes)
            if _packet(node) in _OWN_KERNELS or any(n in heavy for n in node.all_input_nodes):
                heavy.add(node)
    ends = dict.fromkeys(
        _source(node) for node in heavy if any(u not in depth and u.op != "output" for u in node.users)
    )
    wanted = [n for n in ends if n in heavy and depth[n] >= _LEAST_NODES and not any(u.op == "output" for u in n.users)]
    values: dict[fx.Node, torch.Tensor] = {}
    folded = 0
    with torch_private.real_tensors(), torch.no_grad():
        for node in wanted:
            fake = node.meta["val"]
            if fake.numel() * fake.dtype.itemsize > _MOST_BYTES or not is_dense(fake):
                continue
            value = known_value(node, _MOST_NODES, values)
            if value is None or value.shape != fake.shape or value.dtype != fake.dtype:
                continue
            laid = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device).copy_(value)
            made = constant(root, node, laid)
            made.meta = {k: v for k, v in node.meta.items() if k in ("span", "stack", "captured", "val")}
            values[made] = value
            node.replace_all_uses_with(made)
            folded += 1
    if folded:
        graph.eliminate_dead_code()
    return folded


def _source(node: fx.Node) -> fx.Node:
    """What a view looks at, in the end."""
    while torch_private.shares_memory(node.target) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _packet(node: fx.Node) -> str:
    return str(node.target).partition(".")[2].partition(".")[0]
