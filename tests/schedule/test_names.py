"""Kernels' names say what they compute, fit on a line, and tell kernels apart."""

from __future__ import annotations

import torch
from torch.nn import functional as F

import fuselens
from fuselens.ir.text import parse
from fuselens.record.report import Kernel
from fuselens.schedule.fuse import fuse
from fuselens.schedule.names import LONGEST


def kernels(fn, *inputs: torch.Tensor, target: str = "cpu") -> list[Kernel]:
    report = fuselens.explain(fn, target=target)(*inputs)
    assert not report.diagnostics
    return [k for g in report.graphs for k in g.kernels]


def block(x: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = F.gelu(F.layer_norm(x + r, (16,))) @ w
    return x.softmax(-1)


def test_names_of_a_step() -> None:
    inputs = [torch.randn(4, 16, requires_grad=True), torch.randn(4, 16), torch.randn(16, 16)]
    found = kernels(block, *inputs)
    names = [k.name for k in found]
    layers = ["add_layer_norm_gelu_0", "matmul_add_layer_norm_gelu_0", "matmul_add_layer_norm_gelu_1"]
    assert [k.name for k in found if k.phase == "forward"][:3] == layers
    assert all(("_backward_" in k.name) == (k.phase == "backward") for k in found)
    assert any("softmax" in name and "backward" in name for name in names)
    assert len(set(names)) == len(names)
    fuselens.reset()
    assert names == [k.name for k in kernels(block, *inputs)]


def test_layers_share_functions_that_have_names_of_their_own() -> None:
    text = (
        fuselens.explain(block)(torch.randn(4, 16), torch.randn(4, 16), torch.randn(16, 16)).graphs[0].stage("cpp").text
    )
    assert text.count('extern "C" void matmul_add_layer_norm_gelu') == 1
    assert "// also matmul_add_layer_norm_gelu_1" in text


def test_long_ones_keep_what_says_most() -> None:
    def long(x: torch.Tensor) -> torch.Tensor:
        x = F.leaky_relu(x * 2 + 1, 0.1) - 3
        return torch.log_softmax(F.hardswish(x), -1) + F.softplus(x) * torch.special.log_ndtr(x)

    names = [k.name for k in kernels(long, torch.randn(4, 16))]
    assert any(name.startswith("leaky_relu_hardswish_") for name in names)  # without the arithmetic before it
    assert all(len(name) <= LONGEST for name in names)


def test_inputs_called_like_kernels() -> None:
    def f(exp_0: torch.Tensor, sin_0: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return exp_0.exp(), sin_0.sum(0).sin()

    inputs = torch.randn(64), torch.randn(8, 5)
    for got, wanted in zip(fuselens.compile(f)(*inputs), f(*inputs), strict=True):
        torch.testing.assert_close(got, wanted)
    from fuselens.codegen.steps import to_host
    from fuselens.codegen.triton.kernels import to_triton

    graph = fuse(parse(GRAPH))
    (name,) = [k.name for k in graph.kernels()]
    assert name == "exp_0"
    host = to_host(graph, {"triton": to_triton(graph)}, steps=False)
    assert "exp_0(stream, 1, v_exp_0.data_ptr(), " in host.text


GRAPH = """\
graph g
  input exp_0: f32[64] strides [1]
  buffer out: f32[64] strides [1]
  loop out [i < 64] from aten.exp.default
    x = load exp_0[i] : f32
    y = exp x : f32
    store out[i] = y
  return out
"""
