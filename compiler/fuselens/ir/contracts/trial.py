"""Who tries an edited kernel out: it says which text is built, and hears of what is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..loops import Graph
    from .source import Generated

Call = Callable[[tuple[Any, ...]], Any]


class Trial(Protocol):
    def text(self, content: str, phase: str, language: str, ours: str) -> str | None:
        """The kernels to build in the place of ``ours``; None where those are wanted."""
        ...

    def failed(self, content: str, phase: str, error: Exception) -> None:
        """They did not build."""
        ...

    def bound(self, content: str, phase: str, call: Call) -> Call:
        """A program that was built, as it shall be called."""
        ...

    def in_place(self, graph: Graph, generated: Generated, phase: str, call: Call) -> Call:
        """What runs in the place of a graph's kernels for a GPU that is not here, whose kernels for the CPU are ``call``."""
        ...

    def graph(self, number: int, captured: Any, call: Call) -> Call:
        """A graph that was compiled, as it shall be called."""
        ...
