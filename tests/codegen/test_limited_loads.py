"""Loads whose index a limit holds back in some lanes, and loads of every second element, against the oracle."""

from __future__ import annotations

import pytest
import torch

from fuselens.codegen.expressions import slopes
from fuselens.ir.text import parse_expression

from .graphs import agrees_with_evaluator

INDEXES = {
    "low": "Max(0, i1 - 3)",
    "high": "Min(i1 + 3, 39)",
    "both": "Max(0, Min(i1 - 2, 30))",
    "second": "Max(0, 2*i1 - 3)",
    "reflected": "2*Max(0, i1 - 5) - i1 + 5",
    "twice": "Max(0, i1 - 9) + Min(i1, 7)",
    "even": "2*i1 + 1",
    "gathered": "Max(i1, 25 - i1)",
    "backward": "39 - Min(i1, 30)",
}


def copy(index: str, n: int) -> str:
    return f"""graph g
  input arg0: f32[3, 100] strides [100, 1]
  buffer buf0: f32[3, {n}] strides [{n}, 1]
  kernel kernel0 [i0 < 3, i1 < {n}]
    phase []
      t0 = load arg0[100*i0 + {index}] : f32
      store buf0[{n}*i0 + i1] = t0
  return buf0
"""


@pytest.mark.parametrize("isa", ["", "scalar", "sse2"])
@pytest.mark.parametrize("name", INDEXES)
def test_agrees_with_the_oracle(name: str, isa: str) -> None:
    for n in (1, 7, 32, 37):
        agrees_with_evaluator(copy(INDEXES[name], n), [torch.randn(3, 100)], isa)


def test_steps_between_lanes() -> None:
    def found(text: str) -> list[int] | None:
        steps = slopes(parse_expression(text), "i1")
        return None if steps is None else [int(s) for s in steps]

    assert found("100*i0 + 3") == [0]
    assert found("Max(0, 2*i1 - 3) + 4*i0") == [2, 0]
    assert found("2*Max(0, i1 - 5) - i1 + 5") in ([1, -1], [1, -1, 0])
    assert found("Max(i1, 25 - i1)") is None
    assert found("i1*i1") is None
