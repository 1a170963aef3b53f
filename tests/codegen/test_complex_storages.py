"""Storages of complex numbers, which are storages of reals to loops, in every interpretation of the loop IR."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.tools.interpret import Job, interpret
from fuselens.ir.evaluate import evaluate
from fuselens.ir.text import parse, show
from fuselens.ir.verify import IRError, verify

from .graphs import ISA, agrees_with_evaluator

PRODUCT = """
graph product symbols [s0 = x.0 hint 37]
  input x: c64[s0] strides [1]
  input y: c64[s0] strides [1]
  buffer out: c64[s0] strides [1]
  kernel kernel0 [i0 < s0]
    phase []
      a = load x[2*i0] : f32
      b = load x[2*i0 + 1] : f32
      c = load y[2*i0] : f32
      d = load y[2*i0 + 1] : f32
      ac = mul a, c : f32
      bd = mul b, d : f32
      re = sub ac, bd : f32
      store out[2*i0] = re
      ad = mul a, d : f32
      bc = mul b, c : f32
      im = add ad, bc : f32
      store out[2*i0 + 1] = im
  return out
"""
PARTS = """
graph parts
  input x: c128[9, 21] strides [21, 1]
  buffer re: f64[9] strides [1]
  buffer im: f64[9] strides [1]
  kernel kernel0 [i0 < 9]
    phase [r0 < 21]
      a = load x[42*i0 + 2*r0] : f64
      b = load x[42*i0 + 2*r0 + 1] : f64
      s = reduce sum a : f64
      t = reduce sum b : f64
    phase []
      store re[i0] = s
      store im[i0] = t
  return re, im
"""


def z(*shape: int, dtype: torch.dtype = torch.complex64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 37, 1000])
def test_products(n: int) -> None:
    x, y = z(n), z(n)
    (found,) = agrees_with_evaluator(PRODUCT, (x, y))
    torch.testing.assert_close(found, x * y)


def test_sums_of_parts() -> None:
    x = z(9, 21, dtype=torch.complex128)
    re, im = agrees_with_evaluator(PARTS, (x,))
    torch.testing.assert_close(torch.complex(re, im), x.sum(-1))


@pytest.mark.parametrize("isa", sorted(ISAS))
def test_two_parts_are_one_access(isa: str) -> None:
    text = to_cpp(parse(PRODUCT), isa, host=False).text
    wide = ISAS[isa].register > 0
    assert ("load_pairs" in text) == ("store_pairs" in text) == wide
    if isa in (ISA, "sse2", "scalar"):
        agrees_with_evaluator(PRODUCT, (z(37), z(37)), isa=isa)


def test_triton() -> None:
    graph = parse(PRODUCT.replace(" symbols [s0 = x.0 hint 37]", "").replace("s0", "37"))
    x, y = z(37), z(37)
    source = to_triton(graph, "cuda")
    flat = {name: torch.view_as_real(t).flatten() for name, t in (("x", x), ("y", y), ("out", torch.zeros_like(x)))}
    (after,) = interpret([Job(source, "kernel0", flat, {}, int(source.kernels[0].launch["grid"]))])
    torch.testing.assert_close(torch.view_as_complex(after["out"].view(37, 2)), x * y)


def test_text_and_verification() -> None:
    graph = parse(PRODUCT)
    assert parse(show(graph)[0]) == graph
    verify(graph)
    for right, wrong in (("input x: c64", "input x: f32"), ("[2*i0 + 1] : f32", "[2*i0 + 2] : f32")):
        with pytest.raises(IRError):
            verify(parse(PRODUCT.replace(right, wrong)))


def test_evaluation_sees_the_numbers() -> None:
    x, y = z(5), z(5)
    torch.testing.assert_close(evaluate(parse(PRODUCT), [x, y])[0], x * y)
