"""How much of a graph's communication is hidden behind computing: predicted for a GPU, and measured in calls that are asked for it."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import torch_private
from ..record.report import Decision, Graph
from ..record.views import seconds_text

if TYPE_CHECKING:
    from ..ir import loops
    from .recorder import Run

_CODE = "FL418"
_CALLS, _FIRST = 32, 2  # calls that are measured, of which the first ones connect ranks
_NAMES = {
    "all_gather_into_tensor": "all_gather", "reduce_scatter_tensor": "reduce_scatter", "all_to_all_single": "all_to_all"
}  # fmt: skip
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")


def predicted(graph: loops.Graph, run: Run, on_gpu: bool) -> list[Decision]:
    """The decisions of a graph in its order. Those about collectives tell of which phase they are; on a GPU also how long each takes on
    the links of the configuration, and how much of that what runs meanwhile takes, by what it moves and multiplies."""
    from ..schedule.overlap import meanwhile

    found = iter(meanwhile(graph.nodes))
    return [_predicted(d, *next(found), graph, run, on_gpu) if d.code == _CODE else d for d in graph.decisions]


def _predicted(
    decision: Decision, collective: loops.Extern, others: Sequence[loops.Node], graph: loops.Graph, run: Run, on_gpu: bool
) -> Decision:  # fmt: skip
    data: dict[str, Any] = {**decision.data, "phase": run.phase}
    if not on_gpu:
        return replace(decision, data=data)
    from ..ranks.costs import Network

    name = collective.target.split(".")[1].removeprefix("start_")
    name = _NAMES.get(name, name)
    given, result = (_bytes(graph, b) for b in (collective.args[0].name, collective.outputs[0]))
    ranks = torch_private.ranks_of(collective.args[-2])
    size = result if name in ("all_gather", "all_reduce", "broadcast") else given
    seconds = Network.of(run.config).seconds(name, size, ranks)
    computing = sum(_seconds(node, graph) for node in others)
    hidden = min(1.0, computing / seconds) if seconds else 1.0
    data |= {"predicted_seconds": seconds, "predicted_hidden": hidden}
    reason = f"{decision.reason}; predicted {seconds_text(seconds)}, of which {hidden:.0%} hidden"
    return replace(decision, reason=reason, data=data)


def _bytes(graph: loops.Graph, name: str) -> int:
    from ..ir.loops import ITEMSIZE

    buffer = graph.buffers[name]
    return graph.hint(buffer.numel()) * ITEMSIZE[buffer.dtype]


def _seconds(node: loops.Node, graph: loops.Graph) -> float:
    """How long a kernel or a call takes on the graph's card: by its bytes, and a product by its operations where they take longer."""
    from ..codegen.traffic import seconds_to_move
    from ..ir.card import OPERATIONS
    from ..ir.loops import ITEMSIZE, Extern, Kernel, extern_reads

    card = graph.card
    if isinstance(node, Kernel):
        return seconds_to_move(node, graph)
    if not isinstance(node, Extern):
        return 0.0
    read = [name for name in extern_reads(node) if name]
    moved = sum(_bytes(graph, name) for name in {*read, *filter(None, node.outputs)}) / card.bandwidth
    if node.target.split(".")[1] not in _PRODUCTS:
        return moved
    a, out = graph.buffers[read[-2]], graph.buffers[node.outputs[0]]
    rate = OPERATIONS[2 if ITEMSIZE[a.dtype] <= 2 else 4] * card.processors
    return max(moved, 2 * graph.hint(out.numel() * a.sizes[-1]) / rate)


class Measured:
    """What calls of one graph's forward measure: its FL418 tell it from the call after those that connect the ranks."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._calls: list[list[tuple[float, float]]] = []
        self._plain: dict[int, Decision] = {}

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Around a call. On a GPU it waits for the collectives."""
        from ..ir import collectives

        if len(self._calls) == _FIRST + _CALLS:
            yield
            return
        with collectives.metered() as seconds:
            yield
        self._calls.append(seconds())
        if len(self._calls) > _FIRST:
            self._tell()

    def _tell(self) -> None:
        calls = self._calls[_FIRST:]
        places = [
            k for k, d in enumerate(self._graph.decisions) if d.code == _CODE and d.data.get("phase") == "forward"
        ]
        if any(len(call) != len(places) for call in calls):
            return
        for number, place in enumerate(places):
            decision = self._plain.setdefault(place, self._graph.decisions[place])
            whole, waited = (statistics.median(call[number][k] for call in calls) for k in (0, 1))
            data = {"measured_seconds": whole, "waited_seconds": waited}
            reason = f"{decision.reason}; measured {seconds_text(whole)} from start to result, {seconds_text(waited)} of it waited for"
            self._graph.decisions[place] = replace(decision, reason=reason, data={**decision.data, **data})
