"""What measuring decides of a GPU's graph: which products are kernels that take along what reads them, and all kernels' blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

from .codegen.generate import generate
from .codegen.source import Unsupported
from .codegen.triton.kernels import variants
from .codegen.triton.products import DESCRIPTORS, descriptors_of
from .codegen.triton.tiles import Shape, Tiles, predicted, tiles
from .config import Config
from .ir.loops import ITEMSIZE
from .ir.parts import part
from .report import Decision
from .runtime import tune_gpu
from .runtime.tune_gpu import Candidate, Measure
from .schedule.product_sites import Site, sites
from .schedule.products import Instead, instead, nodes_of, replaced, with_room

if TYPE_CHECKING:
    from .codegen.source import Generated
    from .ir.loops import Graph

MOST = 10  # candidates of a product besides the vendor's library
MOST_OF_PARTS = 2  # of which in so many parts
PART_BYTES = 2.0e12  # a second, of partial sums that are written and read again
VENDOR = "the vendor's library"
MEASURE: Measure = tune_gpu.on_card


def for_gpu(
    graph: Graph, config: Config, measured: Measure | None = None
) -> tuple[Graph, dict[str, Any], list[Decision]]:
    """The fused graph with the products that are kernels of ours, the blocks of kernels by name, and what was tried."""
    measured = measured or MEASURE
    graph, tiled, decisions = _products(graph, config, measured)
    blocks = {name: v for name, v in variants(graph).items() if name not in tiled}
    chosen, tried = tune_gpu.tune(graph, blocks, _generated, config, measured)
    return graph, chosen | tiled, [*decisions, *tried]


def _generated(graph: Graph, tunings: Mapping[str, Any]) -> Generated | None:
    with suppress(Unsupported):
        return generate(graph, "cuda", "scalar", cpp_host=False, tunings=tunings)
    return None


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
        if not math.isfinite(result.seconds[0]):
            continue
        if result.best:
            _, choice, tile = row[result.best - 1]
            graph = _with_room(replaced(graph, site, choice), choice.product, tile)
            chosen[choice.product] = tile
        subject = " + ".join(n.name for n in site.nodes)
        verdict, span = "taken" if result.best else "vendor", next(iter(site.call.spans), None)
        decisions.append(Decision("FL416", verdict, subject, result.reason, span, result.table))
    return graph, chosen, decisions


def _with_room(graph: Graph, kernel: str, tile: Tiles) -> Graph:
    """``graph`` with room for what the programs of a kernel describe."""
    return with_room(graph, descriptors_of(kernel), tile.programs * DESCRIPTORS) if tile.programs else graph


def _options(graph: Graph, site: Site) -> list[tuple[Candidate, Instead, Any]]:
    """The kernels and tiles from which a model expects most."""
    tf32 = site.dtype == "f32" and torch.get_float32_matmul_precision() != "highest"
    found = []
    for choice in instead(graph, site):
        kernels = nodes_of(site, choice)
        alone = part(replaced(graph, site, choice), kernels)
        name = next(new.name for k, new in zip(kernels, alone.nodes, strict=True) if k.name == choice.product)
        parts = choice.parts
        shape = Shape(site.batch * parts, site.rows, site.columns, site.summed // parts, ITEMSIZE[site.dtype], tf32)
        more = 0.1 * predicted(shape, tiles(shape)[0]) if choice.inside else 0.0  # what is computed again
        if parts > 1:
            more = 3e-6 + 8 * parts * site.batch * site.rows * site.columns / PART_BYTES
        for tile in tiles(shape):
            candidate = Candidate(f"{choice.label}, {tile}", _with_room(alone, name, tile), {name: tile})
            found.append((predicted(shape, tile) + more, parts > 1, (candidate, choice, tile)))
    found.sort(key=lambda f: f[0])
    whole = [c for _, split, c in found if not split]
    split = [c for seconds, split, c in found if split and seconds < found[0][0] * 1.5][:MOST_OF_PARTS]
    return [*whole[: MOST - len(split)], *split]
