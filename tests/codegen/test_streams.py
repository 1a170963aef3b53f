"""Large results go past the caches; others, and those that their kernel reads, do not."""

from __future__ import annotations

import re

import pytest
import torch

from fuselens.codegen.cpu.choices import streams
from fuselens.codegen.cpu.cpp import to_cpp
from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.ir.text import parse
from fuselens.runtime.build import build
from fuselens.runtime.cache.store import Cache

from .graphs import DTYPES, ISA, SIXTEEN, agrees_with_evaluator, config

ROWS = """graph g symbols [s0 = arg0.0 hint 64, s1 = arg0.1 hint 512]
  input arg0: {source}[s0, s1] strides [s1, 1]
  input arg1: f32[s1] strides [1]
  buffer buf0: {to}[s0, s1] strides [s1, 1]
  buffer buf1: bool[s0, s1] strides [s1, 1]
  kernel kernel0 [i0 < s0, i1 < s1]
    phase []
      a = load arg0[s1*i0 + i1] : {source}
      b = load arg1[i1] : f32
      c = cast a : f32
      d = add c, b : f32
      z = const 0.0 : f32
      e = cast d : {to}
      f = gt d, z : bool
      store buf0[s1*i0 + i1] = e
      store buf1[s1*i0 + i1] = f
  return buf0, buf1
"""
STREAMING = pytest.mark.skipif(not ISAS[ISA].streams, reason="this machine's instruction set has no such stores")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FAR", 1)


@pytest.mark.parametrize("isa", dict.fromkeys([ISA, SIXTEEN, "sse2", "scalar"]))
@pytest.mark.parametrize(
    ("source", "to"), [("f32", "f32"), ("bf16", "f16"), ("u8", "f64"), ("f64", "bf16"), ("f32", "u8"), ("i64", "i32")]
)
def test_any_width_and_length(source: str, to: str, isa: str) -> None:
    """Rows that start at multiples of a vector, others, rows of symbolic and of constant length; tails."""
    for s0, s1 in ((3, 512), (5, 333), (1, 4), (2, 0), (64, 72)):
        x = torch.randn(s0, s1).abs().to(DTYPES[source])
        for text in (ROWS, ROWS.replace("s1 = arg0.1 hint 512", "s2 = arg0.1").replace("s1", str(s1))):
            agrees_with_evaluator(text.format(source=source, to=to), [x, torch.rand(s1)], isa, 1e-2, 1e-2)


@STREAMING
def test_vectors_known_to_be_aligned_are_not_tested() -> None:
    symbolic = to_cpp(parse(ROWS.format(source="f32", to="f32")), ISA).text
    constant = ROWS.replace("s1 = arg0.1 hint 512", "s2 = arg0.1").replace("s1", "512").format(source="f32", to="f32")
    known = to_cpp(parse(constant), ISA).text
    assert re.search(r"stream_any\d+\(buf0", symbolic) and "sfence" in symbolic
    assert re.search(r"stream\d+\(buf0", known) and "stream_any" not in known


@STREAMING
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "input arg0: f32[s0, s1] strides [s1, 1]",
            "input arg0: f32[s0, s1] strides [s1, 1]\n  input arg2: f32[s0, s1] strides [s1, 1]",
        ),
        ("d = add c, b", "r = exp c : f32\n      d = add r, b"),
        ("hint 512", "hint 32"),
    ],
    ids=["in place", "slow", "short rows"],
)
def test_what_does_not(old: str, new: str) -> None:
    text = ROWS.format(source="f32", to="f32").replace(old, new)
    if "arg2" in new:  # what is written takes over an input's memory, which may start anywhere
        text = text.replace("  kernel", "  reuse buf0 = arg2\n  kernel", 1)
    assert "stream" not in to_cpp(parse(text), ISA).text


def test_the_last_of_several_passes() -> None:
    text = """graph g symbols [s0 = arg0.0 hint 8]
  input arg0: f32[s0, 1000] strides [1000, 1]
  buffer buf0: f32[s0, 1000] strides [1000, 1]
  kernel kernel0 [i0 < s0]
    phase [i1 < 1000]
      a = load arg0[1000*i0 + i1] : f32
      m = reduce max a : f32
    phase [i2 < 1000]
      b = load arg0[1000*i0 + i2] : f32
      c = sub b, m : f32
      store buf0[1000*i0 + i2] = c
  return buf0
"""
    if ISAS[ISA].streams:
        assert "stream" in to_cpp(parse(text), ISA).text
    for isa in (ISA, SIXTEEN, "sse2"):
        agrees_with_evaluator(text, [torch.randn(7, 1000)], isa)


def test_other_instruction_sets() -> None:
    text = ROWS.format(source="f32", to="bf16")
    assert "movntps512" in to_cpp(parse(text.replace("bf16", "f64")), "avx512").text
    for dtype in ("f32", "bf16", "f64", "u8"):
        source = to_cpp(parse(ROWS.format(source="f32", to=dtype)), "avx512")
        build(source.text, ISAS["avx512"].flags, config(), Cache(config().cache_dir))
    assert "stream" not in to_cpp(parse(text), "neon").text
