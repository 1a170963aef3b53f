"""Positions in generated Triton where memory goes on beyond 2^31 elements: counted by 64 bits, whatever an argument has."""

from __future__ import annotations

import dataclasses
import importlib.util
import re

import pytest

from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.tools.offline import compile_kernel, load_module
from fuselens.ir.text import parse

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

WIDE = "tl.program_id(0).to(tl.int64)"


def rows_apart(stride: int) -> str:
    return f"""graph g
  input x: f32[4, 100] strides [{stride}, 1] on cuda
  buffer y: f32[4, 100] strides [100, 1] on cuda
  kernel k [i0 < 4, i1 < 100]
    phase []
      t0 = load x[{stride}*i0 + i1] : f32
      t1 = mul t0, t0 : f32
      store y[100*i0 + i1] = t1
  return y
"""


def columns(stride: int, length: int) -> str:
    return f"""graph g
  input x: f32[{length}, 256] strides [{stride}, 1] on cuda
  buffer y: f32[256] strides [1] on cuda
  kernel k [i0 < 256]
    phase [r0 < {length}]
      t0 = load x[i0 + {stride}*r0] : f32
      t1 = reduce sum t0 : f32
    phase []
      store y[i0] = t1
  return y
"""


SYMBOLIC = """graph g symbols [n = x.0 hint 6, m = x.1 hint 7]
  input x: f32[n, m] strides [m, 1] on cuda
  buffer y: f32[n, m] strides [m, 1] on cuda
  kernel k [i0 < n, i1 < m]
    phase []
      t0 = load x[i0*m + i1] : f32
      t1 = mul t0, t0 : f32
      store y[i0*m + i1] = t1
  return y
"""


def test_a_few_elements_of_a_large_tensor() -> None:
    assert WIDE in to_triton(parse(rows_apart(2**30))).text
    assert WIDE not in to_triton(parse(rows_apart(2**20))).text


def test_columns_far_apart() -> None:
    far, near = (to_triton(parse(columns(*s))).text for s in ((2**17, 2**15), (2**15, 2**15)))
    assert "[None, :].to(tl.int64)" in far
    assert "int64" not in near


def test_products_of_sizes_that_have_32_bits() -> None:
    """A launch whose sizes are all below 2^31 passes them as 32 bits."""
    source = to_triton(parse(SYMBOLIC))
    (info,) = source.kernels
    signature = {n: "i32" if t == "i64" else t for n, t in info.launch["signature"].items()}
    assert "i32" in signature.values()
    made = compile_kernel(
        load_module(source), dataclasses.replace(info, launch={**info.launch, "signature": signature}), 90
    )
    assert re.search(r"arith\.muli .* : i64", made["ttir"])
    assert not re.search(r"arith\.muli .* : i32", made["ttir"])
