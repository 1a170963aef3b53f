"""What each node of a function's captured graphs computes on its example inputs, as text."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..ir.graphs.graph_text import kind_of, statement
from ..record.report import Graph
from .compared import plain

_FIRST = 6  # elements that are written
_MOST_CALLS = 20  # of graphs; a loop around a graph break calls one often


class NodeValues:
    """Hears every node that runs, in order. ``text`` is a document in Python's colours."""

    def __init__(self, function: str) -> None:
        self._lines = [
            f"# {function}: its captured graphs, run as they were captured, node by node, on its example inputs.",
            "# Below each node: dtype and shape, the first elements, and the range of all.",
        ]
        self._calls: dict[int, int] = {}
        self._skipped = 0
        self._skipping = False

    def begin(self, graph: Graph) -> None:
        """A call of a graph begins."""
        number = self._calls[graph.id] = self._calls.get(graph.id, 0) + 1
        self._skipping = sum(self._calls.values()) > _MOST_CALLS
        self._skipped += self._skipping
        where = f", captured at line {graph.span.line}" if graph.span else ""
        again = f", call {number}" if number > 1 else ""
        self._write("", f"# --- graph {graph.id} of {graph.frame}{where}{again} ---")

    def see(self, node: fx.Node, value: Any) -> None:
        if node.op == "placeholder":
            source = node.meta.get("source")
            self._write(
                f"{node.name}: {kind_of(node.meta.get('val'))}{f'  # {source}' if source not in (None, node.name) else ''}"
            )
        elif node.op == "output":
            self._write(statement(node))
            return
        else:
            span = node.meta.get("span")
            self._write(f"{statement(node)}{f'  # line {span.line}' if span else ''}")
        self._write(*(f"#     {line}" for line in described(value)))

    def failed(self, node: fx.Node, error: BaseException) -> None:
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        self._write(statement(node), f"#     raised {why}")

    def ended(self, said: str) -> None:
        self._skipping = False
        more = [f"# {self._skipped} more calls of graphs are left out"] if self._skipped else []
        self._write("", *more, f"# {said}")

    @property
    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _write(self, *lines: str) -> None:
        if not self._skipping:
            self._lines += lines


def described(value: Any) -> list[str]:
    """A tensor in a line; other values as Python writes them."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        lines = [f"[{number}] {line}" for number, item in enumerate(value[:_FIRST]) for line in described(item)]
        return [*lines, f"… and {len(value) - _FIRST} more"] if len(value) > _FIRST else lines
    if value is None:
        return []
    if not isinstance(value, torch.Tensor):
        text = repr(value)
        return [text if len(text) <= 100 else f"{text[:99]}…"]
    with torch.no_grad():
        return [_tensor(plain(value.detach()))]


def _tensor(value: torch.Tensor) -> str:
    kind = f"{kind_of(value)}"
    if value.numel() == 0:
        return f"{kind}, no elements"
    first = [_number(v) for v in value.flatten()[:_FIRST].tolist()]
    said = f"{kind} = {', '.join(first)}{', …' if value.numel() > _FIRST else ''}"
    if value.numel() == 1:
        return said
    if value.dtype == torch.bool:
        return f"{said}  ({int(value.sum())} of {value.numel()} are True)"
    if value.is_complex():
        return said
    wide = value.to(torch.float64) if value.is_floating_point() else value
    if not value.is_floating_point():
        return f"{said}  (from {int(wide.min())} to {int(wide.max())})"
    finite = wide[torch.isfinite(wide)]
    odd = f", {value.numel() - finite.numel()} not finite" if finite.numel() < value.numel() else ""
    if finite.numel() == 0:
        return f"{said}  (none is finite)"
    return f"{said}  (from {_number(float(finite.min()))} to {_number(float(finite.max()))}, mean {_number(float(finite.mean()))}{odd})"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
