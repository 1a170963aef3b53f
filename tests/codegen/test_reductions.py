"""Reductions of every kind, over every position and size that takes another path through the loops."""

from __future__ import annotations

import math

import pytest
import torch

from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.ir.text import parse

from .graphs import DTYPES, ISA, agrees_with_evaluator, compiled

KINDS = ["sum", "prod", "max", "min", "argmax", "argmin"]
SIZES = [1, 7, 8, 9, 31, 1000, 4097]


def static(text: str, *sizes: int) -> str:
    """A graph with its size symbols replaced by ``sizes``."""
    head, _, rest = text.partition("\n")
    for k, size in enumerate(sizes):
        rest = rest.replace(f"s{k}", str(size))
    return f"{head.split(' symbols')[0]}\n{rest}"


def reduction(kind: str, dtype: str, layout: str) -> str:
    """A graph with symbolic sizes [s0, s1] that reduces rows, columns or everything."""
    result = "i64" if kind.startswith("arg") else dtype
    kept = {"rows": "i0 < s0", "columns": "i1 < s1", "all": ""}[layout]
    folded = {"rows": "i1 < s1", "columns": "i0 < s0", "all": "i0 < s0, i1 < s1"}[layout]
    shape = {"rows": "[s0] strides [1]", "columns": "[s1] strides [1]", "all": "[] strides []"}[layout]
    place = {"rows": "i0", "columns": "i1", "all": "0"}[layout]
    return f"""graph g symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 1000]
  input arg0: {dtype}[s0, s1] strides [s1, 1]
  buffer buf0: {result}{shape}
  kernel kernel0 [{kept}]
    phase [{folded}]
      t0 = load arg0[s1*i0 + i1] : {dtype}
      t1 = reduce {kind} t0 : {result}
    phase []
      store buf0[{place}] = t1
  return buf0
"""


def sample(dtype: str, sizes: tuple[int, ...], kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    if dtype == "bool":
        return torch.rand(sizes, generator=generator) < (0.02 if kind == "any" else 0.98)
    if dtype in ("f32", "f64"):
        x = torch.randn(sizes, generator=generator, dtype=DTYPES[dtype])
        return 1 + x * 0.01 if kind == "prod" else x.round(decimals=1)  # equal values, for ties
    low, high = (1, 3) if kind == "prod" else (-50, 50)
    return torch.randint(low, high, sizes, generator=generator).to(DTYPES[dtype])


@pytest.mark.parametrize("layout", ["rows", "columns", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_f32(kind: str, layout: str) -> None:
    for n in SIZES:
        for shape in ((n, 3), (3, n), (n, 17)):
            agrees_with_evaluator(reduction(kind, "f32", layout), [sample("f32", shape, kind)], rtol=3e-6, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("f64", "sum"), ("f64", "argmin"), ("i64", "sum"), ("i64", "max"), ("i64", "argmax"), ("i32", "min"),
     ("i8", "max"), ("u8", "min"), ("i16", "argmin"), ("i64", "prod"), ("bool", "any"), ("bool", "all")],
)  # fmt: skip
def test_other_dtypes(dtype: str, kind: str) -> None:
    for layout in ("rows", "columns", "all"):
        for shape in ((1, 1), (9, 7), (3, 1000)):
            agrees_with_evaluator(reduction(kind, dtype, layout), [sample(dtype, shape, kind)])


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_not_a_number_wins_and_ties_go_to_the_lowest_index(kind: str) -> None:
    for position in (0, 5, 8, 99):
        x = torch.zeros(4, 100)
        x[1, position] = torch.nan
        x[1, 99] = torch.nan
        x[2, position] = -torch.inf
        x[3, position:] = 1
        for layout in ("rows", "columns", "all"):
            agrees_with_evaluator(reduction(kind, "f32", layout), [x])
            agrees_with_evaluator(static(reduction(kind, "f32", layout), 4, 100), [x])


@pytest.mark.parametrize("isa", [ISA, "scalar"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "i8"])
@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_positions_of_known_sizes_take_narrow_lanes(kind: str, dtype: str, isa: str) -> None:
    for layout in ("rows", "columns", "all"):
        for shape in ((9, 7), (5, 64), (70, 33)):
            text = static(reduction(kind, dtype, layout), *shape)
            x = sample(dtype, shape, kind)
            agrees_with_evaluator(text, [x], isa)
            none = -torch.inf if kind == "argmax" else torch.inf
            if dtype in ("f32", "f64"):
                agrees_with_evaluator(text, [torch.full_like(x, none)], isa)


def test_nothing_to_fold() -> None:
    for layout in ("rows", "columns"):
        agrees_with_evaluator(reduction("sum", "f32", layout), [torch.zeros(0, 5)])
        agrees_with_evaluator(reduction("prod", "f32", layout), [torch.zeros(5, 0)])
    agrees_with_evaluator(reduction("sum", "i64", "all"), [torch.zeros(0, 0, dtype=torch.int64)])


@pytest.mark.parametrize("layout", ["rows", "columns", "all"])
def test_long_sums_are_as_accurate_as_eager(layout: str) -> None:
    n = 300_001
    x = torch.rand((1, n) if layout == "rows" else (n, 1), generator=torch.Generator().manual_seed(1))
    (found,) = agrees_with_evaluator(reduction("sum", "f32", layout), [x], rtol=1e-5, atol=0)
    exact = x.double().sum()
    assert abs(found.double().sum() - exact) <= 2e-7 * exact


def test_results_do_not_depend_on_threads() -> None:
    x = torch.randn(1, 1_000_003)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(agrees_with_evaluator(reduction("sum", "f32", "all"), [x], rtol=1e-3, atol=1e-3)[0].item())
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


@pytest.mark.parametrize("layout", ["rows", "columns", "all"])
def test_one_lane_agrees_with_vectors(layout: str) -> None:
    x = sample("f32", (33, 70), "max")
    for kind in ("max", "argmax", "sum"):
        agrees_with_evaluator(reduction(kind, "f32", layout), [x], isa="scalar", rtol=3e-6, atol=1e-5)
        agrees_with_evaluator(reduction(kind, "f32", layout), [x], isa=ISA, rtol=3e-6, atol=1e-5)


def test_infinite_sums() -> None:
    x = torch.ones(3, 20_000)
    x[0, 9] = torch.inf
    x[1, 9], x[1, 8000] = torch.inf, -torch.inf
    for layout in ("rows", "columns", "all"):
        agrees_with_evaluator(reduction("sum", "f32", layout), [x])


@pytest.mark.parametrize("kind", ["sum", "max", "argmax"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 20), (20, 1)])
def test_axes_of_one_point(kind: str, shape: tuple[int, int]) -> None:
    for layout in ("rows", "columns", "all"):
        text = reduction(kind, "f32", layout).replace(" symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 1000]", "")
        agrees_with_evaluator(
            text.replace("s0", str(shape[0])).replace("s1", str(shape[1])), [sample("f32", shape, kind)]
        )


@pytest.mark.parametrize("isa", [ISA, "sse2", "scalar"])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_division_by_what_does_not_change_in_the_loop(layout: str, isa: str) -> None:
    """It is a product and a correction, and as exact: also where operands or results are infinite, tiny or no numbers."""
    index = {"rows": "45*i0 + r0", "columns": "i0 + 34*r0"}[layout]
    text = f"""graph g
  input arg0: f32[34, 45] strides {[45, 1] if layout == "rows" else [1, 34]}
  input arg1: f32[34] strides [1]
  buffer buf0: f32[34, 45] strides {[45, 1] if layout == "rows" else [1, 34]}
  kernel kernel0 [i0 < 34]
    phase []
      d = load arg1[i0] : f32
    phase [r0 < 45]
      a = load arg0[{index}] : f32
      m = reduce max a : f32
      q = div a, d : f32
      store buf0[{index}] = q
  return buf0
"""
    generator = torch.Generator().manual_seed(0)
    special = torch.tensor(
        [0.0, -0.0, math.inf, -math.inf, math.nan, 3e-45, -1e-39, 1.17e-38, 2e38, -3.4e38, 1.0, -1.0]
    )
    bits = torch.randint(-(2**31), 2**31 - 1, (34 * 45,), generator=generator, dtype=torch.int64).to(torch.int32)
    values = bits.view(torch.float32).clone()
    values[::3] = torch.randn(34 * 45, generator=generator)[::3]
    x = values.view(34, 45)
    x[:, :12] = special
    d = torch.cat([special, torch.randn(11, generator=generator), values[1:34:3]])
    if layout == "columns":
        x = x.t().contiguous().t()
    (found,) = compiled(parse(text), isa).call((x, d))
    expected = x / d[:, None]
    assert torch.equal(found.isnan(), expected.isnan())
    far = (found.view(torch.int32) - expected.view(torch.int32)).abs().masked_fill(expected.isnan(), 0)
    assert far.max() <= 1
    assert not far[(x.abs() > 2.0**-100) & (expected.abs() >= 2.0**-126)].any()


STRIPS = """graph g symbols [s0 = arg0.0 hint 3, s1 = arg0.1 hint 300, s2 = arg0.2 hint 2000]
  input arg0: {d}[s0, s1, s2] strides [s1*s2, s2, 1]
  input arg1: {d}[s1] strides [1]
  buffer buf0: {d}[s0, s2] strides [s2, 1]
  buffer buf1: i64[s0, s2] strides [s2, 1]
  buffer buf2: {d}[s0, s1, s2] strides [s1*s2, s2, 1]
  kernel kernel0 [i0 < s0, i2 < s2]
    phase [i1 < s1]
      a = load arg0[s1*s2*i0 + s2*i1 + i2] : {d}
      b = load arg1[i1] : {d}
      c = mul a, b : {d}
      store buf2[s1*s2*i0 + s2*i1 + i2] = c
      s = reduce sum c : {d}
      m = reduce max a : {d}
      p = reduce argmax a : i64
    phase []
      t = add s, m : {d}
      store buf0[s2*i0 + i2] = t
      store buf1[s2*i0 + i2] = p
  return buf0, buf1, buf2
"""


def check_strips(text: str, dtype: str, shape: tuple[int, int, int]) -> None:
    """The graph of ``text`` on any number of threads."""
    before = torch.get_num_threads()
    x, w = sample(dtype, shape, "sum"), sample(dtype, shape[1:2], "sum")
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(agrees_with_evaluator(text, [x, w], rtol=1e-5, atol=1e-3))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_columns_in_strips(dtype: str) -> None:
    """Strips end where rows of columns do, where a thread's part does and where the stack's arrays do."""
    for shape in ((3, 37, 203), (2, 300, 2050), (1, 4, 1), (5, 1, 70), (2, 130, 64)):
        check_strips(STRIPS.format(d=dtype), dtype, shape)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32"])
def test_few_long_columns_are_cut_for_threads(dtype: str) -> None:
    """Columns of one vector, of several, of more than one strip; parts of even and of odd length."""
    few = STRIPS.format(d=dtype).replace("hint 300", "hint 9000").replace("hint 2000", "hint 40")
    for shape in ((2, 9001, 5), (1, 5000, 40), (1, 3000, 520), (0, 9, 5)):
        check_strips(few, dtype, shape)
    for shape in ((1, 30001, 5), (2, 16384, 8), (3, 5002, 20), (1, 4096, 512)):
        text = static(few, *shape)
        assert "_parts[" in to_cpp(parse(text), ISA).text
        check_strips(text, dtype, shape)
