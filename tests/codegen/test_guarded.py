"""Loads that only count under a condition: left out where it fails, and then without limits of their index."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from fuselens.codegen.triton.kernels import to_triton
from fuselens.ir.text import parse

from .test_triton import check_all

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

LOW = ("Max(0, i1 - 2)", "p0 = index i1 - 2 : i32\n      c0 = const 0 : i32\n      held = ge p0, c0 : bool")
HIGH = ("Min(i1 + 3, 36)", "p0 = index i1 + 3 : i32\n      c0 = const 37 : i32\n      held = lt p0, c0 : bool")
BOTH = (
    "Max(0, Min(i1 - 2, 30))",
    "p0 = index i1 - 2 : i64\n      c0 = const 0 : i64\n      a = ge p0, c0 : bool\n      c1 = const 31 : i64\n"
    "      b = lt p0, c1 : bool\n      held = and a, b : bool",
)


def window(limited: tuple[str, str], dtype: str = "f32", other: str = "0.0", more: str = "") -> str:
    index, condition = limited
    widened = "t1 = cast t0 : f32" if dtype != "f32" else "t1 = const 1.0 : f32"
    chosen = "t1" if dtype != "f32" else "t0"
    return f"""graph g
  input x: {dtype}[5, 37] strides [37, 1] on cuda
  buffer y: f32[5, 37] strides [37, 1] on cuda
  kernel k [i0 < 5, i1 < 37]
    phase []
      t0 = load x[37*i0 + {index}] : {dtype}
      {widened}
      {condition}
      c9 = const {other} : f32
      t2 = where held, {chosen}, c9 : f32
      {more or "t3 = mul t2, t2 : f32"}
      store y[37*i0 + i1] = t3
  return y
"""


@pytest.mark.parametrize("limited", [LOW, HIGH, BOTH], ids=["low", "high", "both"])
@pytest.mark.parametrize(("dtype", "other"), [("f32", "0.0"), ("f32", "0.1"), ("bf16", "0.0"), ("f16", "-inf")])
def test_a_place_beyond_an_edge_is_not_loaded(limited: tuple[str, str], dtype: str, other: str) -> None:
    text = to_triton(parse(window(limited, dtype, other))).text
    assert "tl.where" not in text and "imum" not in text
    assert f"other={float(other)!r}".replace("-inf", 'float("-inf")') in text.replace("'", '"')


def test_values() -> None:
    torch.manual_seed(0)
    check_all(
        [
            (window(limited, dtype, other), [torch.randn(5, 37).to(kind)])
            for limited in (LOW, HIGH, BOTH)
            for dtype, kind in (("f32", torch.float32), ("bf16", torch.bfloat16))
            for other in ("0.0", "-inf")
        ]
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (window(LOW, "bf16", "0.1"), "the conversion would round the number"),
        (window((LOW[0], HIGH[1])), "the condition says nothing of the limit"),
        (window(("Max(1, i1 - 2)", LOW[1])), "another limit"),
        (window(LOW, more="t3 = add t2, t0 : f32"), "somebody else reads the load"),
        (window(LOW, "bf16", more="t3 = add t2, t1 : f32"), "somebody else reads what is made of it"),
        (window(("i1", LOW[1])), "the index has no limit"),
    ],
    ids=lambda v: v if " " in v and "\n" not in v else "",
)
def test_a_choice_remains(text: str, why: str) -> None:
    assert "tl.where" in to_triton(parse(text)).text
    check_all([(text, [torch.randn(5, 37).to(torch.bfloat16 if "x: bf16" in text else torch.float32)])])
