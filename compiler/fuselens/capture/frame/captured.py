"""What a captured frame hands on: its graph to the rest of the pipeline, and what the report is told."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from ...record.report import Guard, Shape, Span, Symbol, Tensor
from ..tracing.symbols import Sizes


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What is asked of a captured graph's nodes: what it takes and returns, the devices of its tensors, and whether generators of random
    numbers are among its values."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    devices: tuple[str, ...]
    generators: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """Nodes of a graph, from ``start`` up to ``end``, that are a part: compiled, or run as they were captured. Those of one
    ``region`` are compiled once, and the first of them says what stands for what they read: None for the graph's own inputs, else
    a tensor's dtype, device, sizes, strides, and whether it requires gradients."""

    start: int
    end: int
    compiled: bool
    region: int | None = None
    reads: tuple[Any, ...] = ()
    facts: GraphFacts | None = None
    digest: str = ""


@dataclass(slots=True)
class Captured:
    """A captured graph on its way to the rest of the pipeline.

    ``module``'s placeholders are ``inputs`` in order, its output is a flat tuple; ``fakes`` are the fake inputs.
    """

    module: fx.GraphModule
    inputs: list[Any]  # tensors and integers
    fakes: list[Any]
    grad_enabled: bool
    frame: str
    span: Span | None
    operations: int
    fake_mode: Any
    sizes: Sizes | None = None
    resumable: bool = False  # a graph that raises AsWritten before it does anything is followed by its frame
    owned: tuple[int, ...] = ()  # tensors that hang on modules: parameters and buffers
    arguments: tuple[int, ...] = ()  # inputs that the caller passed as such, and that may therefore share memory
    facts: GraphFacts | None = None
    digest: str = ""  # of its nodes, where somebody asked for it and they have names
    pending: Callable[[], None] | None = None  # gives the nodes their values, where they do not have them yet
    keepable: bool = False  # another process would make the same of it
    cuts: tuple[Cut, ...] = ()  # the parts in which it is compiled, where these are known before it runs
    restored: tuple[int, ...] = ()  # inputs that it writes to before it checks values: a check that fails undoes that
    made: tuple[str, str] | None = None  # what names its programs in the cache, and what they were generated for

    @property
    def varies(self) -> bool:
        """Whether it serves inputs of several sizes."""
        return self.sizes is not None or self.made is not None

    def valued(self) -> fx.GraphModule:
        """The graph, whose nodes know their values."""
        if self.pending is not None:
            fill, self.pending = self.pending, None
            fill()
        return self.module


@dataclass(slots=True)
class Facts:
    """What one captured frame contributes to the report."""

    frame: str
    guards: list[Guard] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    codes: tuple[types.CodeType, types.CodeType] | None = None  # the frame's own, and what replaces it


_OF_SIZES = frozenset({"TENSOR", "SHAPE", "MARKS"})


@dataclass(slots=True)
class EntryInfo:
    """What is remembered of an entry to explain misses: its guards, by check index, and the texts of their nodes; and whether it
    computes anything with tensors."""

    guards: list[Guard]
    texts: list[str]
    computes: bool = True
    compiler: int = 0  # the call of `compile` that it was made for; others of the same code find it, too
    _apart: frozenset[tuple[str, str]] | None = None

    @property
    def apart_from_sizes(self) -> frozenset[tuple[str, str]]:
        """Its guards but for those on tensors: entries that differ in sizes, strides and dtypes alone have the same."""
        if self._apart is None:
            self._apart = frozenset((g.source, g.expression) for g in self.guards if g.kind not in _OF_SIZES)
        return self._apart
