"""Which nodes of a captured graph are a part, and which run as they were captured."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ... import torch_private
from ...capture.bodies.higher_order import Operator
from ...capture.frame.captured import Captured
from ...capture.tracing.symbols import made_symbols

NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
_SLICES = (operator.getitem, "__getitem__", "narrow", "select", torch.narrow, torch.select, torch_private.item_at)


def decided_by_data(captured: Captured) -> bool:
    """Whether data decides a number, a size, or what runs of the graph."""
    if captured.sizes is not None and torch_private.depends_on_data(captured.sizes.env):
        return True
    return any(has_bodies_to_choose(n) for n in captured.module.graph.nodes)


# --- buckets of gradients ---------------------------------------------------------------------------------------------


def buckets(captured: Captured) -> list[Unit]:
    """The parts in which a graph is compiled inside of a ``DistributedDataParallel``: its gradients are reduced by buckets, each
    as soon as it is full. So the backward is in pieces that fill one each, and what a piece computes overlaps with the
    communication of those before it. None where one bucket holds all.

    Buckets are filled in the order in which a backward reaches the parameters, from the last use to the first.
    """
    limits = torch_private.bucket_bytes() if captured.grad_enabled else None
    if limits is None:
        return []
    nodes = list(captured.valued().graph.nodes)
    if any(map(is_state, nodes)):
        return []
    placeholders = [n for n in nodes if n.op == "placeholder"]
    sizes = {
        placeholders[i]: t.numel() * t.element_size() for i in captured.owned if (t := captured.inputs[i]).requires_grad
    }
    left, found = limits[0], [Unit([], compiled=True)]
    for node in reversed([n for n in nodes if n.op not in ("placeholder", "output")]):
        if left <= 0 and not container(node) and computes(node):
            found.append(Unit([], compiled=True))
            left = limits[1]
        found[-1].nodes.append(node)
        for read in node.all_input_nodes:
            left -= sizes.pop(read, 0)
    if len(found) > 1 and not any(map(computes, found[-1].nodes)):
        found[-2].nodes += found.pop().nodes
    units = [Unit(unit.nodes[::-1], compiled=True) for unit in reversed(found)]
    return units if len(units) > 1 else []


# --- results that are differentiated apart -----------------------------------------------------------------------------


def apart(captured: Captured) -> list[Unit]:
    """The parts in which a graph is compiled that gives results with nothing in common but inputs, where a gradient goes on behind an
    input. As one node of autograd, the backward of one of them would run what is behind the inputs of all, and let go of what that
    saved, before the others' came. None where their nodes do not follow one another."""
    inputs = [t for t in captured.inputs if isinstance(t, torch.Tensor)]
    if not captured.grad_enabled or all(t.is_leaf for t in inputs if t.requires_grad):
        return []
    nodes = [n for n in captured.valued().graph.nodes if n.op not in ("placeholder", "output")]
    if any(is_state(n) or torch_private.writes(n) for n in nodes):
        return []
    first: dict[fx.Node, int] = {}  # the first node of what a node with gradients is connected with
    for number, node in enumerate(nodes):
        if has_gradient(node):
            joined = {first[n] for n in node.all_input_nodes if n in first}
            first[node] = least = min(joined, default=number)
            if len(joined) > 1:
                first.update({n: least for n, begin in first.items() if begin in joined})
    ends = sorted({first[node]: number + 1 for number, node in enumerate(nodes) if node in first}.items())
    if len(ends) < 2 or any(end > begin for (_, end), (begin, _) in itertools.pairwise(ends)):
        return []
    places = [0, *(begin for begin, _ in ends[1:]), len(nodes)]
    units = [Unit(nodes[begin:end], compiled=True) for begin, end in itertools.pairwise(places)]
    return units if units_pass(units) else []


def has_gradient(node: fx.Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in values)


@dataclass(eq=False)
class Unit:
    """Nodes that follow one another; ``compiled`` ones are a part. Those of one ``region`` are compiled once."""

    nodes: list[fx.Node]
    compiled: bool
    region: int | None = None


def between_decisions(nodes: Sequence[fx.Node], writes: bool) -> list[Unit]:
    """The nodes in an order in which they may run: what needs nothing of a part that is being collected goes before it, so
    that parts are few. Bodies, which may draw random numbers, do not, and where the graph ``writes`` only numbers do."""
    units: list[Unit] = []
    home: dict[fx.Node, Unit] = {}
    collected: Unit | None = None
    for node in nodes:
        if node.op in ("placeholder", "output"):
            continue
        producer = home.get(container(node))  # type: ignore[arg-type]
        decides, state = _decides(node), is_state(node)
        needs = collected is not None and any(home.get(n) is collected for n in node.all_input_nodes)
        if producer is not None:  # one of several results
            producer.nodes.append(node)
            home[node] = producer
        elif not (decides or state) and (needs or not _is_number(node)):
            if collected is None:
                collected = Unit([], compiled=True)
                units.append(collected)
            collected.nodes.append(node)
            home[node] = collected
        else:
            unit = home[node] = Unit([node], compiled=False)
            if collected is None or needs or state or (decides and (writes or has_bodies_to_choose(node))):
                units.append(unit)
                collected = None
            else:
                units.insert(units.index(collected), unit)
    for unit in units:
        unit.compiled = unit.compiled and any(map(computes, unit.nodes))
    return units


def container(node: fx.Node) -> Any:
    """The node of which this one is an item, if that gives several values."""
    of = node.args[0] if node.target is operator.getitem else None
    return of if isinstance(of, fx.Node) and isinstance(of.meta.get("val"), (tuple, list)) else None


def _decides(node: fx.Node) -> bool:
    """Whether data decides what runs, or a number. Gradients through several parts are eager's, too."""
    if has_bodies_to_choose(node) or node.target is torch.autograd.grad:
        return True
    if node.target in _SLICES and not any(
        isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes[1:]
    ):
        return False  # torch names its size anew, which numbers decide
    return bool(made_symbols(node))


def has_bodies_to_choose(node: fx.Node) -> bool:
    return isinstance(node.target, Operator) and node.target.data_decides


def _is_number(node: fx.Node) -> bool:
    """Whether the node computes a number, or checks one."""
    return isinstance(node.meta.get("val"), NUMBERS) or node.target is torch_private.check_number


def is_state(node: fx.Node) -> bool:
    """Whether the node changes what torch does from then on, as for gradients."""
    changes = (torch_private.SET_GRAD_ENABLED, torch_private.exit_context)
    return node.target in changes or isinstance(node.target, torch_private.EnterContext)


def computes(node: fx.Node) -> bool:
    """Whether the node does more than to look at its operands otherwise."""
    key, value = torch_private.storage_key, node.meta.get("val")
    if not isinstance(value, torch.Tensor) or torch_private.writes(node):
        return not isinstance(value, NUMBERS)
    given = (n.meta.get("val") for n in node.all_input_nodes)
    return all(key(t) != key(value) for t in given if isinstance(t, torch.Tensor))


def passes(node: fx.Node) -> bool:
    """Whether a part may be given what the node gives, or give it."""
    value = node.meta.get("val")
    return isinstance(value, NUMBERS) or (
        isinstance(value, torch.Tensor)
        and torch_private.fake_mode_of(value) is not None
        and value.layout is torch.strided
    )


# --- parts that are known before the graph runs ---------------------------------------------------------------------------


def of_cuts(captured: Captured) -> list[Unit]:
    """The parts in which another process compiled the graph."""
    nodes = [n for n in captured.module.graph.nodes if n.op not in ("placeholder", "output")]
    return [Unit(nodes[cut.start : cut.end], cut.compiled, cut.region) for cut in captured.cuts]


def borders(units: Sequence[Unit]) -> Iterator[tuple[Unit, list[fx.Node], list[fx.Node]]]:
    """Each unit, what it reads of others, in the order in which it does, and what others read of it. Units of one region give the
    same, and read as many: what is one value in all of them is read once, else a unit may be given a value several times."""
    home = {node: unit for unit in units for node in unit.nodes}
    leaving = [[i for i, n in enumerate(u.nodes) if any(home.get(user) is not u for user in n.users)] for u in units]
    read = [[r for n in u.nodes for r in operands(n) if home.get(r) is not u] for u in units]
    of_region: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        if unit.region is not None:
            of_region.setdefault(unit.region, []).append(number)
    for same in of_region.values():
        places = sorted({place for number in same for place in leaving[number]})
        slots = slots_of([read[number] for number in same])
        for k, number in enumerate(same):
            leaving[number], read[number] = places, [slot[k] for slot in slots]
    for unit, places, reads in zip(units, leaving, read, strict=True):
        yield unit, reads if unit.region is not None else list(dict.fromkeys(reads)), [unit.nodes[i] for i in places]


def slots_of(read: Sequence[Sequence[fx.Node]]) -> list[tuple[fx.Node, ...]]:
    """What each of some units of a region is given, by slots, from what each reads, in order: for a slot one value for each unit."""
    return list(dict.fromkeys(zip(*read, strict=True)))


def operands(node: fx.Node) -> list[fx.Node]:
    """The nodes in a node's arguments, in their order, each as often as it is there."""
    found: list[fx.Node] = []
    _collect(node.args, found)
    if node.kwargs:
        _collect(node.kwargs.values(), found)
    return found


def _collect(values: Iterable[Any], found: list[fx.Node]) -> None:
    for value in values:
        if isinstance(value, fx.Node):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _collect(value, found)
        elif isinstance(value, dict):
            _collect(value.values(), found)
        elif isinstance(value, slice):
            _collect((value.start, value.stop, value.step), found)


def stands_for_all(reads: Sequence[fx.Node]) -> tuple[bool, int]:
    """The greater, the better a unit that is given this stands for its region: it is if no value comes twice, and it has gradients
    where any of them has."""
    needs = sum(isinstance(t := n.meta.get("val"), torch.Tensor) and t.requires_grad for n in reads)
    return len({*reads}) == len(reads), needs


def units_pass(units: Sequence[Unit]) -> bool:
    """Whether what passes between parts is what parts may be given, and may give."""
    return all(all(map(passes, (*reads, *gives))) for unit, reads, gives in borders(units) if unit.compiled)
