"""Products of matrices as Triton: under its interpreter against the oracle, and compiled for sm_90."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from typing import Any

import pytest
import torch

from fuselens.codegen.source import Unsupported
from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.offline import compile_offline
from fuselens.codegen.triton.products import DESCRIPTORS, descriptors_of
from fuselens.codegen.triton.tiles import Shape, Tiles, in_turn, predicted, tiles
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.schedule.product_sites import sites
from fuselens.schedule.products import instead, replaced, with_room

from .test_triton import check_all

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

PRODUCT = """graph g
  input x: {d}[{m}, {k}] strides [{x}]
  input w: {d}[{k}, {n}] strides [{w}]
  input r: f32[{m}, {n}] strides [{n}, 1]
  input b: {d}[{n}] strides [1]
  buffer buf0: {d}[{m}, {n}] strides [{n}, 1]
  buffer buf1: f32[{m}, {n}] strides [{n}, 1]
  extern buf0 = aten.addmm.default(b, x, w)
  kernel kernel0 [{axes}] from [aten.add.Tensor]
    phase []
      t0 = load buf0[{index}] : {d}
      {cast}
      t2 = load r[{index}] : f32
      t3 = abs t1 : f32
      t4 = sub t3, t2 : f32
      store buf1[{index}] = t4
  return {outputs}
"""
BATCHES = """graph g
  input x: f16[3, 20, 40] strides [800, 40, 1]
  input w: f16[3, 40, 24] strides [960, 1, 40]
  buffer buf0: f16[3, 20, 24] strides [480, 24, 1]
  extern buf0 = aten.bmm.default(x, w)
  return buf0
"""
CONVOLUTION = """graph g
  input x: {d}[3, 40, {high}, 7] strides [{x}]
  input w: {d}[24, 40, {size}, {size}] strides [{w}]
  input b: {d}[24] strides [1]
  buffer buf0: {d}[3, 24, {high}, 7] strides [{out}]
  buffer buf1: f32[3, 24, {high}, 7] strides [{out}]
  extern buf0 = aten.convolution.default(x, w, {rest})
  kernel kernel0 [i0 < {numel}] from [aten.exp.default]
    phase []
      t0 = load buf0[i0] : {d}
      {cast}
      t2 = exp t1 : f32
      store buf1[i0] = t2
  return buf1
"""


def product(d: str, m: int, n: int, k: int, turned: str = "", rows: int = 0, both: bool = False) -> Graph:
    axes, index = (f"i0 < {m * n}", "i0") if not rows else (
        f"i0 < {m // rows}, i1 < {rows}, i2 < {n}", f"{rows * n}*i0 + {n}*i1 + i2")  # fmt: skip
    cast = "t1 = cast t0 : f32" if d != "f32" else "t1 = neg t0 : f32"
    text = PRODUCT.format(
        d=d, m=m, n=n, k=k, axes=axes, index=index, cast=cast, outputs="buf0, buf1" if both else "buf1",
        x=f"1, {m}" if "x" in turned else f"{k}, 1", w=f"1, {k}" if "w" in turned else f"{n}, 1",
    )  # fmt: skip
    return parse(text)


def convolution(
    d: str = "f32",
    last: str = "",
    high: int = 5,
    size: int = 1,
    bias: str = "b",
    more: str = "[1, 1], [0, 0], [1, 1], False, [0, 0], 1",
) -> Graph:
    """Of an image and weights; in those tensors that ``last`` names channels are next to each other."""

    def strides(channels: int, name: str, high: int, wide: int) -> str:
        image = high * wide
        if name in last:
            return f"{channels * image}, 1, {channels * wide}, {channels}"
        return f"{channels * image}, {image}, {wide}, 1"

    cast = "t1 = cast t0 : f32" if d != "f32" else "t1 = neg t0 : f32"
    return parse(CONVOLUTION.format(
        d=d, high=high, size=size, rest=f"{bias}, {more}", numel=3 * 24 * high * 7, cast=cast,
        x=strides(40, "x", high, 7), w=strides(40, "w", size, size), out=strides(24, "o", high, 7),
    ))  # fmt: skip


def given(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    dtypes = {"f32": torch.float32, "f16": torch.float16}
    made = []
    for name in graph.inputs:
        buffer = graph.buffers[name]
        sizes, strides = [int(s) for s in buffer.sizes], [int(s) for s in buffer.strides]
        extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        made.append(torch.randn(extent, generator=generator).to(dtypes[buffer.dtype]).as_strided(sizes, strides))
    return made


def first(graph: Graph, tile: Tiles, which: int = 0) -> tuple[Graph, dict[str, Any]]:
    (site,) = sites(graph)
    choice = instead(graph, site)[which]
    return replaced(graph, site, choice), {choice.product: tile}


def test_under_the_interpreter() -> None:
    cases = []
    for d in ("f32", "f16"):
        for m, n, k in ((50, 70, 90), (64, 64, 64), (17, 130, 33)):
            for turned in ("", "x", "w", "xw"):
                graph = product(d, m, n, k, turned, both=turned == "x")
                changed, tunings = first(graph, Tiles(32, 64, 32, group=2))
                cases.append((changed, given(graph), tunings))
    graph = product("f32", 60, 70, 40, rows=20)
    changed, tunings = first(graph, Tiles(16, 16, 16))
    cases.append((changed, given(graph), tunings))
    graph = parse(BATCHES)
    changed, tunings = first(graph, Tiles(16, 16, 32))
    cases.append((changed, given(graph), tunings))
    check_all(cases, rtol=1e-3, atol=1e-2)


def test_convolutions_of_points() -> None:
    cases = []
    for d in ("f32", "f16"):
        for last in ("", "xwo", "x", "w"):
            graph = convolution(d, last, bias="b" if last else "None")
            inputs = given(graph)
            assert len(instead(graph, sites(graph)[0])) == 1
            changed, tunings = first(graph, Tiles(16, 32, 32))
            verify(changed)
            (eager,), (found,) = evaluate(graph, inputs), evaluate(changed, inputs)
            torch.testing.assert_close(found.log(), eager.log(), rtol=1e-2, atol=1e-2)
            cases.append((changed, inputs, tunings))
    check_all(cases, rtol=2e-2, atol=1e-2)
    graph = convolution(last="o")  # what reads the product has its elements in another order
    (site,) = sites(graph)
    assert site.reader is None
    changed, _ = first(graph, Tiles(16, 16, 16))
    torch.testing.assert_close(evaluate(changed, given(graph)), evaluate(graph, given(graph)), rtol=1e-3, atol=1e-3)
    changed, tunings = first(convolution("bf16", "xwo", high=64), Tiles(128, 32, 32))
    assert compile_offline(to_triton(changed, tunings=tunings), *tunings)["spills"] == 0


def test_other_convolutions_stay() -> None:
    rest = ", False, [0, 0], "
    assert sites(convolution(size=3, more=f"[1, 1], [1, 1], [1, 1]{rest}1")) == []
    assert sites(convolution(more=f"[2, 2], [2, 3], [1, 1]{rest}1")) == []
    assert sites(convolution(more=f"[1, 1], [0, 0], [1, 1]{rest}2")) == []
    assert sites(convolution(more="[1, 1], [0, 0], [1, 1], True, [0, 0], 1")) == []


def test_tiles_in_turn() -> None:
    cases = []
    for m, n, k in ((128, 64, 96), (50, 72, 64), (100, 80, 40)):
        for turned in ("", "x", "w", "xw"):
            changed, tunings = first(product("f16", m, n, k, turned), Tiles(32, 32, 32, group=2, programs=3))
            (name,) = tunings
            changed = with_room(changed, descriptors_of(name), 3 * DESCRIPTORS)
            source = to_triton(changed, tunings=tunings)
            strides = (m if "x" in turned else k, k if "w" in turned else n)
            assert source.text.count("make_tensor_descriptor") == sum(2 * s % 16 == 0 for s in strides)
            assert int(source.kernels[0].launch["grid"]) == 3
            cases.append((changed, given(changed), tunings))
    check_all(cases, rtol=1e-3, atol=1e-2)


def test_copied_tiles_have_room_for_their_descriptors() -> None:
    graph = product("bf16", 1024, 2048, 768, "w")
    for tile in in_turn(Shape(1, 8192, 2048, 768, 2))[1:2]:
        changed, tunings = first(graph, tile)
        (name,) = tunings
        source = to_triton(with_room(changed, descriptors_of(name), 1), tunings=tunings)
        info = source.kernels[0]
        assert (len(info.arguments), info.pointers) == (6, 5)
        compiled = compile_offline(source, name)
        assert "cp.async.bulk.tensor" in compiled["ptx"]
        assert compiled["spills"] == 0
        sizes = [int(s) for s in re.findall(r"global_scratch_alloc {.*?nbytes = (\d+)", compiled["ttgir"])]
        assert sum(sizes) <= DESCRIPTORS
        unaligned = dataclasses.replace(info, launch={**info.launch, "blocks": {**info.launch["blocks"], "ALIGNED": 0}})
        other = compile_offline(dataclasses.replace(source, kernels=(unaligned,)), name)
        assert "cp.async.bulk.tensor" not in other["ptx"]


def test_halves_use_the_tensor_cores() -> None:
    for dtype in ("bf16", "f16"):
        graph = product(dtype, 1024, 2048, 768, "w", rows=512)
        for tile in tiles(Shape(1, 1024, 2048, 768, 2))[:1]:
            changed, tunings = first(graph, tile)
            (name,) = tunings
            compiled = compile_offline(to_triton(changed, tunings=tunings), name)
            assert "wgmma" in compiled["ptx"]
            assert compiled["spills"] == 0


def test_floats_keep_their_digits_unless_told() -> None:
    graph = product("f32", 256, 256, 256)
    for tf32 in (False, True):
        changed, tunings = first(graph, Tiles(32, 32, 32, tf32=tf32))
        (name,) = tunings
        assert ("tf32" in compile_offline(to_triton(changed, tunings=tunings), name)["ptx"]) is tf32


def test_other_sums_are_refused() -> None:
    graph = parse(
        """graph g
  input x: f32[16, 32] strides [32, 1]
  buffer buf0: f32[16] strides [1]
  kernel kernel0 [i0 < 16] from [aten.sum.dim_IntList]
    phase [i1 < 32]
      a = load x[32*i0 + i1] : f32
      s = reduce sum a : f32
    phase []
      store buf0[i0] = s
  return buf0
"""
    )
    with pytest.raises(Unsupported):
        to_triton(graph, tunings={"kernel0": Tiles(16, 16, 16)})


def test_the_model_of_tiles() -> None:
    large = Shape(1, 8192, 8192, 4096, 2)
    assert predicted(large, Tiles(128, 256, 64, 8, 4)) < predicted(large, Tiles(64, 64, 64, 4, 4))
    few = Shape(1, 16, 4096, 4096, 2)
    assert all(t.rows == 16 for t in tiles(few))
    for shape in (large, few, Shape(8, 33, 100, 50, 4)):
        assert 1 <= len(tiles(shape)) <= 10
