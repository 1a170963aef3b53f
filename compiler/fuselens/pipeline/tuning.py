"""What measuring decides of a GPU's graph: which products are kernels that take along what reads them, which attention is a
kernel with its masks in it, which folds of short rows their readers do, and all kernels' blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .. import torch_private
from ..codegen.generate import generate
from ..codegen.triton.choices.product_plan import DESCRIPTORS, descriptors_of
from ..codegen.triton.choices.tiles import Shape, Tiles, predicted, tiles
from ..codegen.triton.kernels import variants
from ..config import Config
from ..ir.affine import product
from ..ir.contracts.source import Unsupported
from ..ir.loops import ITEMSIZE, Loop
from ..ir.parts import part
from ..record.report import Decision
from ..runtime.gpu import tune as tune_gpu
from ..runtime.gpu.tune import Candidate, Measure
from ..schedule import fuse
from ..schedule.gpu import split
from ..schedule.gpu.product_kernels import Alternative, alternatives, nodes_of, replaced, with_room
from ..schedule.gpu.refold_rows import refold, refolds
from ..schedule.sites.attention import attentions
from ..schedule.sites.depthwise import depthwise, matched
from ..schedule.sites.products import Site, sites, used

if TYPE_CHECKING:
    from ..ir.contracts.source import Generated
    from ..ir.loops import Attention, Extern, Graph, Kernel

MOST = 10  # candidates of a product besides the vendor's library
MOST_OF_PARTS = 2  # of which in so many parts
PART_BYTES = 2.0e12  # a second, of partial sums that are written and read again
VENDOR = "the vendor's library"
ONCE, EACH = "once", "each kernel that reads the result"
MEASURE: Measure = tune_gpu.on_card


def for_gpu(
    graph: Graph, config: Config, measured: Measure | None = None, loops: Graph | None = None
) -> tuple[Graph, dict[str, Any], list[Decision]]:
    """The fused graph with the products and attention that are kernels of ours, the blocks of kernels by name, and what was
    tried. ``loops`` is the graph before it was fused, which says how masks are made."""
    measured = measured or MEASURE
    tiled: dict[str, Any] = {}
    decisions: list[Decision] = []
    if loops is not None:
        loops, graph, tiled, decisions = _attention(loops, graph, config, measured)
        graph, tried = _depthwise(loops, graph, config, measured)
        decisions += tried
    graph, products, tried = _products(graph, config, measured)
    tiled |= products
    graph, again = _folds(graph, config, measured)
    decisions += [*tried, *again]
    blocks = {name: v for name, v in variants(graph).items() if name not in tiled}
    chosen, tried = tune_gpu.tune(graph, blocks, _generated, config, measured)
    return graph, chosen | tiled, [*decisions, *tried]


def unmeasured(questions: Sequence[Sequence[Candidate]], *_: Any) -> list[list[float]]:
    """For those who have no card: no time is known."""
    return [[math.nan] * len(candidates) for candidates in questions]


def _generated(graph: Graph, tunings: Mapping[str, Any]) -> Generated | None:
    with suppress(Unsupported):
        return generate(graph, "cuda", "scalar", cpp_host=False, tunings=tunings)
    return None


def _attention(
    loops: Graph, graph: Graph, config: Config, measured: Measure
) -> tuple[Graph, Graph, dict[str, Any], list[Decision]]:
    """The vendor's attention, or ours with what it makes of its masks."""
    found = attentions(loops)
    if not found:
        return loops, graph, {}, []
    ours = _fused(loops.with_calls_replaced(found))
    blocks = variants(ours)
    calls = {n.name: n for n in graph.externs() if n.name in found}
    questions = []
    for name, node in found.items():
        (own,) = (n for n in ours.attentions() if n.name == node.name)
        alone = part(ours, [own])
        vendor = Candidate(VENDOR, part(graph, [*_masks(graph, ours, calls[name]), calls[name]]))
        questions.append((vendor, *(Candidate(str(b), alone, {alone.nodes[0].name: b}) for b in blocks[node.name])))
    chosen: dict[str, Any] = {}
    taken: dict[str, Attention] = {}
    decisions = []
    results = tune_gpu.timed(questions, _generated, config, measured)
    for (name, node), result in zip(found.items(), results, strict=True):
        if math.isinf(result.seconds[0]):
            continue
        if result.best:
            taken[name] = node
            chosen[node.name] = blocks[node.name][result.best - 1]
        decisions.append(result.decision(node.name, next(iter(node.spans), None), "vendor"))
    loops = loops.with_calls_replaced(taken)
    return loops, _fused(loops) if taken else graph, chosen, decisions


def _depthwise(loops: Graph, graph: Graph, config: Config, measured: Measure) -> tuple[Graph, list[Decision]]:
    """The vendor's convolutions of single channels, or loops, which fuse with what is around them."""
    found = depthwise(loops)
    if not found:
        return graph, []
    ours = _fused(loops.with_calls_replaced(found))
    blocks = variants(ours)
    groups = matched(graph, ours, found)
    questions = []
    for group in groups:
        alone = part(ours, group.kernels)
        names = {old.name: new.name for old, new in zip(group.kernels, alone.nodes, strict=True)}
        main = next(k.name for k in group.kernels if group.calls & set(k.loops))
        own = (Candidate(f"loops, {b}", alone, {names[main]: b}) for b in blocks[main])
        questions.append((Candidate(VENDOR, part(graph, group.nodes)), *own))
    taken: dict[str, Loop] = {}
    decisions = []
    for group, result in zip(groups, tune_gpu.timed(questions, _generated, config, measured), strict=True):
        if not math.isfinite(result.seconds[0]):
            continue
        taken |= {name: found[name] for name in group.calls if result.best}
        subject, span = " + ".join(n.name for n in group.nodes), next(iter(found[min(group.calls)].spans), None)
        decisions.append(result.decision(subject, span, "vendor"))
    return _fused(loops.with_calls_replaced(taken)) if taken else graph, decisions


def _fused(loops: Graph) -> Graph:
    return split.for_gpu(fuse.fuse(loops))


def _masks(graph: Graph, ours: Graph, call: Extern) -> list[Kernel]:
    """The kernels that are there for the call alone: our kernel does what they do."""
    made = {ours.buffers[n].owner for k in ours.kernels() for n in k.writes()}
    found: list[Kernel] = []
    for kernel in reversed(graph.kernels()):
        written = {graph.buffers[n].owner for n in kernel.writes()}
        users = [n for n in graph.nodes if not isinstance(n, Loop) and n is not kernel and written & used(graph, n)]
        if users and not written & made and all(any(u is n for n in (call, *found)) for u in users):
            found.insert(0, kernel)
    return found


def _products(graph: Graph, config: Config, measured: Measure) -> tuple[Graph, dict[str, Any], list[Decision]]:
    found = sites(graph)
    options = [_options(graph, site) for site in found]
    questions = [
        (Candidate(VENDOR, part(graph, site.nodes)), *(candidate for candidate, _, _ in row))
        for site, row in zip(found, options, strict=True)
    ]
    chosen: dict[str, Any] = {}
    decisions = []
    results = tune_gpu.timed(questions, _generated, config, measured)
    for site, row, result in zip(found, options, results, strict=True):
        if math.isinf(result.seconds[0]):
            continue
        if result.best:
            _, choice, tile = row[result.best - 1]
            graph = _with_room(replaced(graph, site, choice), choice.product, tile)
            chosen[choice.product] = tile
        subject = " + ".join(n.name for n in site.nodes)
        decisions.append(result.decision(subject, next(iter(site.call.spans), None), "vendor"))
    return graph, chosen, decisions


def _folds(graph: Graph, config: Config, measured: Measure) -> tuple[Graph, list[Decision]]:
    """Folds of short rows, once or in every kernel that reads the result."""
    found = refolds(graph)
    questions = []
    for fold in found:
        without = refold(graph, fold)
        names = {r.name for r in fold.readers}
        each = part(without, [k for k in without.kernels() if k.name in names])
        questions.append((Candidate(ONCE, part(graph, fold.nodes)), Candidate(EACH, each)))
    decisions = []
    for fold, result in zip(found, tune_gpu.timed(questions, _generated, config, measured), strict=True):
        once, each = result.seconds
        if not math.isfinite(once):
            continue
        better = each < once  # it is a launch less, however little that gains here
        if better:
            graph = refold(graph, fold)
        reason = f"folding in {EACH} takes {each / once:.2f} of the time of folding {ONCE}"
        verdict, span = "taken" if better else "default", next(iter(fold.kernel.spans), None)
        decisions.append(Decision("FL416", verdict, fold.kernel.name, reason, span, result.table))
    return graph, decisions


def _with_room(graph: Graph, kernel: str, tile: Tiles) -> Graph:
    """``graph`` with room for what the programs of a kernel describe."""
    return with_room(graph, descriptors_of(kernel), tile.programs * DESCRIPTORS) if tile.programs else graph


def _options(graph: Graph, site: Site) -> list[tuple[Candidate, Alternative, Any]]:
    """The kernels and tiles from which a model expects most."""
    convolves = site.call.target == "aten.convolution.default"
    precision = torch_private.float32_precision("cuda", "conv" if convolves else "matmul")
    tf32 = site.dtype == "f32" and precision == "tf32"
    operands = site.operands
    batch, rows, columns, summed = (
        graph.hint(product(n)) for n in ((operands.batch,), operands.rows, operands.columns, operands.summed)
    )
    elements = batch * rows * columns
    if operands.factors[0].strides[0] == 0 and batch > 1:  # one factor for all matrices: their columns are in one row
        batch, columns = 1, batch * columns
    fixed = all(e.is_Integer for e in (*operands.columns, *operands.summed))
    run = graph.hint(operands.summed[-1]) if len(operands.summed) > 1 else 0
    found = []
    for choice in alternatives(graph, site):
        kernels = nodes_of(site, choice)
        alone = part(replaced(graph, site, choice), kernels)
        name = next(new.name for k, new in zip(kernels, alone.nodes, strict=True) if k.name == choice.product)
        parts = choice.parts
        size = (batch * parts, rows, columns, summed // parts, ITEMSIZE[site.dtype])
        shape = Shape(*size, tf32, run // parts, fixed, graph.card)
        more = 0.1 * predicted(shape, tiles(shape)[0]) if choice.inside else 0.0  # what is computed again
        if parts > 1:
            more = 3e-6 + 8 * parts * elements / PART_BYTES
        for tile in tiles(shape):
            candidate = Candidate(f"{choice.label}, {tile}", _with_room(alone, name, tile), {name: tile})
            found.append((predicted(shape, tile) + more, parts > 1, (candidate, choice, tile)))
    found.sort(key=lambda f: f[0])
    whole = [c for _, split, c in found if not split]
    split = [c for seconds, split, c in found if split and seconds < found[0][0] * 1.5][:MOST_OF_PARTS]
    return [*whole[: MOST - len(split)], *split]
