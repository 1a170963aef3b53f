"""What measuring decides of a GPU's graph: which products are kernels that take along what reads them, which attention is a
kernel with its masks in it, which folds of short rows their readers do, and all kernels' blocks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import torch_private
from ..codegen.generate import generate
from ..codegen.traffic import bytes_moved, seconds_to_move
from ..codegen.triton.choices.product_plan import DESCRIPTORS, descriptors_of
from ..codegen.triton.choices.tiles import ENDS, Shape, Tiles, predicted, tiles
from ..codegen.triton.kernels import variants
from ..config import Config
from ..ir.affine import product
from ..ir.card import KERNEL_SECONDS, OPERATIONS
from ..ir.contracts.source import Unsupported
from ..ir.loops import ITEMSIZE, Loop
from ..ir.parts import part
from ..record.report import Decision
from ..rewrite.layout import FEW_TAPS
from ..runtime.gpu import tune as tune_gpu
from ..runtime.gpu.tune import Candidate, Meanwhile, Measure
from ..schedule import fuse
from ..schedule.gpu import split
from ..schedule.gpu.product_kernels import Alternative, alternatives, nodes_of, one_kernel, replaced, with_room
from ..schedule.gpu.refold_rows import refold, refolds
from ..schedule.sites.attention import attentions
from ..schedule.sites.depthwise import depthwise, matched
from ..schedule.sites.products import Site, sites, used

if TYPE_CHECKING:
    from ..ir.contracts.source import Generated
    from ..ir.loops import Attention, Extern, Graph, Kernel

    Tuned = tuple[Graph, dict[str, Any], list[Decision]]  # what was chosen for kernels by name, and what was tried
    Ahead = Callable[[Graph, Mapping[str, Any], Collection[str]], object]

MOST = 10  # candidates of a product besides the vendor's library
MOST_OF_PARTS = 2  # of which in so many parts
FEW = 2  # candidates where the mode is the default
SURE = 0.8  # part of the vendor's time below which the model is believed
MODELLED = 90  # the architecture that the model of tiles was fitted to
HALVES = ("f16", "bf16")
VENDORS_SHARE = 1.3  # of the time of a product's operations, what the vendor's library takes
VENDORS_COLUMNS = 64  # of its smallest tiles
PART_BYTES = 2.0e12  # a second, of partial sums that are written and read again
VENDOR = "the vendor's library"
ONCE, EACH = "once", "each kernel that reads the result"
MEASURE: Measure = tune_gpu.on_card


@dataclass(frozen=True, slots=True)
class Option:
    """Kernels that may take a site's place, the tile of the product among them, and what a model expects, in seconds."""

    candidate: Candidate
    choice: Alternative
    tile: Tiles
    seconds: float


def for_gpu(graph: Graph, config: Config, measured: Measure | None = None, loops: Graph | None = None) -> Tuned:
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


def with_readers(
    graph: Graph,
    config: Config,
    measured: Measure | None = None,
    ahead: Ahead | None = None,
    loops: Graph | None = None,
) -> Tuned:
    """The default mode: convolutions of single channels as loops, and products of halves with the kernel that reads them. Where a
    model expects much of a kernel of both, that is taken; where it may be faster, a few are measured. While those are
    compiled, ``ahead`` is given what is certain by then: the graph, the choices for its kernels, and the kernels that may
    yet be replaced. ``loops`` is the graph before it was fused."""
    chosen: dict[str, Any] = {}
    asked: list[tuple[Site, list[Option]]] = []
    graph, decisions = (graph, []) if loops is None else _believed_depthwise(loops, graph)
    believed = graph
    for site in sites(graph):
        if site.reader is None or site.dtype not in HALVES:
            continue
        site = dataclasses.replace(site, makers=(None, None))
        first, *others = _options(graph, site, [one_kernel(graph, site)])
        expected = _expected(graph, site, first)
        if expected < SURE and _is_modelled(graph, site):
            believed = _with_option(believed, site, first)
            chosen[first.choice.product] = first.tile
            reason = f"{first.candidate.label} is expected to take {expected:.2f} of the time of {VENDOR}"
            decisions.append(Decision("FL416", "taken", _subject(site), reason, next(iter(site.call.spans), None)))
        elif expected < 1:
            asked.append((site, [first, *[o for o in others if o.tile.size != first.tile.size][: FEW - 1]]))

    def meanwhile() -> None:
        if ahead is not None:
            ahead(believed, chosen, {n.name for site, _ in asked for n in site.nodes})

    graph, measured_tiles, tried = _measured_products(believed, asked, config, measured or MEASURE, meanwhile)
    return graph, chosen | measured_tiles, [*decisions, *tried]


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


def _believed_depthwise(loops: Graph, graph: Graph) -> tuple[Graph, list[Decision]]:
    """The same without measuring, for windows of which a program holds the weights."""
    found = depthwise(loops, FEW_TAPS)
    reason = "loops read what neighbours have in common once, and fuse with what is around them"
    decisions = [Decision("FL416", "taken", name, reason, next(iter(made.spans), None)) for name, made in found.items()]
    return (_fused(loops.with_calls_replaced(found)) if found else graph), decisions


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


def _products(graph: Graph, config: Config, measured: Measure) -> Tuned:
    return _measured_products(
        graph, [(site, _options(graph, site, alternatives(graph, site))) for site in sites(graph)], config, measured
    )


def _measured_products(
    graph: Graph, found: Sequence[tuple[Site, list[Option]]], config: Config, measured: Measure,
    meanwhile: Meanwhile = tune_gpu.nothing,
) -> Tuned:  # fmt: skip
    questions = [
        (Candidate(VENDOR, part(graph, site.nodes)), *(option.candidate for option in row)) for site, row in found
    ]
    chosen: dict[str, Any] = {}
    decisions = []
    results = tune_gpu.timed(questions, _generated, config, measured, meanwhile)
    for (site, row), result in zip(found, results, strict=True):
        if math.isinf(result.seconds[0]):
            continue
        if result.best:
            option = row[result.best - 1]
            graph = _with_option(graph, site, option)
            chosen[option.choice.product] = option.tile
        decisions.append(result.decision(_subject(site), next(iter(site.call.spans), None), "vendor"))
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


def _options(graph: Graph, site: Site, choices: Sequence[Alternative]) -> list[Option]:
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
    for choice in choices:
        kernels = nodes_of(site, choice)
        alone = part(replaced(graph, site, choice), kernels)
        name = next(new.name for k, new in zip(kernels, alone.nodes, strict=True) if k.name == choice.product)
        parts = choice.parts
        size = (batch * parts, rows, columns, summed // parts, ITEMSIZE[site.dtype])
        finished = sum(graph.hint(n) for n in bytes_moved(_after(choice.kernels[-1]), graph)) / elements
        shape = Shape(*size, tf32, run // parts, fixed, finished, graph.card)
        more = 0.1 * predicted(shape, tiles(shape)[0]) if choice.inside else 0.0  # what is computed again
        if parts > 1:
            more = 3e-6 + 8 * parts * elements / PART_BYTES
        for tile in tiles(shape):
            candidate = Candidate(f"{choice.label}, {tile}", _with_room(alone, name, tile), {name: tile})
            found.append(Option(candidate, choice, tile, predicted(shape, tile) + more))
    found.sort(key=lambda option: float(f"{option.seconds:.1e}"))  # of those that differ in little the first
    whole = [o for o in found if o.choice.parts == 1]
    split = [o for o in found if o.choice.parts > 1 and o.seconds < found[0].seconds * 1.5][:MOST_OF_PARTS]
    return [*whole[: MOST - len(split)], *split]


def _after(kernel: Kernel) -> Kernel:
    """What a product's kernel does when its sums are complete."""
    return dataclasses.replace(kernel, phases=kernel.phases[1:])


def _with_option(graph: Graph, site: Site, option: Option) -> Graph:
    return _with_room(replaced(graph, site, option.choice), option.choice.product, option.tile)


def _subject(site: Site) -> str:
    return " + ".join(n.name for n in site.nodes)


def _is_modelled(graph: Graph, site: Site) -> bool:
    """Whether it is what the model was made for: convolutions of images whose channels lie together, on cards of this kind."""
    convolves = site.call.target == "aten.convolution.default"
    return (
        convolves and site.operands.factors[0].owner == site.call.args[0].name and graph.card.architecture == MODELLED
    )


def _expected(graph: Graph, site: Site, option: Option) -> float:
    """The time of a kernel of the product and its reader by that of both, one after the other: by what each moves, and the
    operations of the vendor's product, which uses the card well."""
    assert site.reader is not None
    card, operands, width = graph.card, site.operands, ITEMSIZE[site.dtype]
    rows, columns, terms = (graph.hint(product(n)) for n in (operands.rows, operands.columns, operands.summed))
    rows *= graph.hint(operands.batch)
    computing = VENDORS_SHARE * 2 * rows * _full(columns) * terms / (OPERATIONS[width] * card.processors)
    owners = {b.owner for b in (*operands.factors, operands.out)}
    moving = sum(graph.hint(graph.buffers[name].numel()) for name in owners) * width / card.bandwidth
    vendors = max(computing, moving) + ENDS
    (joined,) = option.choice.kernels
    ours = max(option.seconds, seconds_to_move(joined, graph))
    return ours / (vendors + KERNEL_SECONDS + seconds_to_move(site.reader, graph))


def _full(columns: int) -> int:
    """What the vendor's tiles compute of so many columns."""
    return -(-columns // VENDORS_COLUMNS) * VENDORS_COLUMNS
