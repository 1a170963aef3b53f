"""Stretches of a captured graph that do the same again and again: the layers of a deep model, the steps of a loop that was unrolled.

Two stretches are the same if their nodes are, one by one: what is called, constants, what comes out, and which values are read,
be they of the stretch or of elsewhere. Only which tensors they are given differs.
"""

from __future__ import annotations

import functools
import itertools
import math
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ... import torch_private
from ...capture.bodies.higher_order import Operator
from .moved import moved, put_in_order
from .units import Unit, computes, has_gradient, is_state, operands, slots_of, stands_for_all, units_pass
from .units import borders as borders_of

_CANDIDATES = 16  # distances that are tried, the most frequent ones
_SMALLEST = 20  # operations of a part: its call costs some microseconds
# Vendors compute these, so that repetitions do not fuse anyway. Loops over the elements do, and stay one graph until that takes minutes
# to compile: then many repetitions are one part.
_LEAST_OF_LOOPS, _SMALLEST_OF_LOOPS = 6000, 200
_HEAVY = frozenset({
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "einsum", "tensordot", "bilinear",
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "scaled_dot_product_attention", "multi_head_attention_forward", "lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell",
    "rnn_tanh_cell", "rnn_relu_cell",
})  # fmt: skip


def repeats(nodes: Sequence[fx.Node], least: int, grad_enabled: bool) -> list[Unit]:
    """The nodes as parts, those that are the same as one region; none where no region saves ``least`` nodes. ``grad_enabled`` is
    whether gradients are recorded where they begin. Parts of tensors may be read before and
    written after (:mod:`.moved`), where that saves more."""
    nodes = [n for n in nodes if n.op not in ("placeholder", "output")]
    if any(n.op in ("get_attr", "call_module") for n in nodes):  # parts have no graphs inside
        return []
    kinds = dict(zip(nodes, _kinds(nodes), strict=True))
    units, saved = _in_order(nodes, kinds, least, grad_enabled)
    otherwise, writes = moved(nodes, kinds)
    if otherwise == nodes:
        return units
    others, more = _in_order(otherwise, kinds, least, grad_enabled)
    if more <= saved:
        return units
    otherwise = put_in_order(otherwise, writes, grad_enabled)
    if not writes:
        return others
    kinds |= {n: -i for i, n in enumerate(otherwise, 1) if n not in kinds}
    return _in_order(otherwise, kinds, least, grad_enabled)[0]


def _in_order(
    nodes: list[fx.Node], kind_of: Mapping[fx.Node, int], least: int, grad_enabled: bool
) -> tuple[list[Unit], int]:
    """The parts, if the nodes have this order, and how many nodes all regions save."""
    kinds, stretches = [kind_of[n] for n in nodes], list[tuple[int, int, int]]()
    borders = _Borders(nodes, kinds, grad_enabled)
    ranges, largest = [(0, len(nodes))], max(map(_weight, nodes), default=0)
    while ranges:
        low, high = ranges.pop()
        found = _longest(kinds, low, high)
        if found is None or (found[2] - 1) * found[1] * largest < least:
            continue
        start, period, count = borders.shifted(*found, high)
        ranges += [(low, start), (start + period * count, high)]
        size = sum(map(_weight, nodes[start : start + period]))
        heavy = any(map(_is_heavy, nodes[start : start + period]))
        together = _together(size, count, _SMALLEST if heavy else _SMALLEST_OF_LOOPS)
        period, count = period * together, count // together
        if (count - 1) * size * together >= (least if heavy else max(least, _LEAST_OF_LOOPS)):
            stretches.append((start, period, count))
    units, at, saved = list[Unit](), 0, list[int]()
    numbers = itertools.count()
    for start, period, count in sorted(stretches):
        units += _rest(nodes[at:start])
        same = _same([nodes[start + k * period : start + (k + 1) * period] for k in range(count)], numbers)
        most = max(Counter(u.region for u in same if u.region is not None).values(), default=1)
        saved.append((most - 1) * sum(map(_weight, same[0].nodes)))
        units += same
        at = start + period * count
    units += _rest(nodes[at:])
    enough = max(saved, default=0) >= least
    usable = enough and borders.are_free(units) and units_pass(units) and not _reads_constants(units)
    return (units, sum(saved)) if usable else ([], 0)


def _together(size: int, count: int, smallest: int) -> int:
    """How many repetitions of ``size`` operations are one part of ``smallest`` or so, if there are ``count``: as few as leave the least
    over, which is compiled beside them."""
    least, most = math.ceil(smallest / 2 / size), 2 * math.ceil(smallest / size)
    return min(range(least, most + 1), key=lambda n: (count % n, n)) if size < smallest else 1


def _reads_constants(units: Sequence[Unit]) -> bool:
    """Whether all parts of a region are given what the graph computes from nothing that it is given, such as a mask. Of the whole
    graph its values are known, and attention without a mask is faster."""
    known: set[fx.Node] = set()
    for node in (n for unit in units for n in unit.nodes):
        if isinstance(node.meta.get("val"), torch.Tensor) and all(n in known for n in node.all_input_nodes):
            known.add(node)
    given: dict[int, list[list[fx.Node]]] = {}
    for unit, reads, _ in borders_of(units):
        if unit.region is not None:
            given.setdefault(unit.region, []).append(reads)
    return any(known.issuperset(slot) for same in given.values() for slot in zip(*same, strict=True))


def _weight(node: fx.Node) -> int:
    """The nodes that it stands for, with those of graphs inside."""
    bodies = node.target.bodies if isinstance(node.target, Operator) else ()
    return 1 + sum(_weight(n) for body in bodies for n in body.graph.nodes)


def _is_heavy(node: fx.Node) -> bool:
    if isinstance(node.target, Operator):
        return any(_is_heavy(n) for body in node.target.bodies for n in body.graph.nodes)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.partition(".")[0] in _HEAVY


def _rest(nodes: Sequence[fx.Node]) -> list[Unit]:
    return [Unit(list(nodes), compiled=any(map(computes, nodes)))] if nodes else []


# --- where it repeats -------------------------------------------------------------------------------------------------


def _longest(kinds: Sequence[int], low: int, high: int) -> tuple[int, int, int] | None:
    """The first node, the nodes of a repetition, and the repetitions of the run between ``low`` and ``high`` that saves most. The run
    may go on for a part of a repetition."""
    last, distances = dict[int, int](), Counter[int]()
    for i in range(low, high):
        if (before := last.get(kinds[i])) is not None:
            distances[i - before] += 1
        last[kinds[i]] = i
    best: tuple[int, int, int] | None = None
    for period, _ in distances.most_common(_CANDIDATES):
        begin = low + period
        for i in range(low + period, high + 1):
            if i < high and kinds[i] == kinds[i - period]:
                continue
            count = (i - begin) // period + 1
            if count > 1 and (best is None or (count - 1) * period > (best[2] - 1) * best[1]):
                best = begin - period, period, count
            begin = i + 1
    return best


class _Borders:
    """What passes from the nodes before a place to those after it."""

    def __init__(self, nodes: Sequence[fx.Node], kinds: Sequence[int], grad_enabled: bool) -> None:
        self.nodes = nodes
        self._number = {node: i for i, node in enumerate(nodes)}
        self._kinds = kinds
        last = {n: max((self._number.get(u, len(nodes)) for u in n.users), default=-1) for n in nodes}
        self._last = [last[n] for n in nodes]
        self._entered = [False]
        depth, grad = 0, grad_enabled
        for node in nodes:
            if node.target is torch_private.SET_GRAD_ENABLED:
                grad = node.args[0]
            elif is_state(node):
                depth += 1 if isinstance(node.target, torch_private.EnterContext) else -1
            self._entered.append(depth > 0 or grad is not grad_enabled)

    def shifted(self, start: int, period: int, count: int, high: int) -> tuple[int, int, int]:
        """The same run, begun where least passes from one repetition to the next; it ends before ``high``."""
        end = start + period * count
        while end < high and self._kinds[end] == self._kinds[end - period]:
            end += 1
        slack = end - start - period * count
        shift = min(range(min(slack, period - 1) + 1), key=lambda s: (*self._passing(start + s, period), s))
        return start + shift, period, count

    def _passing(self, start: int, period: int) -> tuple[bool, int]:
        """Whether something passes that no part can give, and the bytes, between the first repetition and the second."""
        border, free, count = start + period, not self._entered[start], 0
        for node, last in zip(self.nodes[start:border], self._last[start:border], strict=True):
            if last >= border:
                value = node.meta.get("val")
                free &= isinstance(value, torch.Tensor)
                count += _bytes(value)
        return not free, count

    def are_free(self, units: Iterable[Unit]) -> bool:
        """Whether nothing is entered where a part begins that is left in another."""
        at = 0
        for unit in units:
            if self._entered[at]:
                return False
            at += len(unit.nodes)
        return True


def _bytes(value: Any) -> int:
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(map(torch_private.size_hint, value.shape)) * value.dtype.itemsize


# --- what is the same -------------------------------------------------------------------------------------------------


def _kinds(nodes: Sequence[fx.Node]) -> list[int]:
    """A number for each node, equal for equal kinds."""
    known: dict[Any, int] = {}
    return [known.setdefault(_kind(node), len(known)) for node in nodes]


def _kind(node: fx.Node) -> Any:
    """Equal for nodes that call the same with the same constants, and give the same."""
    if node.op == "placeholder":  # of a body: its name tells nothing
        return node.op, _value(node.meta.get("val"))
    called = node.target if isinstance(node.target, str) else _callable(node.target)
    return node.op, called, _constant(node.args), _constant(node.kwargs), _value(node.meta.get("val"))


def _callable(called: Any) -> Any:
    """What is equal for what does the same, also where it is made anew for each call."""
    if type(called) is torch_private.EnterContext:
        return torch_private.EnterContext, _callable(called.maker)
    if type(called) is Operator:
        return (
            Operator,
            called.__name__,
            called.recomputed,
            id(called.policy),
            _callable(called.run),
            *map(_body, called.bodies),
        )
    if type(called) is functools.partial:
        return functools.partial, _callable(called.func), _constant(called.args), _constant(called.keywords)
    if type(called) is types.FunctionType and called.__closure__:
        defaults = _constant(called.__defaults__), _constant(called.__kwdefaults__)
        return called.__code__, id(called.__globals__), defaults, *map(_content, called.__closure__)
    return id(called)  # the graph holds it


def _content(cell: types.CellType) -> Any:
    try:
        return _constant(cell.cell_contents)
    except ValueError:  # it is empty
        return ()


def _body(module: fx.GraphModule) -> Any:
    """All that is in a graph."""
    nodes = list(module.graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    read = [tuple(number[n] for n in operands(node)) for node in nodes]
    return tuple((_kind(node), read_by) for node, read_by in zip(nodes, read, strict=True))


def _constant(value: Any) -> Any:
    """What of an argument is no value of the graph."""
    if isinstance(value, fx.Node):
        return fx.Node
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_constant, value))
    if isinstance(value, dict):
        return (dict, *((key, _constant(item)) for key, item in value.items()))
    if isinstance(value, slice):
        return (slice, *map(_constant, (value.start, value.stop, value.step)))
    if type(value) in (int, float, complex, bool, str, type(None)):
        return type(value), repr(value)
    return id(value)  # the graph holds it


def _value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        layout = (value.stride(), value.is_conj(), value.is_neg()) if value.layout is torch.strided else ()
        sizes = tuple(map(str, value.shape)), *map(str, layout)
        return type(value), value.dtype, value.device, value.layout, value.requires_grad, sizes
    if isinstance(value, (tuple, list)):
        return (type(value), *map(_value, value))
    return type(value), str(value) if torch_private.is_symbolic_number(value) else _constant(value)


def _exactly(nodes: Sequence[fx.Node]) -> Any:
    """What is read by whom: nodes of the stretch by their places, others in the order in which they are first read, and what
    these are."""
    place, others, kinds, read = {n: i for i, n in enumerate(nodes)}, dict[fx.Node, int](), list[Any](), list[int]()
    for node in nodes:
        for source in operands(node):
            number = place.get(source)
            if number is None:
                if source not in others:
                    others[source] = -1 - len(others)
                    kinds.append((source.op == "placeholder", _value(source.meta.get("val"))))
                number = others[source]
            read.append(number)
    return tuple(read), tuple(kinds)


def _loosely(nodes: Sequence[fx.Node]) -> Any:
    """The same, but for which of the others are one value, and which values that are computed have gradients. A stretch that
    writes may depend on that."""
    if any(map(torch_private.writes, nodes)):
        return _exactly(nodes)
    place = {n: i for i, n in enumerate(nodes)}
    sources = [source for node in nodes for source in operands(node)]
    return tuple(place.get(source) if source in place else _given(source) for source in sources)


def _given(source: fx.Node) -> Any:
    value = source.meta.get("val")
    if source.op == "placeholder" or not isinstance(value, torch.Tensor):
        return source.op == "placeholder", _value(value)
    return (False, *(part for part in _value(value) if part is not value.requires_grad))


def _have_model(stretches: Sequence[list[fx.Node]]) -> bool:
    """Whether one of these stretches can stand for all."""
    inside = [{*nodes} for nodes in stretches]
    read = [
        [r for n in nodes for r in operands(n) if r not in own] for nodes, own in zip(stretches, inside, strict=True)
    ]
    slots = slots_of(read)
    given = [[slot[k] for slot in slots] for k in range(len(stretches))]
    model = max(given, key=stands_for_all)
    needs = [has_gradient(n) for n in model]
    return stands_for_all(model)[0] and all(
        need or not has_gradient(n) for reads in given for need, n in zip(needs, reads, strict=True)
    )


def _same(stretches: Sequence[list[fx.Node]], numbers: Iterator[int]) -> list[Unit]:
    """Parts, one for each stretch; those of a pattern are a region, which gets the next of the ``numbers``."""
    patterns = [_loosely(nodes) for nodes in stretches]
    for pattern in {*patterns}:
        alike = [k for k, found in enumerate(patterns) if found == pattern]
        if not _have_model([stretches[k] for k in alike]):
            for k in alike:
                patterns[k] = _exactly(stretches[k])
    regions = {pattern: next(numbers) for pattern, count in Counter(patterns).items() if count > 1}
    units = list[Unit]()
    for nodes, pattern in zip(stretches, patterns, strict=True):
        if pattern in regions:
            units.append(Unit(nodes, compiled=True, region=regions[pattern]))
        else:
            units += _rest(nodes)
    return units
