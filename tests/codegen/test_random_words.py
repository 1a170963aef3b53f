"""Random words in generated code: every instruction set, layout and Triton give the evaluator's, bit for bit."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.codegen.generate import generate
from fuselens.ir.text import parse
from fuselens.runtime.build import build
from fuselens.runtime.cache.store import Cache

from .graphs import ISA, agrees_with_evaluator, config

WORDS = """graph g symbols [s0 = arg1.0 hint 64, s1 = arg1.1 hint 32]
  input seed: i32[2] strides [1]
  input arg1: {dtype}[s0, s1] strides [{strides}]
  buffer buf0: i32[s0, s1] strides [{strides}]
  buffer buf1: {dtype}[s0, s1] strides [{strides}]
  kernel kernel0 [i0 < s0, i1 < s1] from [fuselens.random.default]
    phase []
      k0 = load seed[0] : i32
      k1 = load seed[1] : i32
      a = load arg1[{at}] : {dtype}
      w = random k0, k1, 7[s1*i0 + i1] : i32
      one = random k0, k1, 8[0] : i32
      x = xor w, one : i32
      c = const 858993459 : i32
      l = lt w, c : bool
      z = const 0 : {dtype}
      m = where l, a, z : {dtype}
      store buf0[{at}] = x
      store buf1[{at}] = m
  return buf0, buf1
"""
FOLDED = """graph g symbols [s0 = arg1.0 hint 64, s1 = arg1.1 hint 32]
  input seed: i32[2] strides [1]
  input arg1: i32[s0, s1] strides [s1, 1]
  buffer buf0: i32[s0] strides [1]
  kernel kernel0 [i0 < s0] from [fuselens.random.default]
    phase [i1 < s1]
      k0 = load seed[0] : i32
      k1 = load seed[1] : i32
      a = load arg1[s1*i0 + i1] : i32
      w = random k0, k1, 3[s1*i0 + i1] : i32
      x = xor a, w : i32
      r = reduce max x : i32
    phase []
      store buf0[i0] = r
  return buf0
"""
LAYOUTS = {"rows": ("s1, 1", "s1*i0 + i1"), "columns": ("1, s0", "i0 + s0*i1")}
SHAPES = ((1, 1), (3, 5), (64, 33), (7, 8), (0, 4), (20, 300), (1, 1001))


def words(layout: str, dtype: str) -> str:
    strides, at = LAYOUTS[layout]
    return WORDS.format(dtype=dtype, strides=strides, at=at).replace("const 0 : f", "const 0.0 : f")


def inputs(layout: str, dtype: str, shape: tuple[int, int]) -> list[Any]:
    x = torch.randn(shape) if layout == "rows" else torch.randn(shape[::-1]).t()
    return [torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32), x.double() if dtype == "f64" else x]


@pytest.mark.parametrize("isa", [ISA, "sse2", "scalar"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_words_in_cpp(isa: str, dtype: str) -> None:
    for layout in LAYOUTS:
        for shape in SHAPES:
            agrees_with_evaluator(words(layout, dtype), inputs(layout, dtype, shape), isa, 0, 0)
    for rows, columns in SHAPES[1:4]:
        seed, x = torch.tensor([1, -2], dtype=torch.int32), torch.arange(rows * columns).view(rows, columns)
        agrees_with_evaluator(FOLDED, [seed, x.int()], isa, 0, 0)


def test_the_number_of_threads_does_not_matter() -> None:
    graph, given = words("rows", "f32"), inputs("rows", "f32", (100, 1003))
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(agrees_with_evaluator(graph, given, ISA, 0, 0))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("isa", ["avx512", "neon"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_other_instruction_sets_compile(isa: str, dtype: str) -> None:
    generated = generate(parse(words("rows", dtype)), "cpu", isa)
    assert generated.cpp is not None
    assert "random_next" in generated.cpp.text or (isa, dtype) == ("neon", "f64")
    assert isa != "neon" or "ia32" not in generated.cpp.text
    build(generated.cpp.text, ISAS[isa].flags, config(), Cache(config().cache_dir))  # NEON's text is generic


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_words_in_triton() -> None:
    from .test_triton import check_all

    cases: list[tuple[str, list[Any]]] = []
    for layout in LAYOUTS:
        cases += [(words(layout, "f32"), inputs(layout, "f32", shape)) for shape in ((3, 5), (64, 33), (1, 1001))]
    cases.append((FOLDED, [torch.tensor([1, -2], dtype=torch.int32), torch.arange(2100).view(70, 30).int()]))
    check_all(cases, 0, 0)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_distributions_in_triton() -> None:
    """Random operators of a program, lowered and fused: Triton agrees with the evaluator."""
    from fuselens import torch_private
    from fuselens.autograd.joint import trace
    from fuselens.autograd.partition import forward_only
    from fuselens.lowering.lower import lower
    from fuselens.schedule.fuse import fuse

    from .test_triton import check_all

    draws: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.nn.functional.dropout(x, 0.3) + torch.rand_like(x),
        lambda x: torch.randn_like(x) * x,
        lambda x: torch.empty_like(x).exponential_(0.5).log(),
        lambda x: torch.randint_like(x, -4, 9) + x,
        lambda x: torch.nn.functional.dropout(x, 0.5).sum(1),
    ]
    cases: list[tuple[Any, list[Any]]] = []
    for draw in draws:
        graph = fx.Graph()
        graph.output((graph.call_function(draw, (graph.placeholder("x"),)),))
        mode, x = torch_private.fake_mode(), torch.randn(40, 30)
        joint = trace(
            fx.GraphModule(torch.nn.Module(), graph), [torch_private.fake_static(mode, x)], grad_enabled=False,
            counter_based=True,
        )  # fmt: skip
        lowered = fuse(lower(forward_only(joint), name="draws"))
        (seed,) = (n.name for n in lowered.externs())
        nodes = tuple(n for n in lowered.nodes if n.name != seed)
        cases.append(
            (
                lowered.replace(inputs=(*lowered.inputs, seed), nodes=nodes),
                [x, torch.tensor([7, -9], dtype=torch.int32)],
            )
        )
    check_all(cases, 1e-4, 1e-5)
