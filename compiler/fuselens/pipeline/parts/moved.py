"""Steps of a loop that read and write their own part of a tensor, such as ``y[:, t] = f(x[:, t])``. By their numbers no two steps do
the same. Steps do that are given views, which were all taken before the loop, and whose results are all written after it."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ... import torch_private
from .units import computes, is_state

_FEWEST = 4  # writes that become one


def moved(nodes: Sequence[fx.Node], kinds: Mapping[fx.Node, int]) -> tuple[list[fx.Node], list[list[fx.Node]]]:
    """The nodes in an order in which such views follow what they are views of, and such writes come when they are read; and these
    writes, in runs. ``kinds`` are equal for views by the same numbers. No view is taken first of what the graph writes to. Where modes
    change in the graph, which decide whether it has gradients, nothing is moved."""
    if any(map(is_state, nodes)):
        return list(nodes), []
    early, runs = _early(nodes, kinds), _late(nodes)
    late = {run[-1]: run for run in runs}
    elsewhere = {n for group in (*early.values(), *runs) for n in group}
    found: list[fx.Node] = []
    waiting = [n for n in reversed(nodes) if n not in elsewhere or n in late]
    waiting += [v for of in reversed(early) if of.op == "placeholder" for v in reversed(early[of])]
    while waiting:
        node = waiting.pop()
        found += late.get(node, (node,))
        waiting += reversed(early.get(node, ()))
    return found, runs


def put_in_order(nodes: Sequence[fx.Node], runs: Sequence[list[fx.Node]], grad_enabled: bool) -> list[fx.Node]:
    """Gives a graph, of which these are the nodes but for those where it begins and ends, their order, and makes each run of writes one
    write. Returns the nodes."""
    for before, node in itertools.pairwise(nodes):
        if before.next is not node:
            before.append(node)
    instead = {run[-1]: _as_one(run, grad_enabled) for run in runs}
    gone = {n for run in runs for n in run[:-1]}
    return [n for node in nodes if node not in gone for n in instead.get(node, (node,))]


# --- views ------------------------------------------------------------------------------------------------------------


def _early(nodes: Sequence[fx.Node], kinds: Mapping[fx.Node, int]) -> dict[fx.Node, list[fx.Node]]:
    """Views by numbers that are not the same for all, by what they are views of."""
    written = {_memory(n) for node in nodes for n in _written(node)}
    alike: dict[Any, list[fx.Node]] = {}
    for node in nodes:
        of = _looked_at(node)
        if of is not None and _memory(of) not in written:
            alike.setdefault((of, node.target), []).append(node)
    early: dict[fx.Node, list[fx.Node]] = {}
    for (of, _), views in alike.items():
        if len({kinds[view] for view in views}) > 1:
            early.setdefault(of, []).extend(views)
    return early


def _looked_at(node: fx.Node) -> fx.Node | None:
    """The tensor of which a node is a view by numbers; None where it is something else, or more."""
    if node.op not in ("call_function", "call_method") or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    of = node.args[0] if node.args else None
    if not isinstance(of, fx.Node) or len(node.all_input_nodes) > 1 or not isinstance(of.meta.get("val"), torch.Tensor):
        return None
    return None if computes(node) else of


# --- writes -----------------------------------------------------------------------------------------------------------


def _late(nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Runs of writes of neighbouring parts: no other node has to do with the tensor meanwhile, and nothing
    writes to what is written. The graph made the tensor: nothing else looks at its memory."""
    given = {_memory(n) for node in nodes for n in node.all_input_nodes if n.op == "placeholder"}
    changing = {_memory(n) for node in nodes for n in _written(node)}
    if not changing.isdisjoint(given):  # other inputs may lie in the same memory
        changing |= given
    runs: dict[int | None, list[fx.Node]] = {}
    found = list[list[fx.Node]]()
    for node in nodes:
        part = _part(node)
        if part is not None and (_memory(part.of) in given or _memory(part.value) in changing):
            part = None
        run = runs.get(_memory(part.of)) if part is not None else None
        if run is not None and _goes_on(run, node):
            run.append(node)
            continue
        for n in (node, *node.all_input_nodes):
            runs.pop(_memory(n), None)
        if part is not None:
            run = runs[_memory(part.of)] = [node]
            found.append(run)
    return [run for run in found if len(run) >= _FEWEST]


def _as_one(run: list[fx.Node], grad_enabled: bool) -> tuple[fx.Node, fx.Node]:
    """Writes all at once: the node that puts together what is written, and the one that writes it."""
    parts = sorted((part for node in run if (part := _part(node)) is not None), key=lambda part: part.number)
    last, (first, *_) = run[-1], parts
    values = [part.value.meta["val"] for part in parts]
    mode = torch_private.fake_mode_of(values[0])
    assert mode is not None
    with mode, torch.set_grad_enabled(grad_enabled):
        value = torch.stack(values, first.kept)
    with last.graph.inserting_before(last):
        stacked = last.graph.call_function(torch.stack, ([part.value for part in parts], first.kept))
    stacked.meta = {**last.meta, "val": value}
    last.args = first.of, (*first.before, slice(first.number, first.number + len(parts)), *first.after), stacked
    for node in run[:-1]:
        node.graph.erase_node(node)
    return stacked, last


@dataclass(frozen=True)
class _Part:
    """Of ``of[before, number, after] = value``, where nothing is broadcast; ``before`` has numbers and whole dimensions, of which
    ``kept`` ones, and ``after`` whole ones."""

    of: fx.Node
    value: fx.Node
    before: tuple[Any, ...]
    number: int
    after: tuple[Any, ...]

    @property
    def kept(self) -> int:
        return sum(item == _WHOLE for item in self.before)


_WHOLE = slice(None)


def _part(node: fx.Node) -> _Part | None:
    if node.target is not operator.setitem or len(node.args) != 3:
        return None
    of, index, value = node.args
    if not isinstance(of, fx.Node) or not isinstance(value, fx.Node):
        return None
    tensor: Any = of.meta.get("val")
    given: Any = value.meta.get("val")
    if not _is_plain(tensor) or not _is_plain(given) or tensor.device != given.device or of is value:
        return None
    items = index if isinstance(index, tuple) else (index,)
    if sum(item is Ellipsis for item in items) == 1:
        at, more = items.index(Ellipsis), tensor.dim() - len(items) + 1
        items = (*items[:at], *[_WHOLE] * more, *items[at + 1 :])
    items += (_WHOLE,) * (tensor.dim() - len(items))
    numbers = [i for i, item in enumerate(items) if type(item) is int]
    if not numbers or any(type(item) is not int and item != _WHOLE for item in items):
        return None
    at = numbers[-1]
    sizes = [size for size, item in zip(tensor.shape, items, strict=True) if item == _WHOLE]
    if items[at] < 0 or [*map(str, sizes)] != [*map(str, given.shape)]:
        return None
    return _Part(of, value, items[:at], items[at], items[at + 1 :])


def _goes_on(run: Sequence[fx.Node], node: fx.Node) -> bool:
    """Whether a node writes the next part, up or down."""
    parts = [part for n in (*run[-2:], node) if (part := _part(n)) is not None]
    if len(parts) < len(run[-2:]) + 1:
        return False
    part = parts[-1]
    same = (p.of is part.of and (p.before, p.after) == (part.before, part.after) for p in parts)
    dtypes = {p.value.meta["val"].dtype for p in parts}
    steps = {b.number - a.number for a, b in itertools.pairwise(parts)}
    return all(same) and len(dtypes) == 1 and steps in ({1}, {-1})


def _written(node: fx.Node) -> Iterable[fx.Node]:
    """What a node may write to."""
    if not torch_private.writes(node):
        return ()
    return node.all_input_nodes if _part(node) is None else (node.args[0],)  # type: ignore[return-value]


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and torch_private.fake_mode_of(value) is not None
    )


def _memory(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return (
        torch_private.storage_key(value) if isinstance(value, torch.Tensor) and value.layout is torch.strided else None
    )
