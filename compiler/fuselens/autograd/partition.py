"""Splitting a joint graph into forward and backward, choosing what to save between them.

What the backward needs of the forward is either saved (memory held from forward to backward) or recomputed. The choice
is a minimum cut: every forward value is an edge whose capacity is its bytes, operators that must not run twice are tied
to the source, operators that depend on tangents to the sink; the cut edges are the saved values. Inputs cost nothing:
they are alive anyway. The cut is exact on integers (``min_cut``).

Rules, in the words of the decisions:

- matmuls, convolutions, attention, reductions, scatters, sorts, draws from generators and whatever else does not become
  loops are not repeated; pointwise work, views, casts and index expressions are, because they fuse into the kernel that
  reads them;
- a value that both a forward and a backward vendor call read is saved: it exists in memory already, and recomputing it
  would need a kernel of its own (at ``memory_budget=1``);
- symbolic sizes are always passed on, as integers; other numbers are computed from them again;
- of a checkpoint region (``torch.utils.checkpoint``) nothing is saved but what it reads and what leaves it;
- ``memory_budget`` b < 1 lowers the bytes saved to b × the default choice where it can, by allowing more operators to
  run twice, those first that give most bytes for their work. Draws from generators are never repeated.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.record.report import Decision

from ..ir.collectives import communicates
from ..ir.contracts.signature import SavedValue, Signature
from . import min_cut
from .joint import Joint
from .tracing.views import is_view

aten = torch.ops.aten

# Operators that run as a call of their own: their operands and results are in memory.
_EXTERNS = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "addbmm", "convolution", "convolution_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
    "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
    "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "upsample_bilinear2d", "_fft_r2c", "_fft_c2r", "_fft_c2c", "attention",
})  # fmt: skip
_REDUCTIONS = frozenset({
    "sum", "mean", "prod", "amax", "amin", "any", "all", "var", "var_mean", "argmax", "argmin", "cumsum", "cumprod",
    "max", "min", "sort", "topk", "logcumsumexp", "cummax", "cummin", "linalg_vector_norm", "median", "kthvalue",
})  # fmt: skip
_SCATTERS = frozenset({
    "scatter", "scatter_add", "scatter_reduce", "index_put", "_unsafe_index_put", "index_add",
    "embedding_dense_backward",
})  # fmt: skip


@dataclass
class Partition:
    """Forward: inputs → results + extra saved values. Backward: saved (in order) + tangents → gradients."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    saved: list[SavedValue]
    decisions: list[Decision]
    signature: Signature
    bytes_saved: int = 0
    recomputed: list[str] = field(default_factory=list)

    def passed(self) -> list[tuple[fx.Node, fx.Node]]:
        """Values that the forward graph makes for the backward graph alone, with the placeholders that receive them."""
        returned = next(n for n in reversed(self.forward.graph.nodes) if n.op == "output").args[0]
        received = (n for n in self.backward.graph.nodes if n.op == "placeholder")
        return [(returned[s.index], n) for s, n in zip(self.saved, received, strict=False) if s.source == "extra"]  # type: ignore[index]


def forward_only(joint: Joint) -> fx.GraphModule:
    """The graph of a joint without backward: inputs → results."""
    if joint.training:
        raise ValueError("the joint graph has a backward: partition it")
    return joint.module


def partition(
    joint: Joint, *, memory_budget: float = 1.0, fuses: Callable[[Any], bool] = lambda target: True
) -> Partition:
    """Forward and backward graphs of a joint graph that has gradients. ``fuses``: whether an operator becomes loops."""
    if not joint.training:
        raise ValueError("the joint graph has no backward: use forward_only")
    if not 0.0 <= memory_budget <= 1.0:
        raise ValueError(f"memory_budget is {memory_budget}, not between 0 and 1")
    _keep_old_values(joint)
    cut = _Cut(joint, fuses)
    chosen = cut.choose(memory_budget)
    return _split(joint, cut, chosen)


def _keep_old_values(joint: Joint) -> None:
    """Inputs that are overwritten after the forward are copied first where the backward may read them.

    The copy is an ordinary value (it costs bytes in the cut), and dies with it when nothing saves it.
    """
    graph = joint.graph
    for i in joint.signature.not_saved:
        node = joint.inputs[i]
        if not node.users:
            continue
        with graph.inserting_after(list(joint.inputs + joint.tangents)[-1]):
            copy = graph.call_function(aten.clone.default, (node,))
        copy.meta.update({k: v for k, v in node.meta.items() if k != "captured"}, old_value=True)
        results = set(map(id, joint.results))
        for user in list(node.users):
            if user is not copy and user.op != "output" and id(user) not in results and _needed_later(user):
                user.replace_input_with(node, copy)
        if not copy.users:
            graph.erase_node(copy)


def _needed_later(node: fx.Node) -> bool:
    """Whether a backward operator depends on ``node``."""
    stack, seen = [node], {node}
    while stack:
        n = stack.pop()
        if n.meta.get("backward"):
            return True
        for user in n.users:
            if user not in seen:
                seen.add(user)
                stack.append(user)
    return False


@dataclass
class _Choice:
    saved: list[fx.Node]  # in graph order
    bytes: int


class _Cut:
    """The flow network of one joint graph and its solutions."""

    def __init__(self, joint: Joint, fuses: Callable[[Any], bool]) -> None:
        self.joint = joint
        self.fuses = fuses
        self.nodes = list(joint.graph.nodes)
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.inputs = set(joint.inputs)
        self.overwritten = {joint.inputs[i] for i in joint.signature.not_saved}
        self.results = {r for r in joint.results if isinstance(r, fx.Node)}
        self.backward = self._tangent_dependent()
        self.forward = self._ancestors([r for r in joint.results if isinstance(r, fx.Node)])
        self.needed = self._needed()
        self.kept = {self._in_memory(n) for n in self.nodes if n.meta.get("kept")}
        self.leaving = {n for n in self.nodes if "region" in n.meta and self._leaves_region(n)}
        self.reasons: dict[fx.Node, str] = {}
        self.banned = self._banned()

    def _tangent_dependent(self) -> set[fx.Node]:
        found = set(self.joint.tangents)
        for node in self.nodes:
            if node.op != "output" and any(a in found for a in node.all_input_nodes):
                found.add(node)
        return found

    def _ancestors(self, roots: list[fx.Node]) -> set[fx.Node]:
        found: set[fx.Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in found:
                found.add(node)
                stack += node.all_input_nodes
        return found

    def _needed(self) -> set[fx.Node]:
        """Values that do not depend on tangents, and that the backward reads or is computed from."""
        roots = [a for n in self.backward for a in n.all_input_nodes if a not in self.backward]
        roots += [g for g in self.joint.gradients if g not in self.backward]
        return self._ancestors(roots)

    def _leaves_region(self, node: fx.Node) -> bool:
        """Whether the memory of a checkpointed value is read by the forward outside of its checkpoint."""
        if is_view(node):
            return False  # its base does
        inside = node.meta["region"]
        stack = [node]
        while stack:
            value = stack.pop()
            if value in self.results:
                return True
            for user in value.users:
                if user in self.forward and user.meta.get("region") != inside:
                    return True
                if is_view(user):
                    stack.append(user)
        return False

    def _in_memory(self, node: fx.Node) -> fx.Node:
        """What has the memory of a view that a policy saves, as eager keeps it alive: a view itself is made again."""
        while is_view(node) and self._view_has_base(node):
            node = node.all_input_nodes[0]
        return node

    def _banned(self) -> set[fx.Node]:
        banned: set[fx.Node] = set()
        for node in self.nodes:
            if node not in self.needed or node in self.inputs or node.op == "get_attr":
                continue
            reason = self._ban_reason(node)
            if reason:
                banned.add(node)
                self.reasons[node] = reason
        return banned

    def _ban_reason(self, node: fx.Node) -> str:
        if is_number(node):
            return "" if _is_computed(node) else "a size that the backward needs"
        if "draws" in node.meta:
            return "from the seed the backward computes the random numbers again"
        if _is_random(node):
            return "random numbers are drawn once, so that forward and backward agree"
        if node.meta.get("old_value"):
            return "the input is overwritten, the backward reads its old value"
        if node in self.leaving:
            return "it leaves a checkpoint: kept, as the operands of the next one are"
        if node in self.kept:
            return "the checkpoint's policy saves it"
        if "region" in node.meta:
            return ""
        if self._finds_extrema(node):
            return "its elements were compared as the forward rounds them"
        if node not in self.forward:
            return ""  # computed once, before the backward or in it
        name = packet(node)
        if name in _REDUCTIONS:
            return f"{name} is a reduction: small to keep, a pass over its operand to repeat"
        if name in _SCATTERS or self._is_extern(node):
            return f"{name} is not computed twice"
        if node.op == "call_function" and not isinstance(node.target, torch_private.OpOverload):
            return "" if node.target is operator.getitem else "not an ATen operator"
        if not is_view(node) and node in self.forward and self._in_memory_anyway(node):
            return "a vendor call reads it in forward and in backward: it is in memory already"
        return ""

    def _finds_extrema(self, node: fx.Node) -> bool:
        """Whether the node says which elements are the largest, or the smallest, of values in half precision. What makes these anew may
        round elsewhere, and then none of them is."""
        if packet(node) != "eq" or len(operands := [_viewed(a) for a in node.all_input_nodes]) != 2:
            return False
        for value, extremum in (operands, operands[::-1]):
            if (
                packet(extremum) in ("amax", "amin")
                and value not in self.inputs
                and _viewed(extremum.all_input_nodes[0]) is value
            ):
                return value.meta["val"].dtype in (torch.bfloat16, torch.float16)
        return False

    def _in_memory_anyway(self, node: fx.Node) -> bool:
        forward = backward = False
        for user in _through_views(node):
            if self._is_extern(user):
                if user in self.backward:
                    backward = True
                elif user in self.forward:
                    forward = True
        return forward and backward

    def _is_extern(self, node: fx.Node) -> bool:
        """Whether the node runs as a call of its own."""
        if not isinstance(node.target, torch_private.OpOverload) or is_number(node):
            return False
        return packet(node) in _EXTERNS or not (is_view(node) or self.fuses(node.target))

    # --- solutions

    def choose(self, budget: float) -> _Choice:
        best = self.solve(self.banned)
        if budget >= 1.0 or best.bytes == 0:
            return best
        limit = int(budget * best.bytes)
        free = sorted(
            (n for n in self.banned if not is_number(n) and not _is_random(n) and not n.meta.get("old_value")),
            key=lambda n: (_work(n) / max(1, _bytes_of(n)), self.order[n]),
        )
        low, high = 0, len(free)  # fewest operators allowed to run twice so that the limit is met
        solutions = {0: best}
        while low < high:
            middle = (low + high) // 2
            solutions[middle] = self.solve(self.banned - set(free[:middle]))
            if solutions[middle].bytes <= limit:
                high = middle
            else:
                low = middle + 1
        if low not in solutions:
            solutions[low] = self.solve(self.banned - set(free[:low]))
        return solutions[low]

    def solve(self, banned: set[fx.Node]) -> _Choice:
        """The minimum cut with ``banned`` operators computed in the forward only."""
        starts = [(min_cut.SOURCE, first, min_cut.INFINITE) for n, first in self._first.items() if n in banned]
        beyond = min_cut.sink_side(self._edges + starts, 2 + 2 * len(self._first))
        return self._finish([n for n, first in self._first.items() if not beyond[first] and beyond[first + 1]])

    @cached_property
    def _first(self) -> dict[fx.Node, int]:
        """The nodes that may be saved, each with the first of its two vertices: between them is what saving costs."""
        free = self.inputs - self.overwritten  # can be read again
        wanted = [n for n in self.nodes if n in self.needed and n not in free and n.op != "get_attr"]
        return {n: 2 + 2 * i for i, n in enumerate(wanted)}

    @cached_property
    def _edges(self) -> list[tuple[int, int, float]]:
        """The flow network, but for what is banned."""
        gradients = set(self.joint.gradients)
        edges: list[tuple[int, int, float]] = []
        for node, first in self._first.items():
            capacity = self._capacity(node)
            edges.append((first, first + 1, min_cut.INFINITE if capacity is None else capacity))
            if node in self.inputs:
                edges.append((min_cut.SOURCE, first, min_cut.INFINITE))
            readers = [self._first[u] if u in self.needed else min_cut.SINK
                       for u in node.users if u in self.needed or u in self.backward]  # fmt: skip
            edges += [(first + 1, r, min_cut.INFINITE) for r in readers]
            if node in gradients:
                edges.append((first + 1, min_cut.SINK, min_cut.INFINITE))
        return edges

    def _capacity(self, node: fx.Node) -> int | None:
        """What saving ``node`` costs; None where it cannot be saved itself (its source can).

        Bytes, times four, or times five where the forward must write the value for this purpose alone: of two values
        of about the same size the one that is in memory anyway is saved. A sum of several such values is worth writing: the
        sums of a residual stream, one upon the other, would each be computed from all that was added so far.
        """
        if is_number(node):
            return None if _is_computed(node) else 1
        if not isinstance(node.meta.get("val"), torch.Tensor) or (is_view(node) and self._view_has_base(node)):
            return None
        if "region" in node.meta and node not in self.banned:
            return None  # the program asks for it to be computed again; what is banned cannot be, so it can be saved
        written = (
            self._is_extern(node)
            or node in self.results
            or any(self._is_extern(u) and u in self.forward for u in _through_views(node))
            or node in self._joints
        )
        return max(1, _bytes_of(node)) * (4 if written else 5)

    @cached_property
    def _joints(self) -> set[fx.Node]:
        """Values of the forward that are computed, element by element, from more values in memory than any operand is."""
        found: set[fx.Node] = set()
        sources: dict[fx.Node, int] = {}  # sets of nodes, as bits
        for node in self.nodes:
            value = node.meta.get("val")
            if node in self.inputs or not isinstance(value, torch.Tensor):
                continue
            if node in self.banned or self._is_extern(node):
                sources[node] = 1 << self.order[node]
                continue
            size = _bytes_of(node) // value.dtype.itemsize
            operands = [sources[a] for a in node.all_input_nodes
                        if a in sources and _bytes_of(a) // a.meta["val"].dtype.itemsize == size]  # fmt: skip
            sources[node] = functools.reduce(operator.or_, operands, 0)
            if sources[node].bit_count() > 1 and sources[node] not in operands:
                found.add(node)
        return found

    def _view_has_base(self, node: fx.Node) -> bool:
        base = node.args[0]
        return isinstance(base, fx.Node)

    def _finish(self, cut: list[fx.Node]) -> _Choice:
        """The cut, plus the inputs that the backward reads directly or recomputes from."""
        saved = set(cut)
        stack = [a for n in self.backward for a in n.all_input_nodes if a not in self.backward]
        stack += [g for g in self.joint.gradients if g not in self.backward]
        seen: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in seen or node in saved:
                continue
            seen.add(node)
            if node in self.inputs:
                saved.add(node)
            stack += node.all_input_nodes
        ordered = sorted(saved & self._reached(saved), key=self.order.__getitem__)
        return _Choice(ordered, sum(_bytes_of(n) for n in ordered if n not in self.inputs and not is_number(n)))

    def _reached(self, saved: set[fx.Node]) -> set[fx.Node]:
        """The saved values that the backward really reads."""
        used: set[fx.Node] = set()
        stack = [a for n in self.backward for a in n.all_input_nodes if a not in self.backward]
        stack += [g for g in self.joint.gradients if g not in self.backward]
        seen: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in saved:
                used.add(node)
            else:
                stack += node.all_input_nodes
        return used


# --- building the two graphs


def _split(joint: Joint, cut: _Cut, choice: _Choice) -> Partition:
    numbers = [n for n in choice.saved if is_number(n)]
    tensors = [n for n in choice.saved if not is_number(n)]
    tensors.sort(key=lambda n: n not in joint.inputs or n in cut.overwritten)  # inputs that stay as they are first
    ordered = tensors + numbers
    forward, saved = _forward_graph(joint, cut, ordered)
    backward, recomputed = _backward_graph(joint, cut, ordered)
    readers = _readers(backward.graph, len(saved))
    saved = [replace(s, tangents=bits) for s, bits in zip(saved, readers, strict=True)]
    decisions = [
        Decision(
            "FL310", "saved", s.name, s.reason, s.span,
            {"bytes": s.bytes, "source": s.source, "shape": _shape_text(n)},
        )
        for s, n in zip(saved, ordered, strict=True)
    ]  # fmt: skip
    decisions += [
        Decision(
            "FL311", "recomputed", n.name, "cheap, and fuses into the backward kernels that read it",
            n.meta.get("span"), {"bytes": _bytes_of(n), "shape": _shape_text(n)},
        )
        for n in recomputed if n in cut.forward and not is_view(n) and n.op == "call_function"
    ]  # fmt: skip
    return Partition(forward, backward, saved, decisions, joint.signature, choice.bytes, [n.name for n in recomputed])


def _forward_graph(joint: Joint, cut: _Cut, saved: list[fx.Node]) -> tuple[fx.GraphModule, list[SavedValue]]:
    results = joint.results
    position = {n: i for i, n in reversed(list(enumerate(results))) if isinstance(n, fx.Node)}
    roots = [r for r in results if isinstance(r, fx.Node)] + [n for n in saved if n not in cut.inputs]
    wanted = cut._ancestors(roots) | {n for n in cut.nodes if _runs_unused(n) and n not in cut.backward}
    wanted |= cut._ancestors(list(wanted))
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in cut.nodes:
        if node in cut.inputs or (node in wanted and node.op != "output"):
            env[node] = _copied(graph, node, env)
    values: list[SavedValue] = []
    extra: list[fx.Node] = []
    input_index = {n: i for i, n in enumerate(joint.inputs)}
    for node in saved:
        span = node.meta.get("span")
        size = 0 if node in cut.inputs or is_number(node) else _bytes_of(node)
        tensor = not is_number(node)
        if node in input_index and node not in cut.overwritten:
            reason = "an input: alive anyway"
            values.append(SavedValue(node.name, 0, span, reason, "input", input_index[node], tensor))
            continue
        made_by: Any = node.args[0] if node.target is operator.getitem else node
        reason = cut.reasons.get(made_by) or "fewest bytes from which the backward can be recomputed"
        if node in position:
            values.append(SavedValue(node.name, size, span, reason, "result", position[node], tensor))
        else:
            extra.append(node)
            values.append(SavedValue(node.name, size, span, reason, "extra", len(results) + len(extra) - 1, tensor))
    outputs = [env[r] if isinstance(r, fx.Node) else r for r in results]
    for node in extra:
        outputs.append(env[node])
        if node in cut.overwritten:  # the backward reads its old value
            outputs[-1] = graph.call_function(torch.ops.aten.clone.default, (env[node],))
            outputs[-1].meta.update(node.meta)
    graph.output(tuple(outputs))
    return torch_private.graph_module(joint.root, graph), values


def _backward_graph(joint: Joint, cut: _Cut, saved: list[fx.Node]) -> tuple[fx.GraphModule, list[fx.Node]]:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in [*saved, *joint.tangents]:
        made = graph.placeholder(node.name)
        made.meta.update(node.meta)
        env[node] = made
    needed: set[fx.Node] = set()
    stack = list(joint.gradients)
    while stack:
        node = stack.pop()
        if node not in needed and node not in env:
            needed.add(node)
            stack += node.all_input_nodes
    recomputed = []
    for node in _late(cut, needed):
        env[node] = _copied(graph, node, env)
        if node in cut.forward or not node.meta.get("backward"):
            env[node].meta.update(backward=True, recomputed=True, forward_node=node.meta.get("captured"))
            recomputed.append(node)
    graph.output(tuple(env[g] for g in joint.gradients))
    return torch_private.graph_module(joint.root, graph), recomputed


def _readers(graph: fx.Graph, saved: int) -> list[int]:
    """For each saved value, the tangents (bits) of the backward nodes that depend on it and on tangents, but on no such node."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    bits = {n: 1 << i for i, n in enumerate(placeholders[saved:])}
    for node in graph.nodes:
        for given in node.all_input_nodes:
            bits[node] = bits.get(node, 0) | bits.get(given, 0)
    readers: dict[fx.Node, int] = {}
    for node in reversed(graph.nodes):
        if node.op != "output":
            readers[node] = functools.reduce(operator.or_, (bits.get(u) or readers.get(u, 0) for u in node.users), 0)
    return [readers[n] for n in placeholders[:saved]]


def _late(cut: _Cut, needed: set[fx.Node]) -> Iterator[fx.Node]:
    """``needed`` in an order in which what does not depend on tangents comes just before its first reader."""
    done: set[fx.Node] = set()
    for node in cut.nodes:
        if node not in needed or node not in cut.backward:
            continue
        stack = [node]
        while stack:
            wanted = stack[-1]
            missing = [a for a in wanted.all_input_nodes if a in needed and a not in done]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if wanted not in done:
                done.add(wanted)
                yield wanted
    yield from (n for n in cut.nodes if n in needed and n not in done)  # gradients that do not depend on tangents


def _copied(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> fx.Node:
    if node.op == "placeholder":
        made = graph.placeholder(node.name)
        made.meta.update(node.meta)
        return made
    return graph.node_copy(node, env.__getitem__)


# --- facts about nodes


def packet(node: fx.Node) -> str:
    """The ATen packet name ("mm") of a node, or ""."""
    found = getattr(node.target, "overloadpacket", None)
    return "" if found is None else found.__name__


def is_number(node: fx.Node) -> bool:
    """Whether the node's value is a (symbolic) Python number."""
    value = node.meta.get("val")
    return torch_private.is_symbolic_number(value) or isinstance(value, (int, float))


def _runs_unused(node: fx.Node) -> bool:
    """Whether the forward computes the node even when nothing reads it: eager draws its numbers, checks values, or other ranks
    take part."""
    return bool(node.meta.get("random") or node.meta.get("check")) or communicates(node.target)


def _is_computed(node: fx.Node) -> bool:
    """Whether the node is a number that is computed from numbers: kernels compute it where they need it, from the symbols in
    it. Passed on by itself, as ``n + 1``, it would not say what ``n`` is."""
    if isinstance(node.meta["val"], (float, torch.SymFloat)):
        return True
    return bool(node.all_input_nodes) and all(is_number(n) for n in node.all_input_nodes)


def _viewed(node: fx.Node) -> fx.Node:
    """What a node is a view of, in the end."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def _through_views(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    stack = list(node.users)
    while stack:
        user = stack.pop()
        if is_view(user):
            stack += list(user.users)
        else:
            found.append(user)
    return found


def _hint(size: Any) -> int:
    return torch_private.size_hint(size)


def _is_random(node: fx.Node) -> bool:
    """Whether a node draws random numbers, or is one of several results of such a node."""
    return bool((node.all_input_nodes[0] if node.target is operator.getitem else node).meta.get("random"))


def _bytes_of(node: fx.Node) -> int:
    """Bytes of a node's value, symbolic sizes at their hints. Tuples count all their tensors."""
    value = node.meta.get("val")
    tensors = [v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor)]
    total = 0
    for t in tensors:
        count = t.dtype.itemsize
        for size in t.shape:
            count *= _hint(size)
        total += count
    return total


def _work(node: fx.Node) -> float:
    """A rough count of operations, to rank what is cheap to repeat: exact for matmuls, elements otherwise."""
    operands = [a.meta.get("val") for a in node.all_input_nodes]
    shapes = [[_hint(s) for s in v.shape] for v in operands if isinstance(v, torch.Tensor)]
    value = node.meta.get("val")
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    out = 1
    if isinstance(first, torch.Tensor):
        for s in first.shape:
            out *= _hint(s)
    name = packet(node)
    if name in ("mm", "bmm", "addmm", "baddbmm") and shapes:
        return 2.0 * out * (shapes[-1][-2] if len(shapes[-1]) > 1 else 1)
    if name == "convolution" and len(shapes) > 1:
        per = 1
        for s in shapes[1][1:]:
            per *= s
        return 2.0 * out * per
    if name in _EXTERNS:
        return 64.0 * max([out, *map(_product, shapes)])
    return float(max([out, *map(_product, shapes)])) if shapes else float(out)


def _product(shape: list[int]) -> int:
    count = 1
    for s in shape:
        count *= s
    return count


def _shape_text(node: fx.Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(str(s) for s in value.shape)}]"
    return type(value).__name__
