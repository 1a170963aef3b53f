"""The evaluator: kernels, gathers, takeovers, and that it notices what it is there to notice."""

from __future__ import annotations

import pytest
import torch

from fuselens.ir.evaluate import EvaluationError, evaluate
from fuselens.ir.text import parse

SOFTMAX = """\
graph g symbols [s0 = x.0 hint 8]
  input x: f32[s0, 16] strides [16, 1]
  buffer y: f32[s0, 16] strides [16, 1]
  kernel k [i0 < s0]
    phase [r0 < 16]
      t0 = load x[16*i0 + r0] : f32
      t1 = reduce max t0 : f32
    phase [r0 < 16]
      t2 = load x[16*i0 + r0] : f32
      t3 = sub t2, t1 : f32
      t4 = exp t3 : f32
      store y[16*i0 + r0] = t4
      t5 = reduce sum t4 : f32
    phase []
      t6 = reciprocal t5 : f32
    phase [r0 < 16]
      t7 = load y[16*i0 + r0] : f32
      t8 = mul t7, t6 : f32
      store y[16*i0 + r0] = t8
  return y, 2*s0, None
"""


def test_kernel_of_three_passes() -> None:
    x = torch.randn(5, 16)
    y, size, nothing = evaluate(parse(SOFTMAX), [x])
    torch.testing.assert_close(y, x.softmax(-1))
    assert (size, nothing) == (10, None)


def test_gather_and_integer_input() -> None:
    graph = parse("""\
graph g symbols [s0 = n hint 3]
  input w: f32[10, 4] strides [4, 1]
  input i: i64[3] strides [1]
  input n: int
  buffer y: f32[3, 4] strides [4, 1]
  loop y [i0 < 3, i1 < 4]
    t0 = load i[i0] : i64
    t1 = load w[i1 + 4*%t0] : f32
    t2 = index s0 : i64
    t3 = cast t2 : f32
    t4 = mul t1, t3 : f32
    store y[4*i0 + i1] = t4
  return y
""")
    w, i = torch.randn(10, 4), torch.tensor([9, 0, 3])
    torch.testing.assert_close(evaluate(graph, [w, i, 7])[0], w[i] * 7)
    with pytest.raises(EvaluationError, match="reaches"):
        evaluate(graph, [w, torch.tensor([10, 0, 3]), 7])


def test_strided_input_view_output_and_extern() -> None:
    graph = parse("""\
graph g
  input x: f32[3, 4] strides [1, 5]
  buffer y: f32[3, 3] strides [3, 1]
  view xt: f32[4, 3] strides [5, 1] offset 0 of x
  view row: f32[3] strides [1] offset 3 of y
  extern y = aten.mm.default(x, xt)
  return row, xt
""")
    x = torch.randn(4, 5)[:, 1:4].t()
    row, xt = evaluate(graph, [x])
    torch.testing.assert_close(row, (x @ x.t())[1])
    assert xt.data_ptr() == x.data_ptr()
    with pytest.raises(EvaluationError, match="strides"):
        evaluate(graph, [x.contiguous()])


def test_memory_taken_over_is_shared() -> None:
    graph = parse("""\
graph g
  input x: f32[4] strides [1]
  buffer a: f32[4] strides [1]
  buffer b: i32[4] strides [1]
  buffer c: f32[4] strides [1]
  loop a [i0 < 4]
    t0 = load x[i0] : f32
    store a[i0] = t0
  loop b [i0 < 4]
    t0 = const 7 : i32
    store b[i0] = t0
  loop c [i0 < 4]
    t0 = load a[i0] : f32
    store c[i0] = t0
  reuse b = a
  return c
""")
    (c,) = evaluate(graph, [torch.ones(4)])
    assert (c.view(torch.int32) == 7).all()


def test_unwritten_memory_is_rubbish() -> None:
    graph = parse("graph g\n  buffer a: f32[4] strides [1]\n  return a\n")
    assert evaluate(graph, [])[0].isnan().all()


def test_positions_are_checked_and_updates_come_in_turn() -> None:
    text = """graph g
  input x: f32[4] strides [1]
  input at: i64[5] strides [1]
  input v: f32[5] strides [1]
  buffer y: f32[4] strides [1]
  view u: f32[4] strides [1] offset 0 of y
  loop y [i0 < 4]
    t0 = load x[i0] : f32
    store y[i0] = t0
  loop u [] reduce [r0 < 5]
    t0 = load at[r0] : i64
    t1 = bounds t0, 4, wrap : i64
    t2 = load v[r0] : f32
    store y[%t1] = KIND t2
  return y
"""
    x, at = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, -1, 0, 3, 2])
    v = torch.tensor([5.0, 6.0, 7.0, 8.0, torch.nan])
    expected = {
        "last": [7.0, 2.0, torch.nan, 8.0], "sum": [13.0, 2.0, torch.nan, 18.0], "max": [7.0, 2.0, torch.nan, 8.0],
        "min": [1.0, 2.0, torch.nan, 4.0], "prod": [35.0, 2.0, torch.nan, 192.0],
    }  # fmt: skip
    for kind, values in expected.items():
        graph = parse(text.replace("KIND", kind))
        (found,) = evaluate(graph, [x, at, v])
        torch.testing.assert_close(found, torch.tensor(values), equal_nan=True)
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            evaluate(graph, [x, at + torch.tensor([0, 0, 0, 0, wrong - 2]), v])
