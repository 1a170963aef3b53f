"""Graphs over two devices: loops run on one, numbers in tensors of the CPU are brought to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fuselens import torch_private
from fuselens.ir.loops import Extern, Graph, Loop
from fuselens.lowering.lower import lower

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
