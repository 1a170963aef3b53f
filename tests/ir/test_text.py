"""The text form: prints, parses, round-trips, and says where a line cannot be read."""

from __future__ import annotations

import pytest
import sympy
import torch

from fuselens.ir.loops import Axis, Buffer, Graph, Loop, Op, symbol, value_symbol
from fuselens.ir.text import parse, parse_expression, show, show_expression
from fuselens.record.report import Span

EVERYTHING = """\
graph g0 symbols [s0 = arg0.0 hint 8, s1 = n hint 3, s2 = arg3.stride0 hint 64]
  input arg0: f32[s0, 64] strides [64, 1]
  input n: int
  input arg3: f32[64, 64] strides [s2, 1]
  constant weight: bf16[4] strides [1]
  buffer buf0: f32[s0, 64] strides [64, 1]
  view buf1: f32[64*s0] strides [1] offset 0 of buf0
  buffer buf2: f32[s0] strides [1] on cuda:0
  buffer buf3: f32[s0, 64] strides [64, 1]
  buffer buf5: f32[s0, 64] strides [64, 1]
  loop buf0 [i0 < s0, i1 < 64] from aten.add.Tensor
    t0 = load arg0[64*i0 + i1] : f32
    t1 = const 1.0 : f32
    t2 = add t0, t1 : f32
    store buf0[64*i0 + i1] = t2
    extra = store buf0[64*i0 + i1] = t2
  loop buf2 [i0 < s0] reduce [r0 < 64]
    t0 = load buf0[64*i0 + r0] : f32
    t1 = reduce sum t0 : f32
    store buf2[i0] = t1
  extern buf3 = aten.mm.default(buf0, arg3, dtype=torch.float32, device=torch.device('cpu'), \
x=[1, s0 + 1, None], y=inf) from aten.mm.default because "a, b: \\"c\\""
  extern pair [buf5, _] = aten.max.dim(buf3, -1, 'a,b', True) mutates [buf3]
  kernel kernel0 [i0 < s0] of [buf4, buf5] from [aten.add.Tensor, aten.sum.default]
    phase [r0 < 64]
      t9 = load arg1[r0] : i64
      t0 = load arg0[-64*i0 + 2*r0 + %t9 + FloorDiv(s0, 2) - 1] : f32
      t1 = reduce argmax t0 : i64
    phase []
      t2 = const -inf : f32
      t3 = const nan : f32
      t4 = const True : bool
      t5 = index 64*i0 + Max(1, s0) : i64
      t6 = const 7 : i32
      t7 = random t6, t6, 12[64*i0 + Max(1, s0)] : i32
      t8 = bounds t5, s0 + 1, wrap : i64
      t10 = bounds t5, 64 : i64
      store buf3[64*%t8 + %t10] = sum t2
  donated arg0
  reuse buf5 = buf2
  write arg0 = buf3
  return buf3, None, 2*s0, arg0
"""


def test_round_trip() -> None:
    graph = parse(EVERYTHING)
    text, lines = show(graph)
    assert text == EVERYTHING
    assert lines == ()
    again = parse(text)
    assert show(again)[0] == text
    assert graph.symbols == {"s0": (0, 0), "s1": (1, -1), "s2": (2, 2)}
    assert graph.hints == {"s0": 8, "s1": 3, "s2": 64}
    assert graph.nodes[2].kwargs[0] == ("dtype", torch.float32)


def test_parse_of_show_is_the_graph() -> None:
    graph = parse(EVERYTHING.replace("const nan", "const 2.0"))  # nan is not equal to itself
    assert parse(show(graph)[0]) == graph


def test_spans_are_comments_and_a_line_map() -> None:
    span = Span("/home/me/toy.py", 6, 8, 6, 20)
    i0, four = symbol("i0"), parse_expression("4")
    body = (Op("t0", "load", ("x", i0), "f32", (span,)), Op("store0", "store", ("y", i0, "t0"), "f32", (span,)))
    graph = Graph(
        "g", ("x",), {n: Buffer(n, "f32", (four,), (parse_expression("1"),)) for n in "xy"},
        (Loop("y", (Axis("i0", four),), (), body, "aten.clone.default", (span,)),), ("y",),
    )  # fmt: skip
    text, lines = show(graph)
    assert "  loop y [i0 < 4] from aten.clone.default  # toy.py:6:9\n" in text
    assert [(line.line, line.spans) for line in lines] == [(4, (span,)), (5, (span,)), (6, (span,))]
    assert show(parse(text))[0] == text.replace("  # toy.py:6:9", "")


@pytest.mark.parametrize(
    "text",
    [
        "0", "-1", "i0", "64*i0 + i1", "s0*i0 + i1 + 3", "-i0 + 7", "s0**2*i0", "i0 + %t3", "FloorDiv(s0, 2)",
        "64*i0 + r0", "s0*(s1 + 1)", "-2*i0 + 3*s0 - 1", "Max(1, s0)", "Mod(s0, 3)",
        "-(s0 + 1)*i0 + i1 + s0",
    ],
)  # fmt: skip
def test_expressions_round_trip(text: str) -> None:
    expression = parse_expression(text)
    assert parse_expression(show_expression(expression)) == expression
    if "Max" not in text:
        assert show_expression(expression) == text


def test_axes_come_before_sizes() -> None:
    e = symbol("s0") + 4 * symbol("r0") + symbol("i10") + symbol("i2") * symbol("s0") + value_symbol("t1") - 5
    assert show_expression(e) == "s0*i2 + i10 + 4*r0 + %t1 + s0 - 5"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("graph g\n  buffer x f32[2]\n", 2),
        ("graph g\n  input x: f32[2] strides [1]\n  loop x [i0 < 2]\n    t0 = load x[i0 +] : f32\n", 4),
        ("graph g\n  input x: f32[2] strides [1]\n  loop x [i0 < 2]\n    nonsense\n", 4),
        ("graph g\n  extern a b c\n", 2),
    ],
)
def test_errors_name_the_line(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"^line {line}:"):
        parse(text)


def test_products_with_sums_are_read_as_they_were() -> None:
    s, r = symbol("s0"), symbol("s1")
    for e in (sympy.Mul(3, s, r + 1), (3 * r + 3) * s, -s * (r + 1), sympy.Mul(-2, s, r - s, r + 1)):
        assert parse_expression(show_expression(e)) == e
