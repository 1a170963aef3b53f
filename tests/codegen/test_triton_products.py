"""Products of matrices as Triton: under its interpreter against the oracle, and compiled for sm_90."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from typing import Any

import pytest
import torch

from fuselens.codegen.triton.choices.product_plan import DESCRIPTORS, descriptors_of
from fuselens.codegen.triton.choices.tiles import Shape, Tiles, in_turn, predicted, tiles
from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.tools.offline import compile_offline
from fuselens.ir.contracts.source import Unsupported
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse
from fuselens.ir.verify import verify
from fuselens.schedule.gpu.product_kernels import alternatives, replaced, with_room
from fuselens.schedule.sites.products import sites

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
    choice = alternatives(graph, site)[which]
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
            assert len(alternatives(graph, sites(graph)[0])) == 1
            changed, tunings = first(graph, Tiles(16, 32, 32))
            verify(changed)
            (eager,), (found,) = evaluate(graph, inputs), evaluate(changed, inputs)
            torch.testing.assert_close(found.log(), eager.log(), rtol=1e-2, atol=1e-2)
            cases.append((changed, inputs, tunings))
    check_all(cases, rtol=2e-2, atol=1e-2)
    graph = convolution(last="o")  # what the product is read for has its elements in another order than matrices have
    (site,) = sites(graph)
    assert site.reader is not None
    changed, _ = first(graph, Tiles(16, 16, 16))
    torch.testing.assert_close(evaluate(changed, given(graph)), evaluate(graph, given(graph)), rtol=1e-3, atol=1e-3)
    changed, tunings = first(convolution("bf16", "xwo", high=64), Tiles(128, 32, 32))
    assert compile_offline(to_triton(changed, tunings=tunings), *tunings)["spills"] == 0


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


SYMBOLIC = """graph g symbols [s0 = x.0 hint 20, s1 = x.1 hint 40, s2 = w.1 hint 24]
  input x: {d}[{m}, {k}] strides [{k}, 1]
  input w: {d}[{k}, {n}] strides [{n}, 1]
  input b: {d}[{n}] strides [1]
  buffer buf0: {d}[{m}, {n}] strides [{n}, 1]
  buffer buf1: f32[{m}, {n}] strides [{n}, 1]
  extern buf0 = aten.addmm.default(b, x, w)
  kernel kernel0 [{axes}] from [aten.exp.default]
    phase []
      t0 = load buf0[{index}] : {d}
      t1 = cast t0 : f32
      t2 = exp t1 : f32
      store buf1[{index}] = t2
  return buf1
"""


def symbolic(d: str, which: str, flat: bool) -> Graph:
    m, k, n = (
        f"s{i}" if c in which else size for i, (c, size) in enumerate(zip("mkn", ("20", "40", "24"), strict=True))
    )
    axes, index = (f"i0 < {m}*{n}", "i0") if flat else (f"i0 < {m}, i1 < {n}", f"{n}*i0 + i1")
    text = SYMBOLIC.format(d=d, m=m, k=k, n=n, axes=axes, index=index)
    names = [f"s{i}" for i, c in enumerate("mkn") if c in which]
    head = "graph g symbols [s0 = x.0 hint 20, s1 = x.1 hint 40, s2 = w.1 hint 24]"
    kept = ", ".join(part for part in head[17:-1].split(", ") if part[:2] in names)
    return parse(text.replace(head, f"graph g symbols [{kept}]"))


def test_sizes_that_vary() -> None:
    cases = []
    for d, which, flat in (
        ("f32", "m", True), ("f32", "k", True), ("f32", "n", True), ("f32", "mkn", False), ("f32", "mn", True),
        ("f16", "m", False), ("f16", "mkn", True),
    ):  # fmt: skip
        graph = symbolic(d, which, flat)
        verify(graph)
        (site,) = sites(graph)
        assert site.reader is not None
        changed, tunings = first(graph, Tiles(16, 32, 16, group=2))
        verify(changed)
        for m, k, n in ((20, 40, 24), (33, 50, 70)):
            sizes = [m if "m" in which else 20, k if "k" in which else 40, n if "n" in which else 24]
            generator = torch.Generator().manual_seed(0)
            dtype = torch.float32 if d == "f32" else torch.float16
            inputs = [(torch.randn(s, generator=generator) / 6).to(dtype)
                      for s in ((sizes[0], sizes[1]), (sizes[1], sizes[2]), (sizes[2],))]  # fmt: skip
            torch.testing.assert_close(evaluate(changed, inputs), evaluate(graph, inputs), rtol=1e-2, atol=1e-2)
            cases.append((changed, inputs, tunings))
    check_all(cases, rtol=1e-2, atol=1e-2)


def test_rows_that_vary_in_turn() -> None:
    graph = symbolic("f16", "m", False)
    changed, tunings = first(graph, Tiles(32, 32, 32, group=2, programs=3))
    (name,) = tunings
    changed = with_room(changed, descriptors_of(name), 3 * DESCRIPTORS)
    source = to_triton(changed, tunings=tunings)
    assert source.text.count("make_tensor_descriptor") == 2
    cases = []
    for m in (20, 130):
        generator = torch.Generator().manual_seed(0)
        inputs = [(torch.randn(s, generator=generator) / 6).half() for s in ((m, 40), (40, 24), (24,))]
        cases.append((changed, inputs, tunings))
    check_all(cases, rtol=1e-2, atol=1e-2)
    compiled = compile_offline(source, name)
    assert "cp.async.bulk.tensor" in compiled["ptx"]
    assert compiled["spills"] == 0


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


def test_conditions_of_what_is_multiplied() -> None:
    """0 where a condition says so: of positions, which are masks of loads then, or of the element itself."""
    text = """graph g
  input x: f32[16, 40] strides [40, 1]
  input w: f32[40, 24] strides [24, 1]
  buffer buf0: f32[16, 24] strides [24, 1]
  kernel kernel0 [i0 < 16, i1 < 24] from [aten.mm.default]
    phase [i2 < 40]
      t0 = load x[40*i0 + i2] : f32
      zero = const 0.0 : f32
      high = gt t0, zero : bool
      left = where high, t0, zero : f32
      t1 = load w[24*Min(39, Max(0, i2 - 3)) + i1] : f32
      at = index i2 - 3 : i64
      least = const 0 : i64
      held = ge at, least : bool
      right = where held, t1, zero : f32
      products = mul left, right : f32
      total = reduce sum products : f32
    phase []
      store buf0[24*i0 + i1] = total
  return buf0
"""
    graph = parse(text)
    verify(graph)
    tile = {"kernel0": Tiles(16, 16, 16)}
    assert "held" in to_triton(graph, tunings=tile).text.partition("t1 = tl.load")[2].partition("\n")[0]
    check_all([(graph, given(graph), tile)], rtol=1e-4, atol=1e-4)
