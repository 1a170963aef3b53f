"""Ops in cheaper forms: the same numbers, and where they must stay."""

from __future__ import annotations

import pytest
import torch

from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph, Kernel
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.schedule.gpu.cheaper_ops import with_cheaper_ops

MASKED = """graph g
  input x: f32[6, 8] strides [8, 1]
  buffer y: f32[6, 8] strides [8, 1]
  kernel k [i0 < 6, i1 < 8]
    phase []
      t0 = index i1 : i64
      t1 = index i0 : i64
      t2 = sub t0, t1 : i64
      t3 = const 0 : i64
      t4 = le t2, t3 : bool
      t5 = const {yes} : f32
      t6 = const {no} : f32
      t7 = where t4, t5, t6 : f32
      t8 = const {number} : f32
      t9 = {compare} t7, t8 : bool
      t10 = load x[8*i0 + i1] : f32
      t11 = const -1.0 : f32
      t12 = where t9, t11, t10 : f32
      store y[8*i0 + i1] = t12
  return y
"""
SOFTMAX = """graph g
  input x: f32[4, 9] strides [9, 1]
  buffer y: f32[4, 9] strides [9, 1]
  kernel k [i0 < 4]
    phase [r0 < 9]
      t0 = load x[9*i0 + r0] : f32
      t1 = reduce max t0 : f32
    phase [r0 < 9]
      t2 = load x[9*i0 + r0] : f32
      t3 = {centred}
      t4 = exp t3 : f32
      t5 = reduce sum t4 : f32
    phase [r0 < 9]
      t6 = load x[9*i0 + r0] : f32
      t7 = {again}
      t8 = exp t7 : f32
      t9 = div t8, t5 : f32
      store y[9*i0 + r0] = t9
  return y
"""


def changed(graph: Graph) -> Graph:
    nodes = tuple(with_cheaper_ops(n) if isinstance(n, Kernel) else n for n in graph.nodes)
    graph = graph.replace(nodes=nodes)
    verify(graph)
    return graph


def ops(graph: Graph) -> list[str]:
    return [o.op for k in graph.kernels() for o in k.ops()]


@pytest.mark.parametrize("compare", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize(
    ("yes", "no", "number"), [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (2.0, 3.0, 1.0), ("nan", 0.0, 0.0)]
)
def test_a_mask_that_is_compared_again(compare: str, yes: object, no: object, number: object) -> None:
    graph = parse(MASKED.format(compare=compare, yes=yes, no=no, number=number))
    cheap, x = changed(graph), torch.randn(6, 8)
    assert ops(cheap).count("where") == 1 and compare not in ops(cheap)[5:]
    for found, wanted in zip(evaluate(cheap, [x]), evaluate(graph, [x]), strict=True):
        assert torch.equal(found, wanted)


def test_positions_are_compared_in_32_bits() -> None:
    graph = changed(parse(MASKED.format(compare="eq", yes=1.0, no=0.0, number=0.0)))
    assert {o.dtype for k in graph.kernels() for o in k.ops() if o.op in ("index", "sub")} == {"i32"}


@pytest.mark.parametrize(
    "changes",
    [
        [
            ("t2 = sub t0, t1 : i64", "t2 = mul t0, t13 : i64"),
            ("t3 = const 0 : i64", "t3 = const 0 : i64\n      t14 = const 0 : i64"),
        ],
        [("t3 = const 0 : i64", "t3 = const 5000000000 : i64")],
    ],
)
def test_what_does_not_fit_stays(changes: list[tuple[str, str]]) -> None:
    text = MASKED.format(compare="eq", yes=1.0, no=0.0, number=0.0)
    text = text.replace("      t2 =", "      t13 = const 4000000000 : i64\n      t2 =")
    for old, new in changes:
        text = text.replace(old, new)
    graph = parse(text)
    cheap, x = changed(graph), torch.randn(6, 8)
    assert "i32" not in {o.dtype for k in cheap.kernels() for o in k.ops()}
    assert torch.equal(evaluate(cheap, [x])[0], evaluate(graph, [x])[0])


def test_positions_of_loads_stay() -> None:
    text = MASKED.format(compare="eq", yes=1.0, no=0.0, number=0.0)
    text = text.replace(
        "      t10 = load x[8*i0 + i1]", "      t13 = bounds t0, 8 : i64\n      t10 = load x[8*i0 + %t13]"
    )
    cheap = changed(parse(text))
    assert {o.name: o.dtype for k in cheap.kernels() for o in k.ops()}["t0"] == "i64"


def test_exponentials_are_divided_once_a_row() -> None:
    graph = parse(SOFTMAX.format(centred="sub t2, t1 : f32", again="sub t6, t1 : f32"))
    cheap, x = changed(graph), torch.randn(4, 9)
    assert ops(cheap).count("reciprocal") == 1 and "div" not in ops(cheap)
    torch.testing.assert_close(evaluate(cheap, [x])[0], x.softmax(1))


def test_other_exponentials_are_divided_each() -> None:
    """Of numbers that are far from 0 the sum may have no inverse."""
    graph = parse(SOFTMAX.format(centred="abs t2 : f32", again="abs t6 : f32"))
    assert changed(graph) == graph
