"""Wide unsigned integers: what every conversion from and to them gives, at the ends of their ranges too, and what loops do."""

from __future__ import annotations

import pytest
import torch

from fuselens.ir.text import parse
from fuselens.ir.verify import IRError, verify

from .graphs import DTYPES, ISA, agrees_with_evaluator

UNSIGNED = ("u16", "u32", "u64")


def sample(dtype: str, other: str) -> torch.Tensor:
    """37 values of ``dtype`` that ``other`` can hold, or wrap: what it cannot hold of a float is undefined."""
    generator = torch.Generator().manual_seed(3)
    if dtype == "bool":
        return torch.arange(37) % 3 == 0
    if DTYPES[dtype].is_floating_point:
        top = {"f16": 15}.get(dtype, {"u16": 16, "u32": 32, "u64": 63}[other])
        return (torch.rand(37, dtype=torch.float64, generator=generator) * 2.0**top * 0.99).to(DTYPES[dtype])
    x = torch.randint(-(2**62), 2**62, (37,), generator=generator).to(DTYPES[dtype])
    if dtype in UNSIGNED:
        bits = 8 * x.element_size()
        x[:4] = torch.tensor([0, 1, 2 ** (bits - 1), 2**bits - 1], dtype=DTYPES[dtype])
    return x


@pytest.mark.parametrize("isa", [ISA, "sse2", "scalar"])
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_conversions(dtype: str, isa: str) -> None:
    others = [d for d in DTYPES if d != dtype]
    lines = ["graph g symbols [s0 = arg0.0 hint 64]", f"  input arg0: {dtype}[s0] strides [1]"]
    lines += [f"  input arg{k}: {d}[s0] strides [1]" for k, d in enumerate(others, 1)]
    lines += [f"  buffer buf{k}: {d}[s0] strides [1]" for k, d in enumerate(others)]
    lines += [f"  buffer back{k}: {dtype}[s0] strides [1]" for k in range(len(others))]
    for k, d in enumerate(others):
        lines += [f"  kernel kernel{k} [i0 < s0]", "    phase []"]
        lines += [f"      a = load arg0[i0] : {dtype}", f"      b = cast a : {d}", f"      store buf{k}[i0] = b"]
        lines += [f"      c = load arg{k + 1}[i0] : {d}", f"      d = cast c : {dtype}", f"      store back{k}[i0] = d"]
    lines += [
        "  return " + ", ".join([*(f"buf{k}" for k in range(len(others))), *(f"back{k}" for k in range(len(others)))])
    ]
    agrees_with_evaluator("\n".join(lines), [sample(dtype, ""), *(sample(d, dtype) for d in others)], isa, 0, 0)


BITS = """graph g
  input arg0: {d}[37] strides [1]
  input arg1: {d}[37] strides [1]
  buffer buf0: {d}[37] strides [1]
  buffer buf1: bool[37] strides [1]
  buffer buf2: {d}[37] strides [1]
  kernel kernel0 [i0 < 37]
    phase []
      a = load arg0[i0] : {d}
      b = load arg1[-i0 + 36] : {d}
      p = mul a, b : {d}
      x = xor p, b : {d}
      y = and x, a : {d}
      z = or y, b : {d}
      k = const 200 : {d}
      e = eq b, k : bool
      f = ne z, p : bool
      w = where e, z, p : {d}
      store buf0[i0] = w
      store buf1[i0] = f
      store buf2[i0] = x
  return buf0, buf1, buf2
"""


@pytest.mark.parametrize("isa", [ISA, "sse2", "scalar"])
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_operations(dtype: str, isa: str) -> None:
    agrees_with_evaluator(BITS.format(d=dtype), [sample(dtype, ""), sample(dtype, "").roll(5)], isa, 0, 0)


@pytest.mark.parametrize("op", ["add", "max", "shr", "lt"])
def test_what_signs_matter_to_is_no_operation_of_theirs(op: str) -> None:
    result = "bool" if op == "lt" else "u32"
    text = f"""graph g
  input arg0: u32[9] strides [1]
  buffer buf0: {result}[9] strides [1]
  kernel kernel0 [i0 < 9]
    phase []
      a = load arg0[i0] : u32
      b = {op} a, a : {result}
      store buf0[i0] = b
  return buf0
"""
    with pytest.raises(IRError, match="not defined on u32"):
        verify(parse(text))
