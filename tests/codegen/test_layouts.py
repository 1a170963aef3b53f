"""Kernels over every memory layout: broadcast, transposed, gathered, strided, views, halves, symbolic sizes."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fuselens.codegen.cpu.choices import streams, tiles
from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.generate import generate
from fuselens.ir.text import parse
from fuselens.runtime.compile_graph import build

from .graphs import DTYPES, ISA, SIXTEEN, agrees_with_evaluator, compiled, config


@pytest.mark.parametrize("isa", [ISA, "scalar"])
def test_broadcast_and_transpose(isa: str) -> None:
    text = """graph g symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 32]
  input arg0: f32[s0, s1] strides [1, s0]
  input arg1: f32[s1] strides [1]
  input arg2: f32[s0, 1] strides [1, 1]
  input arg3: f32[] strides []
  buffer buf0: f32[s0, s1] strides [s1, 1]
  kernel kernel0 [i0 < s0, i1 < s1] from [aten.add.Tensor, aten.mul.Tensor]
    phase []
      a = load arg0[i0 + s0*i1] : f32
      b = load arg1[i1] : f32
      c = load arg2[i0] : f32
      d = load arg3[0] : f32
      e = mul a, b : f32
      f = sub e, c : f32
      g = div f, d : f32
      store buf0[s1*i0 + i1] = g
  return buf0
"""
    for s0, s1 in ((1, 1), (3, 5), (64, 33), (7, 8), (0, 4), (200, 300)):
        x = torch.randn(s1, s0).t()
        agrees_with_evaluator(text, [x, torch.randn(s1), torch.randn(s0, 1), torch.tensor(0.3)], isa, 1e-6, 1e-6)


TRANSPOSES = """graph g symbols [s0 = arg0.0 hint 1, s1 = arg0.1 hint 300, s2 = arg0.2 hint 290]
  input arg0: {d}[s0, s1, s2] strides [s1*s2, 1, s1]
  input arg1: {d}[s0, s1, s2] strides [s1*s2, s2, 1]
  input arg2: f32[s1] strides [1]
  buffer buf0: {d}[s0, s1, s2] strides [s1*s2, s2, 1]
  buffer buf1: {d}[s0, s1, s2] strides [s1*s2, 1, s1]
  kernel kernel0 [i0 < s0, i1 < s1, i2 < s2] from [aten.where.self]
    phase []
      a = load arg0[s1*s2*i0 + i1 + s1*i2] : {d}
      b = load arg1[s1*s2*i0 + s2*i1 + i2] : {d}
      c = load arg2[i1] : f32
      z = const 0.0 : f32
      p = gt c, z : bool
      af = cast a : {f}
      bf = cast b : {f}
      qf = where p, af, bf : {f}
      q = cast qf : {d}
      store buf0[s1*s2*i0 + s2*i1 + i2] = q
      rf = where p, bf, af : {f}
      r = cast rf : {d}
      store buf1[s1*s2*i0 + i1 + s1*i2] = r
  return buf0, buf1
"""


@pytest.fixture(params=["near", "far"])
def distance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the memory of a kernel is: "far", beyond all caches."""
    if request.param == "far":
        monkeypatch.setattr(tiles, "FAR", 1)
        monkeypatch.setattr(streams, "FAR", 1)
    return request.param


@pytest.mark.parametrize("isa", [ISA, SIXTEEN, "sse2", "scalar"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i16", "u8", "bool"])
def test_transposes_go_through_tiles(dtype: str, isa: str, distance: str) -> None:
    text = TRANSPOSES.format(d=dtype, f="f32" if dtype == "bf16" else dtype)
    source = generate(parse(text), "cpu", isa).cpp
    assert source is not None and "_tile" in source.text
    assert ("_block[" in source.text) == (distance == "far" and isa != "scalar")
    for s0, s1, s2 in ((1, 1, 1), (2, 96, 80), (3, 7, 131), (1, 65, 3), (2, 64, 128), (0, 5, 5), (2, 0, 3)):
        x, y = (torch.randint(0, 2, (s0, s1, s2)) if dtype == "bool" else torch.randn(s0, s1, s2) * 20 for _ in "xy")
        x, y = x.to(DTYPES[dtype]).mT.contiguous().mT.as_strided((s0, s1, s2), (s1 * s2, 1, s1)), y.to(DTYPES[dtype])
        agrees_with_evaluator(text, [x, y, torch.randn(s1)], isa, 0, 0)


@pytest.mark.usefixtures("distance")
@pytest.mark.parametrize("isa", [ISA, SIXTEEN, "sse2", "scalar"])
@pytest.mark.parametrize(("dtype", "rows", "columns"), [("f32", 37, 600), ("f32", 512, 70), ("f64", 100, 17),
                                                        ("i16", 130, 1024), ("u8", 70, 100),
                                                        ("f32", 256, 384), ("u8", 530, 300)])  # fmt: skip
def test_tiles_of_any_strides(dtype: str, rows: int, columns: int, isa: str) -> None:
    """Tiles as wide as a cache line, whole and at the edges; larger ones where lines would throw each other out."""
    text = f"""graph g
  input arg0: {dtype}[2, {rows}, {columns}] strides [{rows * columns}, {columns}, 1]
  input arg1: {dtype}[2, {columns}, {rows}] strides [{rows * columns}, {rows}, 1]
  buffer buf0: {dtype}[2, {columns}, {rows}] strides [{rows * columns}, {rows}, 1]
  kernel kernel0 [i0 < 2, i1 < {columns}, i2 < {rows}]
    phase []
      a = load arg0[{rows * columns}*i0 + i1 + {columns}*i2] : {dtype}
      b = load arg1[{rows * columns}*i0 + {rows}*i1 + i2] : {dtype}
      c = add a, b : {dtype}
      store buf0[{rows * columns}*i0 + {rows}*i1 + i2] = c
  return buf0
"""
    inputs = [(torch.randn(s) * 20).to(DTYPES[dtype]) for s in ((2, rows, columns), (2, columns, rows))]
    agrees_with_evaluator(text, inputs, isa, 0, 0)


@pytest.mark.usefixtures("distance")
@pytest.mark.parametrize("isa", [ISA, "scalar"])
@pytest.mark.parametrize("rows", [5, 64, 125, 300])
def test_functions_of_several_vectors_in_a_tile(rows: int, isa: str) -> None:
    text = f"""graph g
  input arg0: f32[{rows}, 24] strides [1, {rows}]
  buffer buf0: f32[{rows}, 24] strides [1, {rows}]
  buffer buf1: f32[{rows}, 24] strides [24, 1]
  kernel kernel0 [i0 < 24, i1 < {rows}] from [aten.sigmoid.default]
    phase []
      a = load arg0[{rows}*i0 + i1] : f32
      b = sigmoid a : f32
      store buf0[{rows}*i0 + i1] = b
      store buf1[i0 + 24*i1] = b
  return buf0, buf1
"""
    agrees_with_evaluator(text, [torch.randn(24, rows).t()], isa)


def test_what_is_read_and_written_is_not_read_through_a_tile() -> None:
    text = """graph g
  input arg0: f32[64, 64] strides [1, 64]
  input arg1: f32[64, 64] strides [64, 1]
  buffer buf0: f32[64, 64] strides [1, 64]
  buffer buf1: f32[64, 64] strides [64, 1]
  kernel kernel0 [i0 < 64, i1 < 64] from [aten.add.Tensor]
    phase []
      a = load arg0[i0 + 64*i1] : f32
      b = load arg1[64*i0 + i1] : f32
      c = add a, b : f32
      store buf0[i0 + 64*i1] = c
      d = mul a, b : f32
      store buf1[64*i0 + i1] = d
  reuse buf0 = arg0
  write arg0 = buf0
  return buf1
"""
    x, y = torch.randn(64, 64).t(), torch.randn(64, 64)
    agrees_with_evaluator(text, [x, y], rtol=0, atol=0)


def test_short_vectors_beside_wide_ones() -> None:
    """Masks of four lanes: of 64 bits in the kernel of integers, and so in that of short rows."""
    text = """graph g
  input arg0: f32[5, 4] strides [1, 5]
  input arg1: i64[5, 4] strides [1, 5]
  buffer buf0: f32[5, 4] strides [4, 1]
  buffer buf1: i64[5, 4] strides [4, 1]
  kernel kernel0 [i0 < 5, i1 < 4] from [aten.relu.default]
    phase []
      a = load arg0[i0 + 5*i1] : f32
      z = const 0.0 : f32
      m = gt a, z : bool
      b = where m, a, z : f32
      store buf0[4*i0 + i1] = b
  kernel kernel1 [i0 < 5, i1 < 4] from [aten.relu.default]
    phase []
      a = load arg1[i0 + 5*i1] : i64
      z = const 0 : i64
      m = gt a, z : bool
      b = where m, a, z : i64
      store buf1[4*i0 + i1] = b
  return buf0, buf1
"""
    agrees_with_evaluator(text, [torch.randn(4, 5).t(), torch.randint(-5, 5, (4, 5)).t()])


def test_least_and_greatest_in_an_index() -> None:
    text = """graph g
  input arg0: f32[7] strides [1]
  buffer buf0: f32[9] strides [1]
  kernel kernel0 [i0 < 9] from [aten.replication_pad1d.default]
    phase []
      a = load arg0[Min(6, Max(0, i0 - 1))] : f32
      store buf0[i0] = a
  return buf0
"""
    agrees_with_evaluator(text, [torch.randn(7)])


def test_channels_last_is_one_row() -> None:
    text = """graph g
  input arg0: f32[2, 3, 5, 7] strides [105, 1, 21, 3]
  buffer buf0: f32[2, 3, 5, 7] strides [105, 1, 21, 3]
  kernel kernel0 [i0 < 2, i1 < 3, i2 < 5, i3 < 7] from [aten.neg.default]
    phase []
      a = load arg0[105*i0 + i1 + 21*i2 + 3*i3] : f32
      b = neg a : f32
      store buf0[105*i0 + i1 + 21*i2 + 3*i3] = b
  return buf0
"""
    agrees_with_evaluator(text, [torch.randn(2, 5, 7, 3).permute(0, 3, 1, 2)])
    source = generate(parse(text), "cpu", "avx2").cpp
    assert source is not None
    assert "const long n = 210;" in source.text


def test_batch_norm_statistics_over_three_axes() -> None:
    text = """graph g symbols [s0 = arg0.0 hint 4]
  input arg0: f32[s0, 6, 5, 7] strides [210, 35, 7, 1]
  buffer buf0: f32[6] strides [1]
  buffer buf1: i64[6] strides [1]
  kernel kernel0 [i1 < 6] from [aten.mean.dim, aten.argmax.default]
    phase [i0 < s0, i2 < 5, i3 < 7]
      a = load arg0[210*i0 + 35*i1 + 7*i2 + i3] : f32
      s = reduce sum a : f32
      m = reduce argmax a : i64
    phase []
      n = index (35*s0) : i64
      c = cast n : f32
      d = div s, c : f32
      store buf0[i1] = d
      store buf1[i1] = m
  return buf0, buf1
"""
    for n in (1, 4, 9):
        agrees_with_evaluator(text, [torch.randn(n, 6, 5, 7)], rtol=1e-5, atol=1e-6)


LAYER_NORM = """graph g symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 768]
  input arg0: {d}[s0, s1] strides [s1, 1]
  input arg1: f32[s1] strides [1]
  buffer buf0: {d}[s0, s1] strides [s1, 1]
  buffer buf1: f32[s0] strides [1]
  kernel kernel0 [i0 < s0] from [aten.native_layer_norm.default]
    phase [i1 < s1]
      x = load arg0[s1*i0 + i1] : {d}
      a = cast x : f32
      s = reduce sum a : f32
    phase []
      n = index (s1) : i64
      nf = cast n : f32
      mean = div s, nf : f32
      store buf1[i0] = mean
    phase [i2 < s1]
      x2 = load arg0[s1*i0 + i2] : {d}
      a2 = cast x2 : f32
      c2 = sub a2, mean : f32
      q2 = mul c2, c2 : f32
      v = reduce sum q2 : f32
    phase []
      n4 = index (s1) : i64
      nf4 = cast n4 : f32
      var = div v, nf4 : f32
      eps = const 1e-05 : f32
      ve = add var, eps : f32
      r = rsqrt ve : f32
    phase [i3 < s1]
      x3 = load arg0[s1*i0 + i3] : {d}
      a3 = cast x3 : f32
      c3 = sub a3, mean : f32
      w3 = load arg1[i3] : f32
      y3 = mul c3, r : f32
      z3 = mul y3, w3 : f32
      o3 = cast z3 : {d}
      store buf0[s1*i0 + i3] = o3
  return buf0, buf1
"""


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_layer_norm(dtype: str) -> None:
    text = LAYER_NORM.format(d=dtype)
    if dtype == "f32":
        text = "\n".join(l for l in text.split("\n") if " cast x" not in l and "cast z3" not in l)
        for a, b in (("a2", "x2"), ("a3", "x3"), ("a", "x"), ("o3", "z3")):
            for before, after in ((f"sub {a},", f"sub {b},"), (f"sum {a} ", f"sum {b} "), (f"= {a}\n", f"= {b}\n")):
                text = text.replace(before, after)
    for s0, s1 in ((1, 1), (5, 768), (3, 1001), (70, 20)):
        x = torch.randn(s0, s1).to(DTYPES[dtype])
        tolerance = {"f32": 1e-5, "f64": 1e-5, "bf16": 8e-3, "f16": 1e-3}[dtype]
        agrees_with_evaluator(text, [x, torch.randn(s1)], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, 200_003), (3, 70_000), (300, 40), (1200, 1003)])
def test_softmax_with_few_and_many_rows(shape: tuple[int, int]) -> None:
    rows, columns = shape
    text = f"""graph g
  input arg0: f32[{rows}, {columns}] strides [{columns}, 1]
  buffer buf0: f32[{rows}, {columns}] strides [{columns}, 1]
  kernel kernel0 [i0 < {rows}] from [aten._softmax.default]
    phase [i1 < {columns}]
      a = load arg0[{columns}*i0 + i1] : f32
      m = reduce max a : f32
    phase [i2 < {columns}]
      b = load arg0[{columns}*i0 + i2] : f32
      c = sub b, m : f32
      e = exp c : f32
      s = reduce sum e : f32
      store buf0[{columns}*i0 + i2] = e
    phase [i3 < {columns}]
      f = load buf0[{columns}*i0 + i3] : f32
      g = div f, s : f32
      store buf0[{columns}*i0 + i3] = g
  return buf0
"""
    agrees_with_evaluator(text, [torch.randn(rows, columns)], rtol=1e-5, atol=1e-9)
    asks = "__builtin_prefetch(buf0" in to_cpp(parse(text), "avx2").text
    assert asks == (rows == 1200)  # the next row, where there are many long ones


def test_gather_and_scatter() -> None:
    text = """graph g symbols [s0 = arg0.0 hint 64]
  input arg0: i64[s0] strides [1]
  input arg1: f32[50, 20] strides [20, 1]
  input arg2: f32[50] strides [1]
  buffer buf0: f32[s0, 20] strides [20, 1]
  buffer buf1: f32[s0] strides [1]
  buffer buf2: f32[s0] strides [1]
  kernel kernel0 [i0 < s0, i1 < 20] from [aten.embedding.default]
    phase []
      k = load arg0[i0] : i64
      a = load arg1[i1 + 20*%k] : f32
      store buf0[20*i0 + i1] = a
  kernel kernel1 [i0 < s0] from [aten.index.Tensor]
    phase []
      k = load arg0[i0] : i64
      a = load arg2[%k] : f32
      p = index (s0 - i0 - 1) : i64
      store buf1[%p] = a
      q = index (2*i0 + 3) : i64
      qf = cast q : f32
      store buf2[i0] = qf
  return buf0, buf1, buf2
"""
    for n in (1, 5, 16, 103):
        agrees_with_evaluator(text, [torch.randint(0, 50, (n,)), torch.randn(50, 20), torch.randn(50)])


@pytest.mark.parametrize("columns", [9, 300])
def test_few_columns_that_fold_nothing(columns: int) -> None:
    text = f"""graph g
  input arg0: f32[5000, 7] strides [7, 1]
  input arg1: i64[{columns}] strides [1]
  buffer buf0: f32[5000, {columns}] strides [{columns}, 1]
  buffer buf1: i64[{columns}] strides [1]
  kernel kernel0 [i0 < {columns}] from [aten.index_select.default]
    phase []
      k = load arg1[i0] : i64
      o = const 7 : i64
      m = mod k, o : i64
      store buf1[i0] = m
      p = bounds m, 7 : i64
    phase [i1 < 5000]
      a = load arg0[7*i1 + %p] : f32
      store buf0[i0 + {columns}*i1] = a
  return buf0, buf1
"""
    agrees_with_evaluator(text, [torch.randn(5000, 7), torch.randint(-20, 20, (columns,))])


def test_indices_with_division_and_remainder() -> None:
    text = """graph g
  input arg0: f32[6, 10] strides [10, 1]
  buffer buf0: f32[60] strides [1]
  buffer buf1: i64[60] strides [1]
  kernel kernel0 [i0 < 60] from [aten.repeat.default]
    phase []
      a = load arg0[10*Mod(i0, 6) + FloorDiv(i0, 6)] : f32
      store buf0[i0] = a
      b = index (FloorDiv(i0, 7) + 3*Mod(i0, 4)) : i64
      store buf1[i0] = b
  return buf0, buf1
"""
    agrees_with_evaluator(text, [torch.randn(6, 10)])


@pytest.mark.parametrize("source", list(DTYPES))
def test_casts_loads_and_stores_of_every_dtype(source: str) -> None:
    """Through a contiguous and a strided load, for vectors and for single lanes, against torch's conversions."""
    casts = "\n".join(f"      c_{d} = cast x : {d}\n      store out_{d}[i0] = c_{d}" for d in DTYPES if d != source)
    buffers = "\n".join(f"  buffer out_{d}: {d}[s0] strides [1]" for d in DTYPES)
    strided = "\n".join(f"      y_{k} = load arg1[{k}*i0] : {source}\n      store out_s{k}[i0] = y_{k}" for k in (2, 3))
    text = f"""graph g symbols [s0 = arg0.0 hint 64]
  input arg0: {source}[s0] strides [1]
  input arg1: {source}[1000] strides [1]
{buffers}
  buffer out_s2: {source}[s0] strides [1]
  buffer out_s3: {source}[2*s0] strides [1]
  kernel kernel0 [i0 < s0]
    phase []
      x = load arg0[i0] : {source}
{casts}
      store out_{source}[i0] = x
  kernel kernel1 [i0 < s0]
    phase []
      y_2 = load arg1[2*i0] : {source}
      store out_s2[i0] = y_2
      y_3 = load arg1[3*i0 + 1] : {source}
      store out_s3[2*i0] = y_3
      y_4 = load arg1[3*i0 + 2] : {source}
      store out_s3[2*i0 + 1] = y_4
  return {", ".join("out_" + d for d in DTYPES)}, out_s2, out_s3
"""
    del strided
    for n in (1, 8, 21, 64):
        if DTYPES[source].is_floating_point:
            x, y = torch.randn(n, dtype=torch.float64) * 5, torch.randn(1000, dtype=torch.float64)
            if n == 64:
                x[:6] = torch.tensor([torch.nan, 0.0, -0.0, 3.00390625, 1e-3, 100.5])
            x[n // 2] = 2.0
        else:
            x, y = torch.randint(0, 100, (n,)), torch.randint(0, 100, (1000,))
        x, y = x.to(DTYPES[source]), y.to(DTYPES[source])
        if DTYPES[source].is_floating_point and n == 64:
            clean = x.nan_to_num()
            _same_floats(text, x, y)
            x = clean
        if DTYPES[source].is_floating_point:
            x = x.abs()  # negative floats to unsigned integers are undefined in torch
        for isa in (ISA, "scalar"):
            agrees_with_evaluator(text, [x, y], isa, 0, 0)


def _same_floats(text: str, x: torch.Tensor, y: torch.Tensor) -> None:
    """NaN and negative values through the conversions between floats."""
    found = compiled(parse(text)).call((x, y))
    for d, f in zip(DTYPES, found[: len(DTYPES)], strict=True):
        if DTYPES[d].is_floating_point:
            torch.testing.assert_close(f, x.to(DTYPES[d]), equal_nan=True, rtol=0, atol=0)


def test_views_reuse_and_operators() -> None:
    text = """graph g symbols [s0 = arg0.0 hint 64]
  input arg0: f32[s0, 8] strides [8, 1]
  input arg1: f32[8, 8] strides [8, 1]
  view part: f32[s0, 4] strides [8, 1] offset 4 of arg0
  buffer buf0: f32[s0, 8] strides [8, 1]
  buffer buf1: f32[s0, 8] strides [8, 1]
  view half: f32[s0, 4] strides [8, 1] offset 2 of buf1
  buffer buf2: f32[s0, 8] strides [8, 1]
  buffer buf3: i32[s0, 4] strides [4, 1]
  buffer buf4: f32[s0, 8] strides [8, 1]
  kernel kernel0 [i0 < s0, i1 < 8] from [aten.relu.default]
    phase []
      a = load arg0[8*i0 + i1] : f32
      z = const 0.0 : f32
      b = max a, z : f32
      store buf0[8*i0 + i1] = b
  extern buf1 [buf1] = aten.mm.default(buf0, arg1)
  kernel kernel1 [i0 < s0, i1 < 8] from [aten.exp.default]
    phase []
      a = load buf1[8*i0 + i1] : f32
      p = load buf0[8*i0 + i1] : f32
      b = exp a : f32
      c = add b, p : f32
      store buf2[8*i0 + i1] = c
  kernel kernel2 [i0 < s0, i1 < 4] from [aten.to.dtype]
    phase []
      a = load buf1[8*i0 + i1 + 2] : f32
      b = cast a : i32
      store buf3[4*i0 + i1] = b
  kernel kernel3 [i0 < s0, i1 < 8] from [aten.neg.default]
    phase []
      a = load buf2[8*i0 + i1] : f32
      b = neg a : f32
      store buf4[8*i0 + i1] = b
  reuse buf2 = buf0
  return buf4, part, half, buf3, s0 + 1, None
"""
    for n in (1, 20):
        agrees_with_evaluator(text, [torch.randn(n, 8), torch.randn(8, 8)], rtol=1e-5, atol=1e-5)


def test_input_that_is_a_view_with_an_offset() -> None:
    text = """graph g
  input arg0: f32[4, 5] strides [10, 2]
  view v: f32[5] strides [2] offset 10 of arg0
  buffer buf0: f32[4, 5] strides [5, 1]
  kernel kernel0 [i0 < 4, i1 < 5] from [aten.neg.default]
    phase []
      a = load arg0[10*i0 + 2*i1] : f32
      b = neg a : f32
      store buf0[5*i0 + i1] = b
  return buf0, v
"""
    agrees_with_evaluator(text, [torch.randn(100).as_strided((4, 5), (10, 2), 7)])


def test_user_lines_are_named_and_mapped() -> None:
    import dataclasses

    from fuselens.ir.loops import Kernel
    from fuselens.record.report import Span

    graph = parse("""graph g
  input arg0: f32[64] strides [1]
  buffer buf0: f32[64] strides [1]
  kernel kernel0 [i0 < 64] from [aten.neg.default]
    phase []
      a = load arg0[i0] : f32
      b = neg a : f32
      store buf0[i0] = b
  return buf0
""")
    span = Span("/home/someone/model.py", 12, 4, 12, 9)
    (kernel,) = graph.kernels()
    body = tuple(dataclasses.replace(o, spans=(span,)) for o in kernel.phases[0].body)
    phase = dataclasses.replace(kernel.phases[0], body=body)
    marked = graph.replace(nodes=(dataclasses.replace(kernel, phases=(phase,), spans=(span,)),))
    assert isinstance(marked.nodes[0], Kernel)
    source = generate(marked, "cpu", "avx2").cpp
    assert source is not None
    text = source.text.split("\n")
    assert any("= -a" in text[l.line - 1] and l.spans == (span,) for l in source.lines)
    assert any("// model.py:12" in l for l in text)


LAYERS = """graph g
  input x: f32[40] strides [1]
  input w0: f32[40] strides [1]
  input w1: f32[40] strides [1]
  buffer buf0: f32[40] strides [1]
  buffer buf1: f32[40] strides [1]
  buffer buf2: f64[40] strides [1]
  kernel kernel0 [i0 < 40] from [aten.mul.Tensor]
    phase []
      a = load x[i0] : f32
      b = load w0[i0] : f32
      c = mul a, b : f32
      store buf0[i0] = c
  kernel kernel1 [i0 < 40] from [aten.mul.Tensor]
    phase []
      a = load buf0[i0] : f32
      b = load w1[i0] : f32
      c = mul a, b : f32
      store buf1[i0] = c
  kernel kernel2 [i0 < 40] from [aten.mul.Tensor]
    phase []
      a = load buf1[i0] : f32
      b = load w1[i0] : f32
      c = mul a, b : f32
      d = cast c : f64
      store buf2[i0] = d
  return buf1, buf2
"""


def test_kernels_that_differ_in_names_are_one_function() -> None:
    graph = parse(LAYERS)
    source = generate(graph, "cpu", ISA).cpp
    assert source is not None
    assert [k.function for k in source.kernels] == ["kernel0", "kernel0", "kernel2"]
    assert source.text.count('extern "C" void kernel') == 2
    x, w0, w1 = torch.randn(3, 40)
    agrees_with_evaluator(graph, [x, w0, w1])
    bare = build(graph, generate(graph, "cpu", ISA, cpp_host=False), config()).call((x, w0, w1))
    torch.testing.assert_close(bare[0], x * w0 * w1)


def test_a_shared_function_names_the_lines_of_all_its_kernels() -> None:
    import dataclasses

    from fuselens.record.report import Span

    graph = parse(LAYERS)
    spans = [Span("model.py", line, 0, line, 5) for line in (3, 4, 5)]
    nodes = []
    for kernel, span in zip(graph.kernels(), spans, strict=True):
        phase = kernel.phases[0]
        body = tuple(dataclasses.replace(o, spans=(span,)) for o in phase.body)
        nodes.append(dataclasses.replace(kernel, phases=(dataclasses.replace(phase, body=body),), spans=(span,)))
    source = generate(graph.replace(nodes=tuple(nodes)), "cpu", "avx2").cpp
    assert source is not None
    (product,) = [l for l in source.lines if " * " in source.text.split("\n")[l.line - 1] and spans[0] in l.spans][:1]
    assert product.spans == (spans[0], spans[1])
    assert "// also kernel1" in source.text


@pytest.mark.parametrize("n", [1, 5, 8, 9, 16, 40])
@pytest.mark.parametrize("isa", [ISA, "scalar"])
def test_static_sizes_from_one_block_up(n: int, isa: str) -> None:
    text = f"""graph g
  input arg0: f32[3, {n}] strides [{n}, 1]
  input arg1: f32[{n}] strides [1]
  buffer buf0: f32[{n}] strides [1]
  buffer buf1: f32[{n}] strides [1]
  buffer buf2: f32[3, {n}] strides [{n}, 1]
  kernel kernel0 [i0 < {n}] from [aten.neg.default]
    phase []
      a = load arg1[i0] : f32
      b = neg a : f32
      store buf0[i0] = b
  kernel kernel1 [i0 < {n}] from [aten.sum.dim_IntList]
    phase [r0 < 3]
      a = load arg0[{n}*r0 + i0] : f32
      b = load arg1[i0] : f32
      c = mul a, b : f32
      s = reduce sum c : f32
      m = reduce max a : f32
    phase []
      h = const 0.5 : f32
      t = mul s, h : f32
      u = sub t, m : f32
      store buf1[i0] = u
    phase [r1 < 3]
      d = load arg0[{n}*r1 + i0] : f32
      e = sub d, u : f32
      store buf2[{n}*r1 + i0] = e
  return buf0, buf1, buf2
"""
    agrees_with_evaluator(text, [torch.randn(3, n), torch.randn(n)], isa, 1e-6, 1e-6)


UPDATES = """graph g symbols [s0 = at.0 hint 40]
  input x: {d}[{rows}, {columns}] strides [{columns}, 1]
  input at: i64[s0] strides [1]
  input v: {d}[s0, {columns}] strides [{columns}, 1]
  buffer buf0: {d}[{rows}, {columns}] strides [{columns}, 1]
  buffer buf1: {d}[{rows}, {columns}] strides [1, {rows}]
  buffer buf2: {d}[{rows}] strides [1]
  kernel copies [i0 < {rows}, i1 < {columns}]
    phase []
      t0 = load x[{columns}*i0 + i1] : {d}
      store buf0[{columns}*i0 + i1] = t0
      store buf1[i0 + {rows}*i1] = t0
  kernel zeros [i0 < {rows}]
    phase []
      t0 = load x[{columns}*i0] : {d}
      store buf2[i0] = t0
  kernel rows [i0 < {columns}]
    phase [r0 < s0]
      t0 = load at[r0] : i64
      t1 = bounds t0, {rows}, wrap : i64
      t2 = load v[{columns}*r0 + i0] : {d}
      store buf0[{columns}*%t1 + i0] = {kind} t2
  kernel columns [i0 < {columns}]
    phase [r0 < s0]
      t0 = load at[r0] : i64
      t1 = bounds t0, {rows}, wrap : i64
      t2 = load v[{columns}*r0 + i0] : {d}
      store buf1[%t1 + {rows}*i0] = {kind} t2
  kernel numbers []
    phase [r0 < s0]
      t0 = load at[r0] : i64
      t1 = bounds t0, {rows}, wrap : i64
      t2 = load v[{columns}*r0] : {d}
      store buf2[%t1] = {kind} t2
  return buf0, buf1, buf2
"""


def updates(dtype: str, kind: str, rows: int, columns: int) -> str:
    return UPDATES.format(d=dtype, kind=kind, rows=rows, columns=columns)


def update_inputs(dtype: torch.dtype, rows: int, columns: int, count: int) -> list[torch.Tensor]:
    x, v = torch.randn(rows, columns) * 4, torch.randn(count, columns) * 2
    return [(x > 0) if dtype == torch.bool else x.to(dtype), torch.randint(-rows, rows, (count,)),
            (v > 0) if dtype == torch.bool else v.to(dtype)]  # fmt: skip


@pytest.mark.parametrize("isa", [ISA, "scalar", "sse2"])
@pytest.mark.parametrize("kind", ["last", "sum", "prod", "max", "min"])
def test_updates(kind: str, isa: str) -> None:
    dtypes = ["f32", "i64"] if isa != ISA else ["f32", "f64", "bf16", "f16", "i64", "i32", "i8", "u8", "bool"]
    for dtype in dtypes:
        if dtype == "bool" and kind in ("sum", "prod"):
            continue
        for rows, columns, count in ((7, 33, 12), (3, 4, 0), (50, 8, 9)):
            agrees_with_evaluator(updates(dtype, kind, rows, columns), update_inputs(DTYPES[dtype], rows, columns, count), isa,
                  rtol=2e-2 if dtype in ("bf16", "f16") else None, atol=0.2 if dtype in ("bf16", "f16") else None)  # fmt: skip


def test_a_position_out_of_range_is_reported_once() -> None:
    graph = parse(updates("f32", "sum", 7, 33))
    built = compiled(graph)
    x, at, v = update_inputs(torch.float32, 7, 33, 12)
    for wrong in (7, -8, 1 << 40):
        bad = at.clone()
        bad[11] = wrong
        with pytest.raises(IndexError):
            built.call((x, bad, v))
        built.call((x, at, v))


@pytest.mark.parametrize("cpp_host", [True, False])
def test_each_thread_gets_the_errors_of_its_own_calls(cpp_host: bool) -> None:
    graph = parse(updates("f32", "sum", 7, 4000))
    call = build(graph, generate(graph, "cpu", ISA, cpp_host=cpp_host), config()).call
    good = update_inputs(torch.float32, 7, 4000, 40)
    bad = [good[0], torch.full((40,), 7), good[2]]
    expected = call(tuple(good))

    def many(inputs: list[torch.Tensor]) -> int:
        failed = 0
        for _ in range(30):
            try:
                for found, wanted in zip(call(tuple(inputs)), expected, strict=True):
                    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
            except IndexError:
                failed += 1
        return failed

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(many, [good, bad, good, bad])) == [0, 30, 0, 30]


def test_sums_at_one_position_do_not_depend_on_threads() -> None:
    graph = parse(updates("f32", "sum", 3, 3000))
    built = compiled(graph)
    inputs = tuple(update_inputs(torch.float32, 3, 3000, 500))
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(built.call(inputs))
    finally:
        torch.set_num_threads(before)
    for found in results[1:]:
        for a, b in zip(found, results[0], strict=True):
            assert torch.equal(a, b)


def test_comparisons_of_positions_with_a_number() -> None:
    """They are made in 32 bits, whatever the number."""
    lines = [f"      c{k} = {op} {', '.join(args)} : bool\n      store buf{k}[i0] = c{k}\n"
             for k, (op, args) in enumerate((op, args) for op in ("eq", "ne", "lt", "le", "gt", "ge")
                                            for args in (("p", "n"), ("n", "p")))]  # fmt: skip
    buffers = "".join(f"  buffer buf{k}: bool[37] strides [1]\n" for k in range(12))
    text = (
        f"graph g\n  input arg0: i64[] strides []\n{buffers}  kernel kernel0 [i0 < 37]\n    phase []\n"
        f"      n = load arg0[0] : i64\n      p = index i0 + 5 : i64\n{''.join(lines)}"
        f"  return {', '.join(f'buf{k}' for k in range(12))}\n"
    )
    for number in (-(1 << 63), -(1 << 62), -1, 4, 5, 6, 13, 20, 41, 42, 1 << 40, (1 << 63) - 1):
        agrees_with_evaluator(text, [torch.tensor(number)])


@pytest.mark.usefixtures("distance")
@pytest.mark.parametrize("isa", [ISA, SIXTEEN, "sse2", "scalar"])
@pytest.mark.parametrize("dtype", ["bool", "i16", "f32"])
def test_tiles_of_narrow_and_wide_elements(dtype: str, isa: str) -> None:
    """No vector is longer than the row of a tile, and no block that is transposed at once larger than a tile."""
    text = f"""graph g
  input arg0: {dtype}[100, 40] strides [40, 1]
  input arg1: f32[100, 40] strides [1, 100]
  buffer buf0: i64[100, 40] strides [40, 1]
  buffer buf1: f32[100, 40] strides [1, 100]
  buffer buf2: f32[100, 40] strides [1, 100]
  kernel kernel0 [i0 < 40, i1 < 100]
    phase []
      a = load arg0[i0 + 40*i1] : {dtype}
      b = load arg1[100*i0 + i1] : f32
      c = cast a : f32
      d = gt b, c : bool
      e = cast d : i64
      f = add b, c : f32
      store buf0[i0 + 40*i1] = e
      store buf1[100*i0 + i1] = f
      store buf2[100*i0 + i1] = b
  return buf0, buf1, buf2
"""
    source = generate(parse(text), "cpu", isa).cpp
    assert source is not None
    written = re.search(r"store(\d+)\(store0_tile \+ \(i0 - i0_edge\) \* (\d+)", source.text)
    moved = re.findall(r"transpose_whole(\d+)<(\d+), \d+>", source.text)
    block = {1: 16, 2: 16 if "vector_size(32)" in source.text else 8, 4: 8, 8: 4}
    assert written is None or int(written[1]) <= int(written[2])
    assert all(block[int(size)] <= int(edge) for size, edge in moved)
    agrees_with_evaluator(text, [(torch.randn(100, 40) * 2).to(DTYPES[dtype]), torch.randn(40, 100).t()], isa)
