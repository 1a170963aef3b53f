"""Convolutions as products of their windows: graphs against eager's convolution, and Triton under its interpreter and for sm_90."""

from __future__ import annotations

import importlib.util
import math
import re
from typing import Any

import pytest
import torch

from fuselens.codegen.triton.choices.tiles import Shape, Tiles, tiles
from fuselens.codegen.triton.kernels import to_triton
from fuselens.codegen.triton.tools.offline import compile_offline
from fuselens.ir.evaluate import evaluate
from fuselens.ir.loops import Graph
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify
from fuselens.schedule.gpu.product_kernels import alternatives, replaced
from fuselens.schedule.sites.products import sites

from .test_triton import check_all

TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
DTYPES = {"f32": torch.float32, "f16": torch.float16}
READER = """  kernel kernel0 [i0 < {count}] from [aten.add.Tensor]
    phase []
      t0 = load y[i0] : {d}
      t1 = cast t0 : f32
      t2 = load r[i0] : {d}
      t3 = cast t2 : f32
      t4 = add t1, t3 : f32
      store z[i0] = t4
  return z
"""
WINDOWS: list[dict[str, Any]] = [
    {},
    {"bias": False, "reader": False},
    {"padding": (0, 0)},
    {"kernel": (1, 1), "stride": (2, 2), "padding": (0, 0)},
    {"kernel": (7, 7), "stride": (2, 2), "padding": (3, 3), "channels": 3},
    {"kernel": (5, 3), "stride": (2, 1), "padding": (2, 0), "dilation": (1, 2), "channels": 8},
    {"kernel": (2, 4), "padding": (1, 3), "dilation": (2, 1), "channels": 1, "made": 2},
    {"kernel": (6, 7), "padding": (0, 0)},
    {"kernel": (3, 3), "stride": (3, 2), "padding": (2, 2), "images": 1},
    {"size": (13,), "kernel": (3,), "stride": (1,), "padding": (1,), "dilation": (1,)},
]  # fmt: skip
LINES: list[dict[str, Any]] = [
    {"size": (13,), "kernel": (5,), "stride": (3,), "padding": (4,), "dilation": (2,), "last": ""},
    {
        "size": (4, 5, 3),
        "kernel": (3, 2, 3),
        "stride": (1, 2, 1),
        "padding": (1, 0, 1),
        "dilation": (1, 1, 1),
        "last": "",
    },
]
TABLE = [{**w, "d": d, "last": last} for w in WINDOWS for d in DTYPES for last in ("xwy", "")]
TABLE += [{**LINES[k], "d": "f32"} for k in (0, 1)]
TABLE += [{"d": "f16", "last": last} for last in ("x", "y", "w", "xy")]


def strides(sizes: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """Of memory that holds elements in order, or channels next to each other."""
    if not last:
        return torch.empty(sizes).stride()
    return torch.empty(sizes[0], *sizes[2:], sizes[1]).movedim(-1, 1).stride()


def convolution(
    d: str, last: str, images: int = 2, channels: int = 16, made: int = 12, size: tuple[int, ...] = (6, 7),
    kernel: tuple[int, ...] = (3, 3), stride: tuple[int, ...] = (1, 1), padding: tuple[int, ...] = (1, 1),
    dilation: tuple[int, ...] = (1, 1), bias: bool = True, reader: bool = True, batch: str = "",
    groups: int = 1,
) -> Graph:  # fmt: skip
    """In those of ``x``, ``w`` and ``y`` that ``last`` names channels are next to each other. ``batch`` is a size symbol."""
    out = [(n + 2 * p - e * (k - 1) - 1) // s + 1
           for n, k, s, p, e in zip(size, kernel, stride, padding, dilation, strict=True)]  # fmt: skip
    shapes = {"x": (images, channels, *size), "w": (made, channels // groups, *kernel), "y": (images, made, *out)}

    def shape(name: str, dtype: str, of: str) -> str:
        sizes = [*map(str, shapes[of])]
        sizes[0] = batch if batch and of != "w" else sizes[0]
        steps = ", ".join(map(str, strides(shapes[of], of in last)))
        return f"{name}: {dtype}[{', '.join(sizes)}] strides [{steps}]"

    def numbers(values: tuple[int, ...]) -> str:
        return f"[{', '.join(map(str, values))}]"

    text = f"graph g\n  input {shape('x', d, 'x')}\n  input {shape('w', d, 'w')}\n  input b: {d}[{made}] strides [1]\n"
    text += f"  input {shape('r', d, 'y')}\n  buffer {shape('y', d, 'y')}\n  buffer {shape('z', 'f32', 'y')}\n"
    if batch:
        text = text.replace("graph g\n", f"graph g symbols [{batch} = x.0 hint {images}]\n")
    given = ", ".join(map(numbers, (stride, padding, dilation)))
    rest = f"{'b' if bias else 'None'}, {given}, False, {numbers((0,) * len(size))}, {groups}"
    text += f"  extern y = aten.convolution.default(x, w, {rest})\n"
    count = f"{math.prod(shapes['y'][1:])}*{batch}" if batch else str(math.prod(shapes["y"]))
    return parse(text + (READER.format(count=count, d=d) if reader else "  return y\n"))


def given(graph: Graph) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for name in graph.inputs:
        buffer = graph.buffers[name]
        sizes, steps = [graph.hint(s) for s in buffer.sizes], [graph.hint(s) for s in buffer.strides]
        extent = 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
        made.append(torch.randn(extent, generator=generator).to(DTYPES[buffer.dtype]).as_strided(sizes, steps))
    return made


def changed(graph: Graph, tile: Tiles) -> tuple[Graph, dict[str, Any]]:
    (site,) = sites(graph)
    choice = alternatives(graph, site)[0]
    return replaced(graph, site, choice), {choice.product: tile}


def agree(graph: Graph, inputs: list[torch.Tensor], tile: Tiles) -> tuple[Graph, list[torch.Tensor], dict[str, Any]]:
    """The graph with a kernel in the place of the convolution, which gives what eager's gives."""
    verify(graph)
    new, tunings = changed(graph, tile)
    verify(new)
    assert [type(n).__name__ for n in new.nodes] == ["Kernel"]
    tolerance = 2e-2 if graph.buffers["y"].dtype == "f16" else 1e-4
    found, expected = evaluate(new, inputs), evaluate(graph, inputs)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    return new, inputs, tunings


@TRITON
def test_windows_under_the_interpreter() -> None:
    cases = []
    for k, case in enumerate(TABLE):
        graph = convolution(**case)
        cases.append(agree(graph, given(graph), Tiles(32, 32, (64, 16, 32)[k % 3], group=2)))
    for d, last in (("f32", "xwy"), ("f16", "")):  # of any number of images
        graph = convolution(d, last, batch="s0")
        cases += [agree(graph, given(convolution(d, last, images=n)), Tiles(32, 32, 16, group=2)) for n in (2, 5)]
    check_all(cases, rtol=2e-2, atol=1e-2)


def test_sums_in_parts() -> None:
    for last in ("xwy", ""):
        graph = convolution("f32", last, channels=64)
        inputs = given(graph)
        (site,) = sites(graph)
        choices = alternatives(graph, site)
        assert [c.label for c in choices] == ["fused", "2 parts", "4 parts"]
        for choice in choices[1:]:
            new = replaced(graph, site, choice)
            verify(new)
            torch.testing.assert_close(evaluate(new, inputs), evaluate(graph, inputs), rtol=1e-4, atol=1e-4)


def test_other_convolutions_are_no_products() -> None:
    text = ", False, [0, 0], 1)"
    for other in (", True, [0, 0], 1)", ", False, [0, 0], 2)"):
        assert sites(parse(show(convolution("f32", ""))[0].replace(text, other))) == []


@TRITON
@pytest.mark.parametrize("d", ["f16", "f32"])
def test_windows_are_copied_ahead_to_the_tensor_cores(d: str) -> None:
    graph = convolution(d, "xwy", images=8, channels=64, made=64, size=(28, 28))
    shape = Shape(1, 8 * 28 * 28, 64, 9 * 64, 2 if d == "f16" else 4, d == "f32", run=64)
    for tile in [t for t in tiles(shape) if t.rows >= 64][:2]:  # rows of the fast instruction
        assert tile.programs == 0
        assert 64 % tile.depth == 0
        new, tunings = changed(graph, tile)
        (name,) = tunings
        compiled = compile_offline(to_triton(new, tunings=tunings), name)
        assert "wgmma" in compiled["ptx"]
        assert compiled["spills"] == 0
        inside = re.findall(r"cp\.async\.cg\.shared\.global \[.*?\], \[.*?\], 0x10", compiled["ptx"])
        assert inside  # 16 bytes at a time, also at borders
