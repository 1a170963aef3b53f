"""The generate stage: every text that one graph becomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from ..ir.contracts.source import Generated, Source
from ..ir.loops import Graph
from .cpu.vectors.isa import ISAS
from .host import operators_text
from .steps import to_host
from .user_kernels import user_kernels


def generate(
    graph: Graph, target: str, isa: str, document: Source | None = None, *, cpp_host: bool = True,
    floats: Collection[int] = (), float_outputs: Collection[int] = (), tunings: Mapping[str, Any] = MappingProxyType({}),
    fast_math: bool = False,
) -> Generated:  # fmt: skip
    """Sources of ``graph`` (fused and ordered) for ``target``: "cpu", or "cuda" with or without an architecture.

    ``isa`` names the CPU instruction set. ``document`` are the Triton kernels of a CPU graph, to look at. ``cpp_host``
    says whether this process can run host programs without Python; ``floats`` and ``float_outputs`` are for them (see
    ``to_cpp``). ``tunings`` overrules choices for kernels, by name (``nest.Tuning``; on a GPU ``triton.blocks.Blocks``).
    ``fast_math`` concerns C++ too: Triton's functions are the GPU's approximations either way. Raises :class:`..ir.contracts.source.Unsupported`.
    """
    on_gpu = target.startswith("cuda")
    cpp, triton = None, document
    if on_gpu:
        from .triton.kernels import to_triton

        triton = to_triton(graph, target, tunings)
    elif graph.kernels():
        from .cpu.cpp import to_cpp

        cpp = to_cpp(
            graph, isa, host=cpp_host, floats=floats, float_outputs=float_outputs, tunings=tunings, fast_math=fast_math
        )
    if cpp is not None and cpp.program is not None:
        host = operators_text(graph.name, cpp.program)
    else:
        kernels = {"triton": triton} if on_gpu else {"cpp": cpp}
        made = {language: source for language, source in kernels.items() if source is not None}
        host = to_host(graph, made, steps=cpp_host)
    return Generated(host, cpp, triton, ISAS[isa].flags, user_kernels(graph))
