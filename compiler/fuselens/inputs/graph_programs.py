"""The graphs of a run as programs of their own, with the inputs that they were called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..record.report import Graph, Span
from .comparison import copied

if TYPE_CHECKING:
    from ..capture.frame.captured import Captured

Call = Callable[[tuple[Any, ...]], Any]


@dataclass(frozen=True, slots=True)
class GraphProgram:
    """``path`` is the program; ``why`` there is none, where there is none. ``lines`` are the places of its statements in the file
    that the graph is of: by the name that a statement defines, the span."""

    graph: int
    frame: str
    line: int
    operations: int
    path: str
    why: str = ""
    lines: dict[str, Span] = field(default_factory=dict)


@dataclass(slots=True)
class GraphPrograms:
    """Writes each graph into ``folder`` when it is first called, before it runs."""

    folder: Path
    run: Callable[[Captured, Graph], Call]
    found: list[GraphProgram] = field(default_factory=list)
    done: set[int] = field(default_factory=set)

    def begin_again(self) -> None:
        """What comes from now on is of another call."""
        self.found.clear()
        self.done.clear()

    def written(self, graph: Graph, captured: Captured, program: Callable[[str], str]) -> Call:
        text = program(f"graph{graph.id}.pt")
        call, done = self.run(captured, graph), self.done
        lines = {node.name: node.meta["span"] for node in captured.module.graph.nodes if node.meta.get("span")}
        frame, line, operations = captured.frame, captured.span.line if captured.span else 0, captured.operations

        def first(inputs: tuple[Any, ...]) -> Any:
            if graph.id not in done:
                done.add(graph.id)
                path = self.folder / f"graph{graph.id}.py"
                why = self._write(path, text, inputs)
                self.found.append(GraphProgram(graph.id, frame, line, operations, str(path), why, lines))
            return call(inputs)

        return first

    def _write(self, path: Path, text: str, inputs: tuple[Any, ...]) -> str:
        odd = [v for v in inputs if not isinstance(v, (bool, int, float, complex, torch.Tensor)) and v is not None]
        odd += [v for v in inputs if isinstance(v, torch.Tensor) and type(v) not in (torch.Tensor, torch.nn.Parameter)]
        if odd:
            return f"it is given a {type(odd[0]).__qualname__}, which no file can hold"
        path.write_text(text, encoding="utf-8")
        torch.save(copied(list(inputs), False), path.with_suffix(".pt"))
        return ""
