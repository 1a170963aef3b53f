"""Graphs over two devices: loops run on one, numbers in tensors of the CPU are brought to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

import fuselens
from fuselens import torch_private
from fuselens.ir.loops import Extern, Graph, Loop
from fuselens.lowering.lower import lower
from fuselens.schedule.fuse import fuse

aten = torch.ops.aten


def lowered(build: Callable[..., Any]) -> Graph:
    """The loop IR of ``build(graph, step, weight)``: a number on the CPU, and a tensor on the GPU."""
    mode = torch_private.fake_mode()
    graph = fx.Graph()
    step, weight = graph.placeholder("step"), graph.placeholder("weight")
    graph.output(build(graph, step, weight))
    module = fx.GraphModule(torch.nn.Module(), graph)
    with mode:
        fakes = [torch.empty(()), torch.empty(4, 4, device="cuda")]
    torch_private.propagate(module, mode, fakes)
    return lower(module, name="g")


def test_what_computes_on_the_cpu_is_no_loop() -> None:
    def build(g: fx.Graph, step: fx.Node, weight: fx.Node) -> Any:
        more = g.call_function(aten.add.Tensor, (step, 1))
        return more, g.call_function(aten.mul.Tensor, (weight, 2))

    graph = lowered(build)
    (called,) = (n for n in graph.nodes if isinstance(n, Extern))
    assert called.target == "aten.add.Tensor" and "CPU" in called.reason
    assert [graph.buffers[n.name].device for n in graph.nodes if isinstance(n, Loop)] == ["cuda:0"]


def test_a_number_is_brought_over_once() -> None:
    def build(g: fx.Graph, step: fx.Node, weight: fx.Node) -> Any:
        product = g.call_function(aten.mul.Tensor, (weight, step))
        return (g.call_function(aten.div.Tensor, (product, step)),)

    graph = lowered(build)
    moved = [n for n in graph.nodes if isinstance(n, Extern)]
    assert [n.target for n in moved] == ["aten._to_copy.default"]
    loads = {o.args[0] for n in graph.nodes if isinstance(n, Loop) for o in n.body if o.op == "load"}
    assert "step" not in loads and moved[0].name in loads


def test_a_constant_is_made_where_it_is_read() -> None:
    def build(g: fx.Graph, step: fx.Node, weight: fx.Node) -> Any:
        number = g.call_function(aten.full.default, ([], 0.5), {"device": torch.device("cpu")})
        return (g.call_function(aten.mul.Tensor, (weight, number)),)

    graph = lowered(build)
    assert all(isinstance(n, Loop) for n in graph.nodes)
    assert {graph.buffers[n.name].device for n in graph.nodes} == {"cuda:0"}


def _added(dtype: torch.dtype, device: str) -> Graph:
    mode = torch_private.fake_mode()
    graph = fx.Graph()
    x, index, source = (graph.placeholder(name) for name in ("x", "index", "source"))
    graph.output((graph.call_function(aten.index_add.default, (x, 0, index, source)),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    with mode:
        fakes = [torch.empty(8, 4, dtype=dtype), torch.empty(5, dtype=torch.int64), torch.empty(5, 4, dtype=dtype)]
    torch_private.propagate(module, mode, fakes)
    return lower(module, name="g", device=device)


def test_points_that_add_halves_at_the_same_time_add_to_single_precision() -> None:
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")):
        for device in ("cpu", "cuda"):
            graph = _added(dtype, device)
            stores = [o for n in graph.nodes if isinstance(n, Loop) for o in n.body if o.op == "store" and o.update]
            wide = "f32" if device == "cuda" else name
            assert [graph.buffers[o.args[0]].dtype for o in stores] == [wide]
            assert not any(isinstance(n, Extern) for n in graph.nodes)


def test_points_that_set_flags_at_the_same_time_are_a_loop() -> None:
    assert all(isinstance(n, Loop) for n in _added(torch.bool, "cuda").nodes)


def test_sums_that_points_make_at_the_same_time_come_in_no_order() -> None:
    assert fuse(_added(torch.float32, "cuda")).order_matters()
    assert not fuse(_added(torch.bool, "cuda")).order_matters()


def test_layouts_of_kernels_that_a_gpu_has_of_its_own() -> None:
    with torch_private.fake_mode():
        for device, pooled, places in (("cpu", (48, 1, 12, 3), (3, 1)), ("cuda", (48, 16, 4, 1), (1, 5))):
            x = torch.empty_strided((2, 3, 2, 2), (12, 1, 6, 3), device=device)
            index = torch.zeros_like(x, dtype=torch.int64)
            assert aten.max_unpool2d.default(x, index, [4, 4]).stride() == pooled
            assert aten.nonzero_static.default(torch.empty(3, 2, 2, device=device), size=5).stride() == places


def test_parts_without_elements_are_not_read() -> None:
    """Small tensors side by side are one loop on a GPU, which looks at each of them at every point."""
    parts = torch.randn(1, 5), torch.randn(2, 5), torch.randn(3, 5)
    report = fuselens.explain(lambda *p: torch.block_diag(*p), target="cuda:sm_90")(*parts)
    (text,) = [s.text for g in report.graphs for s in g.stages if s.name == "triton"]
    assert text.count("tl.load(") == 3
    assert "+ (-1)" not in text and ") - 1)" not in text
