"""Triton kernels and host programs on a real GPU, against the oracle on the CPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from fuselens.capture.hook import tensor_layout
from fuselens.codegen.generate import generate
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse
from fuselens.runtime import _program, program
from fuselens.runtime.compile_graph import build

from .graphs import config
from .test_layouts import LAYER_NORM
from .test_reductions import reduction, sample
from .test_scalar_ops import all_ops_graph, cases, difference, operands

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def on_gpu(graph: Graph) -> Graph:
    return graph.replace(buffers={n: dataclasses.replace(b, device="cuda") for n, b in graph.buffers.items()})


def agrees_on_gpu(text: str, inputs: Sequence[Any], tolerance: float = 1e-5) -> None:
    graph = parse(text)
    expected = evaluate(graph, [i.clone() for i in inputs])
    moved = on_gpu(graph)
    for steps in (False, program.available(tensor_layout.tensor_offset())):
        built = build(moved, generate(moved, "cuda", "scalar", cpp_host=steps), config(), "cuda")
        assert isinstance(built.call, _program.Program) == steps
        found = built.call(tuple(i.cuda() for i in inputs))
        for f, e in zip(found, expected, strict=True):
            assert f.is_cuda
            torch.testing.assert_close(f.cpu(), e, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_reductions() -> None:
    for kind in ("sum", "max", "argmax", "argmin", "prod"):
        for layout in ("rows", "columns", "all"):
            for shape in ((3, 70), (40, 5), (300, 2000)):
                if kind != "prod" or shape[0] < 300:
                    agrees_on_gpu(reduction(kind, "f32", layout), [sample("f32", shape, kind)], 1e-3)


def test_norms() -> None:
    for dtype in ("bf16", "f16"):
        text = LAYER_NORM.format(d=dtype)
        static = text.replace(" symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 768]", "")
        static = static.replace("s0", "5").replace("s1", "300")
        x = torch.randn(5, 300).to(torch.bfloat16 if dtype == "bf16" else torch.float16)
        for form in (text, static):
            agrees_on_gpu(form, [x, torch.randn(300)], 1e-2)


def test_transposed_tile_and_operators() -> None:
    agrees_on_gpu(
        """graph g symbols [s0 = arg0.0 hint 64]
  input arg0: f32[s0, 70] strides [1, s0]
  input arg1: f32[70, 70] strides [70, 1]
  buffer buf0: f32[s0, 70] strides [70, 1]
  buffer buf1: f32[s0, 70] strides [70, 1]
  buffer buf2: f32[s0, 70] strides [70, 1]
  kernel kernel0 [i0 < s0, i1 < 70] from [aten.relu.default]
    phase []
      a = load arg0[i0 + s0*i1] : f32
      z = const 0.0 : f32
      b = max a, z : f32
      store buf0[70*i0 + i1] = b
  extern buf1 [buf1] = aten.mm.default(buf0, arg1)
  kernel kernel1 [i0 < s0, i1 < 70] from [aten.tanh.default]
    phase []
      a = load buf1[70*i0 + i1] : f32
      b = tanh a : f32
      store buf2[70*i0 + i1] = b
  return buf2
""",
        [torch.randn(70, 50).t(), torch.randn(70, 70) * 0.1],
        1e-3,
    )


@pytest.mark.parametrize("dtype", ["f32", "f64", "i64", "i32", "u8", "bool"])
def test_operations(dtype: str) -> None:
    names = [n for n, d in cases() if d == dtype]
    graph, _ = all_ops_graph(dtype, names)
    columns = operands(dtype, 3)
    if dtype == "f32":  # the GPU's fast functions flush denormals
        columns = [c.where((c == 0) | (c.abs() > 1e-35) | c.isnan(), torch.ones_like(c)) for c in columns]
    if dtype[0] in "iu":
        keep = (columns[1] > 0) & (columns[1] < 64) | (columns[1] < 0) & (columns[0] > -100)
        columns = [c[keep] for c in columns]
    from fuselens.ir.ops import OPS, torch_meaning

    moved = on_gpu(graph)
    found = build(moved, generate(moved, "cuda", "scalar"), config(), "cuda").call(tuple(c.cuda() for c in columns))
    wrong = []
    for name, value in zip(names, found, strict=True):
        result = value.cpu()
        arguments = columns[: OPS[name].arity]
        if name == "where":
            arguments = [columns[0] > columns[1] if dtype != "bool" else columns[0], columns[1], columns[2]]
        if name == "pow" and dtype[0] in "iu":
            arguments = [arguments[0], arguments[1].abs()]
            result = result.where(columns[1] >= 0, arguments[0].pow(arguments[1]))
        if name in ("floordiv", "mod", "fmod", "truncdiv") and dtype[0] == "f":
            continue  # quotients near the limits of the format
        expected = torch_meaning()[name](*arguments)
        if expected.is_floating_point():  # the GPU's own functions: flushed denormals, a few more ulp
            both = (result - expected).abs() <= 2e-5 * expected.abs() + 2e-38
            result = torch.where(both | (result.isnan() & expected.isnan()), expected, result)
        problem = difference(name, dtype, result, expected, arguments)
        if problem:
            wrong.append(problem)
    assert not wrong, "\n".join(wrong)
