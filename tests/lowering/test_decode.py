"""Products of one row on a GPU: loops that read the weight once, with what comes before and after them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from fuselens.autograd.decompositions import table
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.lowering.lower import lower
from fuselens.rewrite.simplify import simplify
from fuselens.schedule.fuse import fuse
from fuselens.schedule.gpu.split import for_gpu
from fuselens.schedule.order import order


def scheduled(fn: Callable[..., Any], inputs: list[torch.Tensor], mode: str = "fake") -> Graph:
    """The graph of ``fn`` as kernels of a GPU."""
    gm = simplify(make_fx(fn, decomposition_table=dict(table()), tracing_mode=mode)(*inputs))
    return order(for_gpu(fuse(lower(gm, name="g", device="cuda"))))


def agrees(graph: Graph, inputs: list[torch.Tensor], expected: Any, tolerance: float) -> None:
    verify(graph)
    on_cpu = graph.replace(buffers={n: dataclasses.replace(b, device="cpu") for n, b in graph.buffers.items()})
    (found,) = evaluate(on_cpu, inputs)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def kernels_agree(fn: Callable[..., Any], inputs: list[torch.Tensor], tolerance: float, mode: str = "fake") -> Graph:
    """What the kernels compute, against eager."""
    graph = scheduled(fn, inputs, mode)
    agrees(graph, inputs, fn(*inputs), tolerance)
    return graph


def r(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(len(sizes) + sizes[-1])).to(dtype) / 4


TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
BY_VECTOR: dict[str, tuple[Any, list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(1, 40), (24, 40)]),
    "linear_bias": (F.linear, [(1, 1, 40), (24, 40), (24,)]),
    "scaled": (lambda c, x, w: torch.addmm(c, x, w.t(), beta=0.5, alpha=3), [(24,), (1, 40), (24, 40)]),
    "vector": (torch.mv, [(24, 40), (40,)]),
    "column": (torch.mm, [(24, 40), (40, 1)]),
    "batch": (lambda x, w: torch.bmm(x, w.transpose(1, 2)), [(3, 1, 40), (3, 24, 40)]),
    "slices": (lambda x, w: F.linear(x[:, 3:33], w[2:20, 4:34]), [(1, 40), (24, 40)]),
    "strided_row": (lambda x, w: F.linear(x.t(), w), [(40, 1), (24, 40)]),
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", BY_VECTOR)
def test_products_by_a_vector_are_loops(name: str, dtype: torch.dtype) -> None:
    fn, shapes = BY_VECTOR[name]
    graph = kernels_agree(fn, [r(*s, dtype=dtype) for s in shapes], TOLERANCE[dtype])
    assert not graph.externs(), show(graph)[0]


def test_other_products_are_the_vendors() -> None:
    for fn, shapes in (
        (F.linear, [(2, 40), (24, 40)]),
        (torch.mm, [(1, 40), (40, 24)]),  # rows of the weight lie across the sum
    ):
        assert scheduled(fn, [r(*s) for s in shapes]).externs()
    assert scheduled(F.linear, [r(5, 40), r(24, 40)], "symbolic").externs()
    assert not kernels_agree(torch.mv, [r(24, 40), r(40)], 1e-5, "symbolic").externs()


def test_operands_that_a_factor_of_0_hides_are_not_read() -> None:
    """As BLAS defines it: NaN in them is none in the result."""
    hidden = [r(24), torch.full((24, 40), torch.nan), r(40)]
    assert scheduled(lambda c, x, w: torch.addmv(c, x, w, alpha=0), hidden).externs()
    kernels_agree(
        lambda c, x, w: torch.addmv(c, x, w, beta=0, alpha=2), [torch.full((24,), torch.nan), r(24, 40), r(40)], 1e-5
    )


def test_deterministic_algorithms_are_atens() -> None:
    """Sums at positions come in any order on a GPU, and so do elements of which one remains. What is around them stays ours."""
    rows = [r(5, 8), torch.tensor([1, 3, 1]), r(3, 8)]

    def add(x: Any, k: Any, v: Any) -> Any:
        return x.index_add(0, k, v * 2) + 1

    def put(x: Any, k: Any, v: Any) -> Any:
        return x.index_put((k,), v * 2) + 1

    def grad(x: Any, k: Any, v: Any) -> Any:
        return torch.ops.aten.embedding_dense_backward(v * 2, k, x.shape[0], -1, False) + 1

    torch.use_deterministic_algorithms(True)
    try:
        graphs = [scheduled(fn, rows) for fn in (add, put, grad)]
    finally:
        torch.use_deterministic_algorithms(False)
    for graph in graphs:
        assert graph.externs() and graph.kernels() and not graph.order_matters()
    assert scheduled(add, rows).order_matters()


def mlp(x: Any, scale: Any, gate: Any, up: Any, down: Any) -> Any:
    wide = x.float()
    h = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * scale
    return x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)


def test_siblings_are_one_kernel_with_what_comes_before_and_after() -> None:
    half = torch.bfloat16
    inputs = [r(*s, dtype=half) for s in ((1, 1, 64), (64,), (96, 64), (96, 64), (64, 96))]
    graph = kernels_agree(mlp, inputs, 3e-2)
    assert not graph.externs()
    norm, both, last = graph.kernels()
    assert [sum(o.op == "reduce" for o in k.ops()) for k in (norm, both, last)] == [1, 2, 1], show(graph)[0]
    assert [len(k.writes()) for k in (norm, both, last)] == [1, 1, 1]


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def test_halves_that_change_places_are_chosen_among() -> None:
    graph = kernels_agree(rotated, [r(3, 8), r(8), r(1, 8)], 1e-6)
    assert len(graph.kernels()) == 1
    ragged = kernels_agree(lambda x, y, z: torch.cat((x * 2, -y, z), 1) + 1, [r(3, 5), r(3, 1), r(3, 4)], 0)
    assert len(ragged.kernels()) == 1, show(ragged)[0]
    half = kernels_agree(lambda x, y: torch.cat((x, y)), [r(3, dtype=torch.float16), r(5, dtype=torch.float16)], 0)
    assert len(half.kernels()) == 1, show(half)[0]


def test_what_is_written_once_more_is_read_after_it_was_written_first() -> None:
    def summed(x: torch.Tensor, at: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        return torch.index_put(x.amax(0), (at,), more, accumulate=True)

    kernels_agree(summed, [r(5, 3, dtype=torch.bfloat16), torch.tensor([1, 1]), r(2, dtype=torch.bfloat16)], 3e-2)


def test_limits_of_limits_are_one() -> None:
    graph = kernels_agree(
        lambda x, y: torch.cat((torch.diagonal_scatter(x, x.diagonal() * 2), y)), [r(2, 2, 2), r(1, 2, 2)], 0
    )
    assert show(parse(show(graph)[0]))[0] == show(graph)[0]
    assert len(graph.kernels()) == 1, show(graph)[0]


def test_nothing_is_loaded_of_an_empty_piece() -> None:
    graph = kernels_agree(lambda x, y, z: torch.cat((x, y, z), 1), [r(3, 0), r(3, 4), r(3, 0)], 0)
    loaded = {op.args[0] for kernel in graph.kernels() for op in kernel.ops() if op.op == "load"}
    assert len(loaded) == 1
    diagonal = kernels_agree(lambda x, y: torch.block_diag(x, y), [r(1, 1), r(2, 3)], 0)
    assert len(diagonal.kernels()) == 1, show(diagonal)[0]
