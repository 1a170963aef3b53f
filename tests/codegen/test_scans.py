"""Scans of every kind, over every position and size that takes another path through the loops."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from fuselens.ir.text import parse, show
from fuselens.ir.verify import IRError, verify

from .graphs import DTYPES, ISA, agrees_with_evaluator
from .test_triton import check_all

KINDS = ["sum", "prod", "max", "min", "logsumexp"]
SIZES = [1, 7, 8, 9, 31, 1000, 4097]


def scan(kind: str, dtype: str, layout: str, backward: bool = False) -> str:
    """A graph with symbolic sizes [s0, s1] that runs along rows, columns or everything."""
    kept = {"rows": "i0 < s0", "columns": "i1 < s1", "all": ""}[layout]
    run = {"rows": "i1 < s1", "columns": "i0 < s0", "all": "i0 < s0, i1 < s1"}[layout]
    place = "s0*s1 - s1*i0 - i1 - 1" if backward else "s1*i0 + i1"
    return f"""graph g symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 1000]
  input arg0: {dtype}[s0, s1] strides [s1, 1]
  buffer buf0: {dtype}[s0, s1] strides [s1, 1]
  kernel kernel0 [{kept}]
    phase [{run}]
      t0 = load arg0[{place}] : {dtype}
      t1 = scan {kind} t0 : {dtype}
      store buf0[{place}] = t1
  return buf0
"""


def sample(dtype: str, sizes: tuple[int, ...], kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    if dtype in ("f32", "f64"):
        x = torch.randn(sizes, generator=generator, dtype=DTYPES[dtype])
        return 1 + x * 0.001 if kind == "prod" else x.round(decimals=1)  # equal values, for ties
    low, high = (1, 3) if kind == "prod" else (-50, 50)
    return torch.randint(low, high, sizes, generator=generator).to(DTYPES[dtype])


def static(text: str, shape: tuple[int, int]) -> str:
    text = text.replace(" symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 1000]", "")
    return text.replace("s0", str(shape[0])).replace("s1", str(shape[1]))


@pytest.mark.parametrize("layout", ["rows", "columns", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_f32(kind: str, layout: str) -> None:
    for n in SIZES:
        for shape in ((n, 3), (3, n), (n, 17)):
            agrees_with_evaluator(scan(kind, "f32", layout), [sample("f32", shape, kind)], rtol=2e-5, atol=2e-3)


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_backward(kind: str) -> None:
    for layout in ("rows", "columns", "all"):
        for shape in ((1, 1), (9, 7), (3, 1000), (300, 40), (2, 100_003)):
            agrees_with_evaluator(scan(kind, "f64", layout, backward=True), [sample("f64", shape, kind)])


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("f64", "sum"), ("f64", "min"), ("f64", "logsumexp"), ("i64", "sum"), ("i64", "max"), ("i32", "min"), ("i8", "max"),
     ("u8", "min"), ("i16", "max"), ("i64", "prod")],
)  # fmt: skip
def test_other_dtypes(dtype: str, kind: str) -> None:
    for layout in ("rows", "columns", "all"):
        for shape in ((1, 1), (9, 7), (3, 1000)):
            agrees_with_evaluator(scan(kind, dtype, layout), [sample(dtype, shape, kind)])


@pytest.mark.parametrize("isa", ["scalar", "sse2", "avx2", "avx512"])
def test_instruction_sets(isa: str) -> None:
    if isa == "avx512" and ISA != "avx512":
        pytest.skip("this machine has no AVX-512")
    for kind in KINDS:
        for layout in ("rows", "columns", "all"):
            agrees_with_evaluator(
                scan(kind, "f32", layout), [sample("f32", (33, 70), kind)], isa=isa, rtol=2e-5, atol=1e-4
            )


@pytest.mark.parametrize("kind", ["max", "min", "logsumexp"])
def test_not_a_number_wins(kind: str) -> None:
    for position in (0, 5, 8, 99):
        x = torch.zeros(4, 100)
        x[1, position] = torch.nan
        x[2, position] = -torch.inf
        x[3, position:] = torch.inf
        for layout in ("rows", "columns", "all"):
            agrees_with_evaluator(scan(kind, "f32", layout), [x])


def test_far_apart_terms_do_not_vanish() -> None:
    x = torch.tensor([[-2000.0, -1000.0, 0.0, 1000.0, -torch.inf, 1000.0, 3000.0, 2999.0, 0.0, 88.0] * 2])
    for layout in ("rows", "columns", "all"):
        agrees_with_evaluator(scan("logsumexp", "f32", layout), [x])
        agrees_with_evaluator(scan("logsumexp", "f32", layout), [torch.full((3, 40), -torch.inf)])


def test_nothing_to_scan() -> None:
    for layout in ("rows", "columns", "all"):
        agrees_with_evaluator(scan("sum", "f32", layout), [torch.zeros(0, 5)])
        agrees_with_evaluator(scan("prod", "f32", layout), [torch.zeros(5, 0)])


@pytest.mark.parametrize("kind", ["sum", "max", "logsumexp"])
def test_results_do_not_depend_on_threads(kind: str) -> None:
    threads = torch.get_num_threads()
    x = torch.randn(1, 300_007)
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(agrees_with_evaluator(scan(kind, "f32", "all"), [x], rtol=1e-3, atol=1e-2)[0])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_scans_of_scans_and_folds_of_scans() -> None:
    text = """graph g symbols [s0 = arg0.0 hint 1000000]
  input arg0: f64[s0] strides [1]
  buffer buf0: f64[s0] strides [1]
  buffer buf1: f64[] strides []
  kernel kernel0 []
    phase [r0 < s0]
      t0 = load arg0[r0] : f64
      t1 = scan sum t0 : f64
      t2 = scan max t1 : f64
      t3 = scan min t0 : f64
      t4 = add t2, t3 : f64
      t5 = reduce sum t4 : f64
      store buf0[r0] = t4
    phase []
      store buf1[0] = t5
  return buf0, buf1
"""
    for n in (1, 100, 300_007):
        agrees_with_evaluator(text, [torch.randn(n, dtype=torch.float64)])


def test_text_and_rules() -> None:
    graph = parse(scan("sum", "f32", "rows"))
    verify(graph)
    assert show(parse(show(graph)[0]))[0] == show(graph)[0]
    assert graph.kernels()[0].kind == "scan"
    good = scan("sum", "f32", "rows")
    for bad, rule in (
        (good.replace("scan sum", "scan median"), "unknown scan"),
        (good.replace("phase [i1 < s1]", "phase []").replace("[i0 < s0]", "[i0 < s0, i1 < s1]"), "without axes"),
        (scan("logsumexp", "i64", "rows"), "not defined on i64"),
        (good.replace(": f32\n      store", ": i64\n      store"), "gives f32"),
    ):
        with pytest.raises(IRError, match=rule):
            verify(parse(bad))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_under_the_interpreter() -> None:
    graphs = []
    for kind in KINDS:
        for layout, shape in (("rows", (2, 20)), ("columns", (20, 3)), ("all", (3, 7))):
            x = sample("f32", shape, kind)
            if kind in ("max", "min"):
                x[1, 2] = torch.nan
            text = scan(kind, "f32", layout).replace("hint 64", "hint 4").replace("hint 1000", "hint 8")
            graphs += [(text, [x]), (static(scan(kind, "f32", layout), shape), [x])]
    graphs += [
        (scan(kind, dtype, "rows").replace("hint 1000", "hint 16"), [sample(dtype, (2, 33), kind)])
        for dtype, kind in (("i64", "sum"), ("i32", "max"), ("u8", "min"), ("f64", "logsumexp"))
    ]
    graphs.append(
        (scan("sum", "f64", "rows", backward=True).replace("hint 1000", "hint 60"), [sample("f64", (2, 90), "sum")])
    )
    check_all(graphs, rtol=2e-5, atol=1e-4)
