"""Collectives of torch.distributed as operators of a graph: each starts the communication and waits for it.

torch has functional operators that return at once, and ``wait_tensor``, which returns what it is given. Between the two, memory
is read and written that a program of ours could use again. So one operator of ours stands for the pair. Operators take the
result of the one ``after`` which they communicate, so that all ranks do so in one order, whatever else is reordered.
``start_…`` returns at once, and ``finish`` waits: ``schedule/overlap.py`` takes the pair apart where memory is planned.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import has_side_effect

from .. import torch_private

_library = torch.library.Library("fuselens", "FRAGMENT")
_own: dict[str, Any] = {}


def _group(name: Any) -> Any:
    return name if isinstance(name, str) else name.group_name


class _Meter:
    """When collectives start, and are waited for: on a GPU its queue of work says so, elsewhere the clock."""

    def __init__(self) -> None:
        self._started: dict[int, Any] = {}
        self._found: list[tuple[Any, Any, Any]] = []

    def starts(self, result: Tensor, start: Any) -> None:
        self._started[result.data_ptr()] = start

    def ends(self, result: Tensor, asked: Any) -> None:
        self._found.append((self._started.pop(result.data_ptr(), asked), asked, _now(result)))

    def seconds(self) -> list[tuple[float, float]]:
        """In the order of the waits: from start to end of each, and how much of that nothing was computed."""
        return [(_between(start, end), _between(asked, end)) for start, asked, end in self._found]


_meters: list[_Meter] = []


def _meter_of(tensor: Tensor) -> _Meter | None:
    """Who asks for times now: nobody while calls are recorded."""
    if not _meters or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    return _meters[-1]


def _now(like: Tensor) -> Any:
    if not like.is_cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return end - start
    end.synchronize()
    return start.elapsed_time(end) / 1000


@contextlib.contextmanager
def metered() -> Iterator[Callable[[], list[tuple[float, float]]]]:
    """The collectives of graphs that run inside are timed. Gives what returns :meth:`_Meter.seconds`."""
    meter = _Meter()
    _meters.append(meter)
    try:
        yield meter.seconds
    finally:
        _meters.remove(meter)


def _define(name: str, parameters: str, meta: Callable[..., Tensor]) -> None:
    """``fuselens::name``, which is ``_c10d_functional::name`` and the wait for it, and ``fuselens::start_name`` without the wait."""

    def start(*given: Any) -> Tensor:
        meter = _meter_of(given[0])
        before = None if meter is None else _now(given[0])
        result = torch_private.collective(name)(*given[:-1])
        if meter is not None:
            meter.starts(result, before)
        return result

    def run(*given: Any) -> Tensor:
        return _waited(start(*given))

    for called, does in ((name, run), (f"start_{name}", start)):
        _library.define(f"{called}(Tensor input, {parameters}, str group, Tensor? after) -> Tensor")
        _library.impl(called, does, "CompositeExplicitAutograd")
        _library.impl(called, meta, "Meta")
    _own[name] = getattr(torch.ops.fuselens, name).default
    has_side_effect(_own[name])  # the other ranks take part in it


def _waited(result: Tensor) -> Tensor:
    meter = _meter_of(result)
    asked = None if meter is None else _now(result)
    result = torch_private.collective("wait_tensor")(result)
    if meter is not None:
        meter.ends(result, asked)
    return result


def _like(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _rows(x: Tensor, count: Any) -> Tensor:
    return x.new_empty([count, *x.shape[1:]])


_define("all_reduce", "str reduce_op", _like)
_define("broadcast", "int src", _like)
_define("all_gather_into_tensor", "int group_size", lambda x, size, *_: _rows(x, x.shape[0] * size))
_define("reduce_scatter_tensor", "str reduce_op, int group_size", lambda x, op, size, *_: _rows(x, x.shape[0] // size))
_define(
    "all_to_all_single", "SymInt[] output_split_sizes, SymInt[] input_split_sizes",
    lambda x, out, *_: _rows(x, sum(out)) if out else _like(x),
)  # fmt: skip
_library.define("wait(Tensor input) -> Tensor")
_library.impl("wait", lambda x: torch_private.collective("wait_tensor")(x).clone(), "CompositeExplicitAutograd")
_library.impl("wait", _like, "Meta")
OWN = frozenset(_own.values())


def _finish(result: Tensor, *_: Any) -> None:
    _waited(result)


_library.define("finish(Tensor(a!) result, Tensor input) -> ()")
_library.impl("finish", _finish, "CompositeExplicitAutograd")
FINISH = "fuselens.finish.default"
"""Waits for what a start has returned. It is given the operand, too, which is read until then."""


def communicates(target: Any) -> bool:
    """Whether an operator is a collective, of torch's or of ours, or waits for one."""
    return torch_private.is_collective(target) or target in OWN


def settle(graph: fx.Graph) -> None:
    """Puts our operators in the place of torch's pairs, in a graph of ATen operators."""
    if not any(torch_private.is_collective(node.target) for node in graph.nodes):
        return
    functional = {torch_private.collective(name): own for name, own in _own.items()}
    last: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        own = functional.get(node.target) if node.op == "call_function" else None
        if own is not None:
            group = _group(node.args[-1])
            node.args = (*node.args[:-1], group, last.get(group))
            node.target, last[group] = own, node
        elif node.target is torch_private.collective("wait_tensor"):
            given: Any = node.args[0]
            if given.target in OWN:
                node.replace_all_uses_with(given)
                graph.erase_node(node)
            else:
                node.target = torch.ops.fuselens.wait.default
