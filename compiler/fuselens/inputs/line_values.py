"""What each line of a program computes: eagerly, and by the graphs that it was captured as; and the first line that differs."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

from ..capture.classify import is_installed
from ..record.report import Graph, Span
from .agreement import differ

MOST_BYTES = 1 << 30  # of values that are kept
COMPILER = str(Path(__file__).resolve().parents[1])


def program_line() -> tuple[str, int] | None:
    """The line of the program that calls torch, through a mode whose method asks; None where it is the compiler that does."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(COMPILER):
            return None
        if not is_installed(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return None


@dataclass(slots=True)
class LineValues:
    """Values in the order in which they were made, each with its line. As a listener of captured graphs it hears every node."""

    values: list[tuple[tuple[str, int], torch.Tensor]] = field(default_factory=list)
    spans: dict[tuple[str, int], Span] = field(default_factory=dict)
    kept: int = 0
    _made: dict[str, Any] = field(default_factory=dict)  # by captured nodes of the graph that runs

    def note(self, place: tuple[str, int], value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for item in value:
                self.note(place, item)
        elif type(value) is torch.Tensor and value.layout is torch.strided and self.kept < MOST_BYTES:
            self.values.append((place, value.detach().clone()))
            self.kept += value.nbytes

    def forget(self) -> None:
        """What comes from now on is of another call."""
        self.values, self.kept, self._made = [], 0, {}

    def begin(self, graph: Graph) -> None:
        """A graph is called."""

    def see(self, node: fx.Node, value: Any) -> None:
        span = node.meta.get("span")
        self._made[node.name] = value
        if value is None and node.args and isinstance(node.args[0], fx.Node):  # an assignment to a part
            value = self._made.get(node.args[0].name)
        if span is not None and node.op not in ("placeholder", "output"):
            self.spans.setdefault((span.file, span.line), span)
            self.note((span.file, span.line), value)

    def failed(self, node: fx.Node, error: BaseException) -> None:
        """A node raised."""


class Eagerly(TorchFunctionMode):
    """Inside, ``heard`` is told what each function of torch gives, and the line of the program that called it."""

    def __init__(self, heard: LineValues) -> None:
        super().__init__()
        self.heard = heard

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (place := program_line()) is not None:
            with torch.no_grad():
                self.heard.note(place, args[0] if result is None and args else result)  # an assignment to a part
        return result


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first line whose value differs, and how."""

    span: Span
    how: str


def first_line(eager: LineValues, captured: LineValues) -> FirstLine | None:
    """The first line that eager computes a value in which the captured graphs do not compute: there, or where they compute nothing
    there, anywhere."""
    by_line: dict[tuple[str, int], list[torch.Tensor]] = {}
    for place, value in captured.values:
        by_line.setdefault(place, []).append(value)
    everything = [value for _, value in captured.values]
    for place, value in eager.values:
        candidates = by_line.get(place, everything)
        found = [differ(value, other, None) for other in candidates]
        if "" not in found:
            span = captured.spans.get(place) or Span(place[0], place[1], 0, place[1], 0)
            alike = [how for how, other in zip(found, candidates, strict=True) if other.shape == value.shape]
            return FirstLine(span, next(iter(alike), "the captured graphs do not compute it"))
    return None
