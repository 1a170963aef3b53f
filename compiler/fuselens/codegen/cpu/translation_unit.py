"""What the kernels of one translation unit share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ...ir.contracts.source import Unsupported
from ...ir.loops import Graph
from ..nest import Tuning
from .vectors.isa import Isa
from .vectors.parts import UNIT
from .vectors.prelude import parts_of


class TranslationUnit:
    """A graph's C++ file: its graph, its instruction set, and the prelude parts in use."""

    def __init__(self, graph: Graph, isa: Isa, tunings: Mapping[str, Tuning] = MappingProxyType({})) -> None:
        self.graph, self.isa, self.tunings = graph, isa, tunings
        self.roots = graph.roots()
        self.parts: dict[tuple[int, bool], set[str]] = {}
        self.lane_free: set[str] = {"parallel"}
        self._made = frozenset(o for e in graph.externs() for o in e.outputs)
        self._known: dict[tuple[int, bool], dict[str, object]] = {}

    def need(self, width: int, wide: bool, names: Sequence[str]) -> None:
        known = self._known.get((width, wide))
        if known is None:
            known = self._known[width, wide] = dict(parts_of(width, wide, self.isa))
        for name in names:
            if name in known:
                self.parts.setdefault((width, wide), set()).add(name)
            elif name in UNIT:
                self.lane_free.add(name)
            else:
                raise Unsupported(f"{name} has no vector form")

    def allocates(self, storage: str) -> bool:
        """Whether the memory of a storage is allocated for kernels to write: then its address is a multiple of 64."""
        root = self.roots[storage]
        return root not in self.graph.inputs and root not in self.graph.constants and root not in self._made

    def takes_over(self, new: str, old: str) -> bool:
        """Whether ``new`` lies in the memory of ``old``, directly or through others."""
        return self.same_memory(new, old) and old in self.graph.owners(new)[1:]

    def same_memory(self, a: str, b: str) -> bool:
        return self.roots[a] == self.roots[b]
