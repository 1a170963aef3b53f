"""The generate stage: every text that one graph becomes."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.loops import Graph
from .cpu.cpp import to_cpp
from .cpu.isa import ISAS
from .host import to_host
from .source import Source


@dataclass(frozen=True, slots=True)
class Generated:
    """The sources of a graph. ``isa_flags`` are compiler flags that the C++ needs; unused languages are None."""

    host: Source
    cpp: Source | None = None
    triton: Source | None = None
    isa_flags: tuple[str, ...] = ()

    def sources(self) -> tuple[Source, ...]:
        return tuple(s for s in (self.cpp, self.triton, self.host) if s is not None)


def generate(graph: Graph, target: str, isa: str, triton_text: bool = False) -> Generated:
    """Sources of ``graph`` (fused and ordered) for ``target``: "cpu", or "cuda" with or without an architecture.

    ``isa`` names the CPU instruction set. ``triton_text`` adds Triton kernels of a CPU graph as a document.
    Raises :class:`.source.Unsupported`.
    """
    cpp = triton = None
    kernels = graph.kernels()
    if target.startswith("cuda") or triton_text:
        from .triton.kernels import to_triton

        triton = to_triton(graph, target)
    if not target.startswith("cuda"):
        cpp = to_cpp(graph, isa) if kernels else None
    used = {"cpp": cpp} if cpp else {"triton": triton} if target.startswith("cuda") and triton else {}
    host = to_host(graph, used)
    return Generated(host, cpp, triton, ISAS[isa].flags)
