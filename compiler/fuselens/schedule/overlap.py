"""Collectives start as early as their operands are there, and are waited for as late as possible: computation runs meanwhile.

Each collective is cut in two: a start that makes the result's buffer, and a wait that reads the operands and writes the buffer. So
what keeps the order of reads and writes, and plans memory, lets nothing touch either between the two. All ranks start the same
collectives in the same order, that of the program. Whatever may raise stays outside, so a graph that raises leaves nothing running.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from fuselens.ir.collectives import FINISH, OWN
from fuselens.ir.loops import Extern, Graph, Node, Ref, extern_reads
from fuselens.record.report import Decision

_MORE_MEMORY, _LITTLE = 1.25, 1 << 20

_START = {str(own): str(own).replace("fuselens.", "fuselens.start_", 1) for own in OWN}
_WHOLE = {start: whole for whole, start in _START.items()}


def starts(node: Node) -> bool:
    return isinstance(node, Extern) and (node.target in _START or node.target in _WHOLE)


def finishes(node: Node) -> bool:
    return isinstance(node, Extern) and node.target == FINISH


def cut(graph: Graph) -> Graph:
    """Each collective as its start and its wait, side by side."""
    if not any(starts(node) for node in graph.nodes):
        return graph
    return graph.replace(nodes=tuple(part for node in graph.nodes for part in _parts(node)))


def _parts(node: Node) -> Iterator[Node]:
    if not isinstance(node, Extern) or node.target not in _START or not any(node.outputs):
        yield node
        return
    args = (*node.args[:-1], None)  # the order of collectives is kept here
    start = dataclasses.replace(node, target=_START[node.target], args=args)
    given = tuple(Ref(name) for name in dict.fromkeys(extern_reads(start)))
    yield start
    yield dataclasses.replace(
        node, name=f"{node.name}_finish", target=FINISH, args=(Ref(node.outputs[0]), *given), kwargs=(), outputs=(),
        mutates=node.outputs,
    )  # fmt: skip


def keep_order(nodes: Iterable[Node], raising: Iterable[int], dependencies: list[set[int]]) -> None:
    """Adds that collectives start one after the other, and that those ``raising`` run while none is under way."""
    may_raise = set(raising)
    last: int | None = None
    raised: set[int] = set()
    ended: set[int] = set()
    for position, node in enumerate(nodes):
        if starts(node):
            dependencies[position] |= raised if last is None else {last, *raised}
            last = position
        elif finishes(node):
            ended.add(position)
        elif position in may_raise:
            dependencies[position] |= ended
            raised.add(position)


def overlapped(nodes: list[Node], positions: list[int], dependencies: list[set[int]]) -> list[int]:
    """``positions`` with starts as early, and waits as late, as ``dependencies`` let them."""
    communications = [p for p in positions if starts(nodes[p])]
    placed: dict[int, None] = {}

    def place(position: int) -> None:
        for needed in sorted(dependencies[position] - placed.keys()):
            place(needed)
        placed[position] = None

    for position in positions:
        if position in placed or finishes(nodes[position]):
            continue
        place(position)
        while communications and (communications[0] in placed or dependencies[communications[0]] <= placed.keys()):
            placed[communications.pop(0)] = None
    for position in positions:
        if position not in placed:
            place(position)
    return list(placed)


def is_worth(peak: int, without: int) -> bool:
    """Whether intermediates take little more bytes at their peak than ``without`` overlap: a quarter, or a MiB."""
    return peak <= max(_MORE_MEMORY * without, without + _LITTLE)


def told(nodes: Iterable[Node], sizes: Mapping[str, int]) -> list[Decision]:
    """FL418 for each collective: what runs while it is under way. ``sizes`` are bytes of buffers."""
    return [_told(collective, others, sizes) for collective, others in meanwhile(nodes)]


def meanwhile(nodes: Iterable[Node]) -> list[tuple[Extern, list[Node]]]:
    """Collectives in the order in which they are waited for, with what runs while each is under way."""
    found: list[tuple[Extern, list[Node]]] = []
    under_way: dict[str, tuple[Extern, list[Node]]] = {}
    for node in nodes:
        if finishes(node):
            found.append(under_way.pop(node.mutates[0]))  # type: ignore[union-attr]
        elif starts(node):
            if node.target in _WHOLE:  # type: ignore[union-attr]
                under_way[node.outputs[0]] = node, []  # type: ignore[union-attr,assignment]
            else:
                found.append((node, []))  # type: ignore[arg-type]
        else:
            for _, others in under_way.values():
                others.append(node)
    return found


def _told(collective: Extern, meanwhile: list[Node], sizes: Mapping[str, int]) -> Decision:
    calls = sum(isinstance(node, Extern) for node in meanwhile)
    kernels, size = len(meanwhile) - calls, sum(sizes.get(name, 0) for name in collective.outputs)
    name = _WHOLE.get(collective.target, collective.target).split(".")[1]
    counts = [f"{n} {what}{'' if n == 1 else 's'}" for n, what in ((kernels, "kernel"), (calls, "call")) if n]
    reason = f"{' and '.join(counts)} run meanwhile" if counts else "nothing that is independent runs meanwhile"
    data = {"bytes": size, "kernels": kernels, "calls": calls}
    span = collective.spans[0] if collective.spans else None
    return Decision("FL418", "overlapped" if counts else "waited", f"{name} of {size} bytes", reason, span, data)


def joined(nodes: Iterable[Node]) -> list[Node]:
    """The nodes, with a start and its wait as one again where nothing runs between them."""
    found: list[Node] = []
    for node in nodes:
        last = found[-1] if found else None
        if finishes(node) and isinstance(last, Extern) and last.target in _WHOLE and last.outputs == node.mutates:  # type: ignore[union-attr]
            found[-1] = dataclasses.replace(last, target=_WHOLE[last.target])
        else:
            found.append(node)
    return found
