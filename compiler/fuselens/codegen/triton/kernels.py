"""Kernels as a Triton module: one ``@triton.jit`` function per kernel, the same loop nests as in C++.

A plan of each is made first: a program computes a block of the kernel's points, in a row or in tiles
(:mod:`.choices.point_plan`), rows over which its phases run (:mod:`.choices.row_plan`), a tile of a product
(:mod:`.choices.product_plan`), or rows of attention (:mod:`.choices.attention_plan`). Then a writer of that form prints it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType

import sympy
from sympy import Expr

from ...ir.contracts.source import Functions, KernelInfo, Source, Writer
from ...ir.loops import Attention, Graph, Kernel
from ..nest import simplify
from ..traffic import bytes_moved
from .attention import AttentionWriter, kernel_of
from .choices import attention_blocks, point_plan, product_plan, row_plan
from .choices.attention_blocks import AttentionBlocks
from .choices.attention_plan import AttentionPlan, default_blocks
from .choices.blocks import Blocks, Work, candidates
from .choices.directions import contiguous_along_points, spread
from .choices.neighbours import joined
from .choices.point_plan import PointPlan, TilePlan, reused_axes
from .choices.product_plan import ProductPlan
from .choices.row_plan import RowPlan
from .choices.tiles import Tiles
from .function import function
from .operations import Operations
from .points import write_points, write_tiles
from .products import Products
from .rows import Rows
from .scalar_ops import FUNCTION_NEEDS, FUNCTIONS

Tuning = Blocks | Tiles | AttentionBlocks
Plan = PointPlan | TilePlan | RowPlan | ProductPlan


def to_triton(graph: Graph, target: str = "cuda", tunings: Mapping[str, Tuning] = MappingProxyType({})) -> Source:
    """All kernels of ``graph`` as the text of a Python module, those of ``tunings`` in these blocks. Raises Unsupported.

    ``KernelInfo.launch`` holds ``grid`` (programs, an expression in the size symbols), ``options`` of Triton's compiler,
    ``blocks`` (the block sizes, which are also the defaults of the kernel's constexpr parameters), ``signature`` (argument
    types), ``device`` (of its arguments) and ``interpretable`` (False where libdevice is needed).
    """
    infos, out, needed = _kernels(graph, tunings)
    text = module_text(f"Kernels of graph {graph.name}. Written by fuselens for {target}.", out.text(), needed)
    offset = text.count("\n") - out.text().count("\n")
    lines = tuple(type(l)(l.line + offset, l.spans) for l in out.lines())
    return Source("triton", text, lines, tuple(infos))


def module_text(title: str, functions: str, needed: Collection[str]) -> str:
    """The text of a module with these functions, and those of ours that they need."""
    head = Writer("#", "    ")
    head.put(f'"""{title}"""')
    head.put()
    head.put("import triton")
    head.put("import triton.language as tl")
    if "libdevice" in needed:
        head.put("from triton.language.extra import libdevice")
    wanted = {*needed, *(n for f in needed for n in FUNCTION_NEEDS.get(f, ()))}
    wanted |= {n for n in ("floor_div", "floor_mod") if f"{n}(" in functions}  # of sizes and positions
    for name, text in FUNCTIONS.items():
        if name in wanted:
            head.put()
            head.put(text.strip())
    return head.text() + functions


def variants(graph: Graph) -> dict[str, tuple[Blocks, ...] | tuple[AttentionBlocks, ...]]:
    """By kernel, the blocks that it has unless others are chosen, then those that are worth measuring. Raises Unsupported."""
    found: dict[str, tuple[Blocks, ...] | tuple[AttentionBlocks, ...]] = {}
    far = _far(graph)
    for source in graph.kernels():
        operations, plan, _ = _kernel(graph, source, None, far)
        assert not isinstance(plan, ProductPlan)
        along = isinstance(plan, RowPlan) and contiguous_along_points(operations.kernel)
        reuses = isinstance(plan, PointPlan) and reused_axes(operations.kernel) is not None
        found[source.name] = candidates(Work.of(operations.kernel, graph, along), plan.blocks, reuses)
    for node in graph.attentions():
        found[node.name] = attention_blocks.candidates(graph, node, default_blocks(graph, node))
    return found


def _kernels(graph: Graph, tunings: Mapping[str, Tuning]) -> tuple[list[KernelInfo], Writer, set[str]]:
    """The kernels' functions, and which others they call."""
    functions, needed, far = Functions(), set[str](), _far(graph)
    for node in graph.nodes:
        if isinstance(node, Attention):
            operations, plan, info = _attention(graph, node, tunings.get(node.name), far)
        elif isinstance(node, Kernel):
            operations, plan, info = _kernel(graph, node, tunings.get(node.name), far)
        else:
            continue
        text, info = function(operations, plan.launch, info)
        needed |= operations.needs.functions
        key = (
            text.anonymous((node.name, *(operations.names[a] for a in info.arguments[: info.pointers]))),
            tuple(info.launch["options"].items()),
            tuple(info.launch["signature"].values()),
            info.launch["device"],
        )
        functions.add(key, text, info)
    out = Writer("#", "    ")
    for text, (_, *others) in functions:
        out.put()
        out.put()
        if others:
            out.put(f"# also {', '.join(i.name for i in others)}")
        out.include(text)
    return functions.kernels, out, needed


def _kernel(graph: Graph, source: Kernel, tuning: Tuning | None, far: set[str]) -> tuple[Operations, Plan, KernelInfo]:
    """A kernel's body, its plan, and what a caller has to know besides how it is launched."""
    nest = simplify(spread(source, graph), graph)
    kernel, wide = joined(nest.kernel, graph), _is_wide(source, nest.kernel, far)
    read, written = bytes_moved(source, graph)
    info = KernelInfo(
        name=source.name, kind=source.kind, arguments=tuple(dict.fromkeys((*source.reads(), *source.writes()))),
        written=tuple(source.writes()), sizes=source.size_symbols(), operations=source.origins, spans=source.spans,
        bytes_read=read, bytes_written=written,
    )  # fmt: skip
    operations = Operations(graph, kernel, wide)
    for name in (*info.arguments, *info.sizes, *(a.name for a in kernel.all_axes())):
        operations.claim(name)
    plan = _plan(kernel, graph, wide, tuning)
    match plan:
        case ProductPlan():
            Products(operations, plan).write()
        case RowPlan():
            Rows(operations, plan, nest.positions).write()
            touched = plan.touched()
            info = dataclasses.replace(
                info,
                arguments=tuple(a for a in info.arguments if a in touched),
                written=tuple(w for w in info.written if w in touched),
            )
        case TilePlan():
            write_tiles(operations, plan)
        case PointPlan():
            write_points(operations, plan)
    return operations, plan, info


def _plan(kernel: Kernel, graph: Graph, wide: bool, tuning: Tuning | None) -> Plan:
    """The form in which a kernel is computed, and its plan."""
    if isinstance(tuning, Tiles):
        return product_plan.choose(kernel, graph, tuning)
    blocks = tuning if isinstance(tuning, Blocks) else None
    if any(p.axes for p in kernel.phases):
        return row_plan.choose(kernel, graph, wide, blocks)
    return point_plan.choose(kernel, graph, blocks)


def _attention(
    graph: Graph, node: Attention, tuning: Tuning | None, far: set[str]
) -> tuple[Operations, AttentionPlan, KernelInfo]:
    blocks = tuning if isinstance(tuning, AttentionBlocks) else default_blocks(graph, node)
    plan, kernel = AttentionPlan.of(graph, node, blocks), kernel_of(node)
    query, key, *others = (graph.buffers[n] for n in (*node.operands(), *node.outputs))
    apart = not far.isdisjoint(b.owner for b in (query, key, *others))
    wide = apart or any(map(_is_large, (*query.sizes, *key.sizes))) or _is_wide(kernel, kernel, far)
    operations = Operations(graph, kernel, wide)
    writer = AttentionWriter(operations, node, plan)
    info = writer.info()
    writer.write(info)
    return operations, plan, info


def _far(graph: Graph) -> set[str]:
    """Storages whose elements may be 2^31 from the first, or as many."""
    return {b.owner for b in graph.buffers.values() if _is_large(b.end()) or _is_large(b.numel())}


def _is_wide(source: Kernel, kernel: Kernel, far: set[str]) -> bool:
    """Whether indices need 64 bits, which are slower: symbolic sizes may grow beyond 32."""
    touched = {*source.reads(), *source.writes()}
    groups = (kernel.axes, *(p.axes for p in kernel.phases))
    return not far.isdisjoint(touched) or any(_is_large(sympy.Mul(*(a.size for a in axes))) for axes in groups)


def _is_large(count: Expr) -> bool:
    return not count.is_Integer or int(count) >= 2**31
