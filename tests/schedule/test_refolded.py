"""Folds that their readers do themselves: the same numbers under Triton's interpreter, and where that may not be."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.tools.interpret import Job, interpret
from fuselens.config import Config
from fuselens.ir.evaluate import Memory
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.pipeline import tuning
from fuselens.schedule.gpu.refold_rows import refold, refolds
from fuselens.schedule.order import order

NORM_AND_PRODUCTS = """graph g
  input x: f32[300] strides [1]
  input w: f32[40, 300] strides [300, 1]
  input v: f32[7, 300] strides [300, 1]
  buffer s: f32[] strides []
  buffer y: f32[40] strides [1]
  buffer z: f32[7] strides [1]
  kernel norm []
    phase [r0 < 300]
      t0 = load x[r0] : f32
      t1 = mul t0, t0 : f32
      t2 = reduce sum t1 : f32
    phase []
      t3 = const 0.003 : f32
      t4 = mul t2, t3 : f32
      store s[0] = t4
{between}  kernel first [i0 < 40]
    phase []
      t0 = load s[0] : f32
      t1 = rsqrt t0 : f32
    phase [r0 < 300]
      t2 = load x[r0] : f32
      t3 = mul t2, t1 : f32
      t4 = load w[300*i0 + r0] : f32
      t5 = mul t3, t4 : f32
      t6 = reduce sum t5 : f32
    phase []
      store y[i0] = t6
  kernel second [i0 < 7]
    phase [r1 < 300]
      t2 = load x[r1] : f32
      t4 = load v[300*i0 + r1] : f32
      t5 = mul t2, t4 : f32
      t6 = reduce sum t5 : f32
    phase []
      t0 = load s[0] : f32
      t1 = rsqrt t0 : f32
      t7 = mul t6, t1 : f32
      store z[i0] = t7
  return {outputs}
"""
TEXT = NORM_AND_PRODUCTS.format(between="", outputs="y, z")
WRITES_X = """  kernel writes [i0 < 300]
    phase []
      t0 = const 1.0 : f32
      store x[i0] = t0
"""
POINTS = """  kernel points [i0 < 300]
    phase []
      t0 = load x[i0] : f32
      t1 = load s[0] : f32
      t2 = mul t0, t1 : f32
      store q[i0] = t2
"""


def run(graph: Graph, *inputs: torch.Tensor) -> list[torch.Tensor]:
    graph = order(graph)
    source = to_triton(graph)
    memory = Memory(graph)
    memory.bind(list(inputs))
    for kernel in graph.kernels():
        info = source.kernel(kernel.name)
        assert info is not None
        tensors = {a: memory.storage(a) for a in info.arguments}
        (done,) = interpret([Job(source, kernel.name, tensors, {}, int(info.launch["grid"]))])
        memory.flat.update(done)
    return [memory.tensor(str(name)) for name in graph.outputs]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_readers_fold_themselves() -> None:
    graph = parse(TEXT)
    (found,) = refolds(graph)
    assert [r.name for r in found.readers] == ["first", "second"]
    without = refold(graph, found)
    assert [k.name for k in without.kernels()] == ["first", "second"]
    torch.manual_seed(0)
    x, w, v = torch.randn(300), torch.randn(40, 300), torch.randn(7, 300)
    norm = x * ((x * x).sum() * 0.003).rsqrt()
    for given in (graph, without):
        y, z = run(given, x, w, v)
        torch.testing.assert_close(y, w @ norm, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(z, v @ norm, rtol=1e-4, atol=1e-4)


def test_what_readers_need_is_asked_for_before_they_fold() -> None:
    graph = parse(TEXT)
    text = to_triton(refold(graph, *refolds(graph))).text
    body = text[text.index("def first") :]
    assert body.index("tl.load(w") < body.index("tl.sum(")


def test_two_folds_in_one_reader() -> None:
    text = TEXT.replace(
        "      store z[i0] = t7\n", "      t8 = load m[0] : f32\n      t9 = mul t7, t8 : f32\n      store z[i0] = t9\n"
    )
    maximum = "  kernel most []\n    phase [r0 < 300]\n      t0 = load x[r0] : f32\n      t1 = reduce max t0 : f32\n"
    maximum += "    phase []\n      store m[0] = t1\n"
    text = text.replace("  kernel first", f"{maximum}  kernel first")
    text = text.replace("  buffer s:", "  buffer m: f32[] strides []\n  buffer s:")
    graph = parse(text)
    for fold in refolds(graph):
        graph = refold(graph, fold)
    assert [k.name for k in graph.kernels()] == ["first", "second"]
    x, w, v = torch.randn(300), torch.randn(40, 300), torch.randn(7, 300)
    _, z = run(graph, x, w, v)
    torch.testing.assert_close(z, v @ x * ((x * x).sum() * 0.003).rsqrt() * x.max(), rtol=1e-4, atol=1e-4)
    assert "kernel" in show(graph)[0]


@pytest.mark.parametrize(
    "text",
    [
        NORM_AND_PRODUCTS.format(between="", outputs="y, z, s"),
        NORM_AND_PRODUCTS.format(between=WRITES_X, outputs="y, z"),
        NORM_AND_PRODUCTS.format(between="  extern e [e] = aten.neg.default(s)\n", outputs="y, z, e").replace(
            "  buffer y", "  buffer e: f32[] strides []\n  buffer y"
        ),
        NORM_AND_PRODUCTS.format(between=POINTS, outputs="y, z, q").replace(
            "  buffer y", "  buffer q: f32[300] strides [1]\n  buffer y"
        ),
        TEXT.replace("300", "30000"),
    ],
    ids=["a result", "the row changes", "an operator reads", "points read", "a long row"],
)
def test_what_stays(text: str) -> None:
    assert refolds(parse(text)) == []


@pytest.mark.parametrize(("seconds", "kernels"), [(0.99, ["first", "second"]), (1.01, ["norm", "first", "second"])])
def test_measuring_decides(seconds: float, kernels: list[str], tmp_path: Path) -> None:
    asked = []

    def measured(questions: Any, generate: Any, *_: Any) -> list[list[float]]:
        asked.extend([c.label for c in q] for q in questions)
        assert all(generate(c.graph, c.tunings).triton is not None for q in questions for c in q)
        return [[1.0, *[seconds if len(q) == 2 else 1.0] * (len(q) - 1)] for q in questions]

    changed, _, decisions = tuning.for_gpu(parse(TEXT), Config(cache_dir=tmp_path), measured)
    assert [k.name for k in changed.kernels()] == kernels
    assert asked[0] == [tuning.ONCE, tuning.EACH]
    decision = next(d for d in decisions if d.subject == "norm")
    assert (decision.code, decision.verdict) == ("FL416", "taken" if seconds < 1 else "default")
