"""How far the values of each line are from float64, eagerly and compiled: where a program of half precision loses its digits.

The call is made twice. First its graphs run operator by operator, as they were captured, with float64 beside them. Then they are compiled
with the value of each line as one more result. Both calls run the same graphs, so each value has one name.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from .. import api, torch_private
from ..capture.frame.captured import Captured
from ..config import Config
from ..inputs.agreement import distance
from ..inputs.comparison import observe
from ..inputs.doubled import HALVES, Doubled
from ..pipeline import Recorder
from ..pipeline.recorder import Call
from ..pipeline.refusals import restoring
from ..record.report import Drift, Span
from .kinds import Kind

MOST_BYTES = 1 << 30  # of float64 that is kept from one call to the next
_ROUNDING = (
    0.125,
    0.29,
)  # of a dtype's epsilon: the error that rounding to it makes, at least and at most, as a root mean square
_WIDE = (torch.float32, *HALVES)
_Name = tuple[int, int, str]  # of a value: which graph, which call of it, which node


def drift(target: Any, kind: Kind, config: Config, name: str, path: str) -> tuple[Drift, ...]:
    """The drift of each line, in the order in which lines run; none where no value has half precision, where the call raises, or where
    there is more than can be kept."""
    eager = _Eagerly()
    if not _called(target, kind, config, eager.measured, name, path) or eager.over or not eager.half:
        return ()
    compiled = _Compiled(eager.values)
    if not _called(target, kind, config, compiled.measured, name, path):
        return ()
    return tuple(_lines(eager.values))


def _called(
    target: Any, kind: Kind, config: Config, measured: Callable[[Captured, Callable[[Captured], Call]], Call], name: str, path: str
) -> bool:  # fmt: skip
    """Whether the call returns."""
    recorder = Recorder(name, path, None, config, texts=False)
    recorder.measuring = measured
    function = api.wrap(target, config, recorder=recorder, owner=object())
    with kind.around():
        return "raised" not in observe(function, kind.args, kind.kwargs, gradients=False)


@dataclass(slots=True)
class _Value:
    """A value that a line leaves: ``exact`` until it is known how far the compiled one is from that. ``sources`` are those of other
    lines that it is computed from."""

    span: Span
    dtype: torch.dtype
    exact: torch.Tensor | None
    eager: tuple[float, float]
    sources: tuple[_Name, ...]
    compiled: tuple[float, float] | None = None


# --- graphs -----------------------------------------------------------------------------------------------------------


def _left(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """The values that lines leave to others: by the node after which each is there, the node whose value it is."""
    found: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        place, value = _line(node), node
        if node.meta.get("val") is None and node.args and isinstance(node.args[0], fx.Node):  # an assignment to a part
            value = node.args[0]
        kept = value.meta.get("val")
        if place is None or not isinstance(kept, torch.Tensor) or kept.dtype not in _WIDE:
            continue
        if value is not node or not node.users or any(_line(user) != place for user in node.users):
            found[node] = value
    return found


def _line(node: fx.Node) -> tuple[str, int] | None:
    span = node.meta.get("span")
    return (span.file, span.line) if span is not None and node.op not in ("placeholder", "output") else None


def _sources(node: fx.Node, left: Mapping[fx.Node, fx.Node]) -> Iterator[str]:
    """The names of the values of other lines that a node's value is computed from."""
    seen, more = {node}, list(node.all_input_nodes)
    while more:
        one = more.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in left and _line(one) != _line(node):
            yield one.name
        else:
            more += one.all_input_nodes


@dataclass(slots=True)
class _Eagerly:
    """Graphs that run as they were captured, with float64 beside them."""

    values: dict[_Name, _Value] = field(default_factory=dict)
    half: bool = False
    over: bool = False
    _doubled: Doubled = field(default_factory=Doubled)
    _graphs: int = 0
    _calls: Counter[int] = field(default_factory=Counter)
    _bytes: int = 0

    def measured(self, captured: Captured, _: Callable[[Captured], Call]) -> Call:
        number, module = self._graphs, captured.valued()
        self._graphs += 1
        left = _left(module.graph)

        def run(inputs: tuple[Any, ...]) -> Any:
            call = self._calls[number]
            self._calls[number] += 1
            return _Beside(module, self, left, (number, call)).run(*inputs, enable_io_processing=False)

        return restoring(run, captured)

    def see(self, name: _Name, node: fx.Node, value: Any, sources: tuple[_Name, ...]) -> None:
        exact = self._doubled.exactly(value)
        if exact is None or not value.numel():
            return
        self.half |= value.dtype in HALVES
        self._bytes += exact.value.nbytes
        self.over |= self._doubled.over or self._bytes > MOST_BYTES
        if not self.over:
            error = distance(exact.value, value)
            self.values[name] = _Value(node.meta["span"], value.dtype, exact.value, error, sources)

    @property
    def doubled(self) -> Doubled:
        return self._doubled


class _Beside(fx.Interpreter):
    """Runs each node under the mode that keeps float64, and looks at its value outside of it."""

    def __init__(
        self, module: fx.GraphModule, heard: _Eagerly, left: Mapping[fx.Node, fx.Node], call: tuple[int, int]
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._heard, self._left, self._call = heard, left, call

    def run_node(self, n: fx.Node) -> Any:
        with self._heard.doubled:
            found = super().run_node(n)
        if n in self._left:
            value = found if self._left[n] is n else self.env[self._left[n]]
            sources = tuple((*self._call, name) for name in _sources(n, self._left))
            self._heard.see((*self._call, n.name), n, value, sources)
        return found


@dataclass(slots=True)
class _Compiled:
    """Graphs that are compiled with the values of their lines as results. ``values`` learn how far these are from float64."""

    values: dict[_Name, _Value]
    _graphs: int = 0
    _calls: Counter[int] = field(default_factory=Counter)

    def measured(self, captured: Captured, compiled: Callable[[Captured], Call]) -> Call:
        number, left = self._graphs, _left(captured.valued().graph)
        self._graphs += 1
        call, names = compiled(_wider(captured, left)), [node.name for node in left]

        def run(inputs: tuple[Any, ...]) -> Any:
            turn = self._calls[number]
            self._calls[number] += 1
            results = tuple(call(inputs))
            count = len(results) - len(names)
            for name, value in zip(names, results[count:], strict=True):
                self._see((number, turn, name), value)
            return results[:count]

        return run

    def _see(self, name: _Name, value: Any) -> None:
        known = self.values.get(name)
        if known is not None and known.exact is not None and known.exact.shape == value.shape:
            known.compiled = distance(known.exact, value)
            known.exact = None


def _wider(captured: Captured, left: Mapping[fx.Node, fx.Node]) -> Captured:
    """The graph with copies of the values that lines leave behind its results."""
    graph, env, more = fx.Graph(), dict[fx.Node, fx.Node](), list[fx.Node]()
    for node in captured.module.graph.nodes:
        if node.op == "output":
            (results,) = node.args
            graph.output((*(env[r] if isinstance(r, fx.Node) else r for r in results), *more)).meta.update(node.meta)
            continue
        env[node] = graph.node_copy(node, env.__getitem__)
        if node in left:
            value = env[left[node]]
            for function in (torch.detach, torch.clone):
                of, value = value, graph.call_function(function, (value,))
                value.meta |= {"val": function(of.meta["val"]), "span": node.meta["span"]}
            more.append(value)
    module = torch_private.graph_module(captured.module, graph)
    return dataclasses.replace(captured, module=module, facts=None, digest="", cuts=(), keepable=False, made=None)


# --- lines ------------------------------------------------------------------------------------------------------------


def _lines(values: Mapping[_Name, _Value]) -> Iterator[Drift]:
    of_line: dict[tuple[str, int], list[_Value]] = {}
    for value in values.values():
        if value.compiled is not None:
            of_line.setdefault((value.span.file, value.span.line), []).append(value)
    for found in of_line.values():
        farthest = max(found, key=lambda value: _far(value))
        least, most = (torch.finfo(farthest.dtype).eps * part for part in _ROUNDING)
        sources = [values[name] for name in farthest.sources if name in values]
        source = max(sources, key=_far, default=None)
        if source is not None and _far(source) < least:
            source = None
        yield Drift(
            farthest.span, str(farthest.dtype).removeprefix("torch."), max(v.eager[0] for v in found), _far(farthest),
            max(v.eager[1] for v in found), max(v.compiled[1] for v in found if v.compiled is not None),
            _far(farthest) / (_far(source) if source is not None else most), source.span if source is not None else None,
        )  # fmt: skip


def _far(value: _Value) -> float:
    return value.compiled[0] if value.compiled is not None else 0.0
