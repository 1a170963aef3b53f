"""Products of matrices as kernels with what reads them: the same values as the calls that they replace."""

from __future__ import annotations

import pytest
import torch

from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.schedule.gpu.product_kernels import alternatives, replaced
from fuselens.schedule.sites.products import sites

ADDED = """graph g
  input w: {d}[48, 256] strides [256, 1]
  input b: {d}[48] strides [1]
  input x: {d}[2, 8, 256] strides [2048, 256, 1]
  view buf0: {d}[16, 256] strides [256, 1] offset 0 of x
  view buf1: {d}[256, 48] strides [1, 256] offset 0 of w
  buffer buf2: {d}[16, 48] strides [48, 1]
  buffer buf3: {d}[2, 8, 48] strides [384, 48, 1]
  extern buf2 = aten.addmm.default(b, buf0, buf1)
  kernel kernel0 [{axes}] from [aten.abs.default]
    phase []
      total = load buf2[{index}] : {d}
      v = abs total : f32
      c = mul v, v : f32
      store buf3[{index}] = c
  return {outputs}
"""
BATCHES = """graph g
  input y: f32[4, 12, 256] strides [3072, 256, 1]
  input x: f32[4, 6, 256] strides [1536, 1, 6]
  input r: f32[4, 6, 12] strides [72, 12, 1]
  input k: f32[12] strides [1]
  view buf0: f32[4, 256, 12] strides [3072, 1, 256] offset 0 of y
  buffer buf1: f32[4, 6, 12] strides [72, 12, 1]
  buffer buf2: f32[4, 6, 12] strides [72, 12, 1]
  extern buf1 = aten.{call}
  kernel kernel0 [i0 < 24, i1 < 12] from [aten.add.Tensor]
    phase []
      t0 = load buf1[12*i0 + i1] : f32
      t1 = load r[12*i0 + i1] : f32
      t2 = load k[i1] : f32
      t3 = add t0, t1 : f32
      t4 = mul t3, t2 : f32
      store buf2[12*i0 + i1] = t4
  return buf2
"""
GATED = """graph g
  input x: f32[16, 32] strides [32, 1]
  input g: f32[32, 48] strides [48, 1]
  input u: f32[32, 48] strides [48, 1]
  buffer buf1: f32[16, 48] strides [48, 1]
  buffer buf2: f32[16, 48] strides [48, 1]
  buffer buf3: f32[16, 48] strides [48, 1]
  extern buf1 = aten.mm.default(x, g)
  extern buf2 = aten.mm.default(x, u)
  kernel kernel0 [i0 < 768] from [aten.mul.Tensor]
    phase []
      t0 = load buf1[i0] : f32
      t1 = load buf2[i0] : f32
      t2 = mul t0, t1 : f32
      store buf3[i0] = t2
  return buf3
"""
MADE = """graph g
  input x: f32[16, 256] strides [256, 1]
  input r: f32[16] strides [1]
  input w: f32[256, 48] strides [48, 1]
  buffer buf0: f32[16, 256] strides [256, 1]
  buffer buf1: f32[48, 256] strides [256, 1]
  view buf2: f32[256, 48] strides [1, 256] offset 0 of buf1
  buffer buf3: f32[16, 48] strides [48, 1]
  kernel kernel0 [i0 < 16, i1 < 256] from [aten.mul.Tensor]
    phase []
      t0 = load x[256*i0 + i1] : f32
      t1 = load r[i0] : f32
      t2 = mul t0, t1 : f32
      store buf0[256*i0 + i1] = t2
  kernel kernel1 [i0 < 48, i1 < 256] from [aten.abs.default]
    phase []
      t0 = load w[i0 + 48*i1] : f32
      t1 = abs t0 : f32
      store buf1[256*i0 + i1] = t1
  extern buf3 = aten.mm.default(buf0, buf2)
  return {outputs}
"""
TORCH = {"f32": torch.float32, "bf16": torch.bfloat16}


def added(d: str = "f32", axes: str = "i0 < 768", index: str = "i0", outputs: str = "buf3") -> Graph:
    text = ADDED.format(d=d, axes=axes, index=index, outputs=outputs)
    if d != "f32":
        text = text.replace("v = abs total", "a = cast total : f32\n      v = abs a")
        text = text.replace("] = c\n", "] = h\n").replace(
            "c = mul v, v : f32", f"c = mul v, v : f32\n      h = cast c : {d}"
        )
    return parse(text)


def given(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for name in graph.inputs:
        buffer = graph.buffers[name]
        sizes, strides = [int(s) for s in buffer.sizes], [int(s) for s in buffer.strides]
        extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        made.append(torch.randn(extent, generator=generator).to(TORCH[buffer.dtype]).as_strided(sizes, strides))
    return made


def each_choice_agrees(graph: Graph) -> list[str]:
    """Each way in which kernels compute the graph's products gives what the calls do. Returns their labels."""
    verify(graph)
    inputs = given(graph)
    expected = evaluate(graph, inputs)
    labels = []
    for site in sites(graph):
        for choice in alternatives(graph, site):
            changed = replaced(graph, site, choice)
            verify(changed)
            assert site.call not in changed.nodes
            tolerance = 1e-4 if site.dtype == "f32" else 1e-1
            for found, wanted in zip(evaluate(changed, inputs), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
            labels.append(choice.label)
    return labels


@pytest.mark.parametrize("dtype", TORCH)
def test_readers(dtype: str) -> None:
    assert each_choice_agrees(added(dtype)) == ["fused", "2 parts"]
    assert each_choice_agrees(added(dtype, "i0 < 16, i1 < 48", "48*i0 + i1")) == ["fused", "2 parts"]
    assert each_choice_agrees(added(dtype, "i1 < 48, i0 < 2, k < 8", "384*i0 + 48*k + i1")) == ["fused", "2 parts"]
    assert each_choice_agrees(added(dtype, "i0 < 32, i1 < 24", "24*i0 + i1")) == ["fused", "2 parts"]
    assert each_choice_agrees(added(dtype, outputs="buf2, buf3")) == ["fused", "2 parts"]


def test_readers_that_stay_apart() -> None:
    assert each_choice_agrees(added(axes="i0 < 16, i1 < 24", index="48*i0 + i1")) == ["kernel", "2 parts"]
    assert each_choice_agrees(added(axes="i0 < 48, i1 < 16", index="48*i1 + i0")) == ["fused", "2 parts"]
    assert each_choice_agrees(added(axes="i0 < 96, i1 < 8", index="i0 + 48*i1")) == ["kernel", "2 parts"]


@pytest.mark.parametrize("call", [
    "bmm.default(x, buf0)", "baddbmm.default(r, x, buf0)", "baddbmm.default(k, x, buf0, alpha=0.5, beta=2)",
    "baddbmm.default(r, x, buf0, beta=0)",
])  # fmt: skip
def test_batches(call: str) -> None:
    assert each_choice_agrees(parse(BATCHES.format(call=call))) == ["fused", "2 parts"]


def test_what_reads_two_products_goes_with_the_later() -> None:
    graph = parse(GATED)
    assert each_choice_agrees(graph) == ["kernel", "fused"]
    first, second = sites(graph)
    assert first.reader is None
    assert second.reader is not None
    changed = replaced(graph, second, alternatives(graph, second)[0])
    changed = replaced(changed, first, alternatives(graph, first)[0])
    inputs = given(graph)
    verify(changed)
    torch.testing.assert_close(evaluate(changed, inputs), evaluate(graph, inputs), rtol=1e-4, atol=1e-4)
    assert len(changed.kernels()) == len(changed.nodes) == 2


def test_a_product_that_is_read_before_its_reader_is_left_alone() -> None:
    text = GATED.replace("aten.mm.default(x, u)", "aten.mm.default(buf4, u)")
    text = text.replace("  buffer buf3", "  view buf4: f32[16, 32] strides [48, 1] offset 0 of buf1\n  buffer buf3")
    first, second = sites(parse(text))
    assert (first.reader, second.call.name) == (None, "buf2")
    assert second.reader is not None


def test_other_products() -> None:
    assert sites(parse(GATED.replace("f32", "f64"))) == []
    row = GATED.replace("[16, ", "[1, ").replace("768", "48")
    assert sites(parse(row)) == []
    outer = GATED.replace("x: f32[16, 32] strides [32, 1]", "x: f32[16, 1] strides [1, 1]").replace(
        "[32, 48]", "[1, 48]"
    )
    assert sites(parse(outer)) == []


def test_what_makes_operands() -> None:
    assert each_choice_agrees(parse(MADE.format(outputs="buf3"))) == ["kernel", "kernel with operands", "2 parts"]
    graph = parse(MADE.format(outputs="buf3, buf0"))
    (site,) = sites(graph)
    assert [k.name for k in site.kernels_before] == ["kernel1"]
    each_choice_agrees(graph)
    assert each_choice_agrees(parse(MADE.format(outputs="buf0, buf1, buf3"))) == ["kernel", "2 parts"]


def test_operands_that_are_flat_when_they_are_made() -> None:
    text = (
        MADE.format(outputs="buf3")
        .replace("[i0 < 16, i1 < 256]", "[i0 < 4096]")
        .replace("      t1 = load r[i0] : f32\n", "")
    )
    text = text.replace("load x[256*i0 + i1]", "load x[i0]").replace("mul t0, t1", "mul t0, t0")
    text = text.replace("store buf0[256*i0 + i1]", "store buf0[i0]")
    assert "kernel with operands" in each_choice_agrees(parse(text))


def test_a_kernel_between_products_follows_the_first() -> None:
    text = GATED.replace("aten.mm.default(x, u)", "aten.mm.default(buf4, v)").replace("load buf2", "load u")
    text = text.replace(
        "input u: f32[32, 48] strides [48, 1]",
        "input u: f32[16, 48] strides [48, 1]\n  input v: f32[48, 48] strides [48, 1]",
    )
    text = text.replace("  buffer buf3", "  buffer buf4: f32[16, 48] strides [48, 1]\n  buffer buf3")
    text = text.replace("store buf3", "store buf4").replace("return buf3", "return buf2")
    extern = next(line for line in text.splitlines() if "buf2 = aten" in line)
    text = text.replace(extern + "\n", "").replace("  return", f"{extern}\n  return")
    graph = parse(text)
    first, second = sites(graph)
    assert (first.reader is not None, second.kernels_before) == (True, ())
    each_choice_agrees(graph)
