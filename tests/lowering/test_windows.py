"""Pooling and what else moves windows: compiled programs against eager, over shapes, layouts, types and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.ir.evaluate import evaluate
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify

from .test_oracle import compare, flat, stages

pytestmark = pytest.mark.usefixtures("fresh")

LAST = torch.channels_last


def run(fn: Callable[..., Any], *inputs: Any, externs: int = 0, **tolerance: float) -> None:
    """Compares compiled with eager, in values, dtypes and strides; at most ``externs`` calls may go through ATen."""
    compiled = fuselens.compile(fn, fullgraph=True)
    found, expected = compiled(*inputs), fn(*inputs)
    for a, e in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(a, e, equal_nan=True, **(tolerance or {"rtol": None, "atol": None}))
        assert a.stride() == e.stride()
    report = compiled.__fuselens__.recorder.report
    assert not any(g.fallback for g in report.graphs), [d.message for d in report.diagnostics]
    assert sum(len(g.externs) for g in report.graphs) <= externs, report.graphs[0].externs


def gradients(fn: Callable[..., Any], *inputs: torch.Tensor, **tolerance: float) -> None:
    """Compares what compiled and eager give and add to the gradients of all inputs."""
    results = []
    for call in (fn, fuselens.compile(fn, fullgraph=True)):
        leaves = [i.detach().clone().requires_grad_(i.is_floating_point()) for i in inputs]
        out = call(*leaves)
        out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape))
        results.append([out.detach(), *(leaf.grad for leaf in leaves if leaf.requires_grad)])
    for e, a in zip(*results, strict=True):
        torch.testing.assert_close(a, e, **(tolerance or {"rtol": 1e-5, "atol": 1e-5}))


# --- pooling ---------------------------------------------------------------------------------------------------

WINDOWS: dict[str, dict[str, Any]] = {
    "2": {"kernel_size": 2},
    "3_2_1": {"kernel_size": 3, "stride": 2, "padding": 1},
    "3_1_1": {"kernel_size": 3, "stride": 1, "padding": 1},
    "ceil": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "uneven": {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1)},
    "wide": {"kernel_size": 5, "stride": 3, "padding": 2, "ceil_mode": True},
}


@pytest.mark.parametrize("layout", ["rows", "channels"])
@pytest.mark.parametrize("name", WINDOWS)
def test_pool2d(name: str, layout: str) -> None:
    window = WINDOWS[name]
    for shape in ((2, 3, 13, 37), (3, 12, 16)):
        x = torch.randn(shape)
        if layout == "channels":
            x = x.to(memory_format=LAST) if x.dim() == 4 else x.permute(1, 2, 0).contiguous().permute(2, 0, 1)

        def fn(x: torch.Tensor) -> Any:
            return (
                *F.max_pool2d(x, return_indices=True, **window), F.max_pool2d(x, **window) * 2,
                F.avg_pool2d(x, **window), F.avg_pool2d(x, count_include_pad=False, **window),
                F.avg_pool2d(x, divisor_override=3, **window).relu(),
            )  # fmt: skip

        run(fn, x)


def test_pool_every_stage() -> None:
    def fn(x: torch.Tensor) -> Any:
        return (*F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False))

    x = torch.randn(2, 3, 9, 11)
    for stage, graph in stages(fn, [x], "fake").items():
        verify(graph)
        text = show(graph)[0]
        assert show(parse(text))[0] == "\n".join(line.split("  #")[0] for line in text.split("\n"))
        compare(evaluate(graph, [x]), flat(fn(x)), stage)
        assert not graph.externs()


def test_pool_dilated() -> None:
    x = torch.randn(2, 3, 13, 17)
    run(lambda x: F.max_pool2d(x, 2, dilation=2, return_indices=True), x)
    x[0, 0], x[0, 1, 0, 0], x[1, 2, 12, 16], x[1, 1] = -math.inf, math.nan, math.nan, 1.0
    for window in (
        {"padding": 1, "dilation": 2},
        {"padding": 1, "dilation": (1, 5)},
        {"stride": 2, "dilation": 4, "padding": 1},
    ):
        run(lambda x, w=window: F.max_pool2d(x, 3, return_indices=True, **w), x)
        run(lambda x, w=window: F.max_pool2d(x, 3, ceil_mode=True, return_indices=True, **w), x.to(memory_format=LAST))


def test_pool_not_a_number_infinity_and_ties() -> None:
    x = torch.randn(2, 3, 13, 17)
    x[0, 0, 3, 3], x[0, 1, 0, 0], x[1, 1, 12, 16], x[1, 2] = math.nan, math.nan, math.nan, -math.inf
    for x in (x, torch.zeros(2, 3, 13, 17)):
        run(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
        run(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True), x.to(memory_format=LAST))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_pool_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 13, 17).to(dtype)
    run(lambda x: (*F.max_pool2d(x, 3, 2, 1, return_indices=True), F.avg_pool2d(x, 3, 2, 1)), x)


def test_pool_integers() -> None:
    x = torch.randint(-(1 << 62), 1 << 62, (2, 3, 13, 17))
    x[0] = torch.randint(-9, 9, (3, 13, 17))
    run(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    run(lambda x: F.max_pool2d(x, 3, 2, 1, dilation=3, return_indices=True), x)
    x = x // 16
    run(lambda x: (F.avg_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, True, False), F.avg_pool2d(x, 2)), x)


def test_pool_other_ranks() -> None:
    run(lambda x: (F.max_pool1d(x, 3, 2, 1), F.avg_pool1d(x, 3, 2, 1)), torch.randn(2, 3, 50))
    x = torch.randn(2, 3, 8, 9, 10)
    run(lambda x: (*F.max_pool3d(x, 3, 2, 1, return_indices=True), F.avg_pool3d(x, 3, 2, 1)), x)
    run(lambda x: (F.lp_pool2d(x, 2, 2), F.lp_pool2d(x, 3, 3, stride=2)), torch.rand(2, 3, 16, 8))
    run(lambda x: F.max_pool2d(x, 2), torch.randn(0, 3, 20, 18))


def test_pool_adaptive() -> None:
    x = torch.randn(2, 3, 16, 8)
    run(lambda x: (F.adaptive_avg_pool2d(x, 4), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x, (2, 1))), x)
    run(lambda x: (F.adaptive_max_pool2d(x, 4), F.adaptive_max_pool2d(x, (2, 4), return_indices=True)[1]), x)
    run(lambda x: (F.adaptive_avg_pool3d(x, 2), F.adaptive_max_pool3d(x, 2)), torch.randn(2, 3, 16, 8, 4))
    run(lambda x: (F.adaptive_avg_pool1d(x, 2), F.adaptive_max_pool1d(x, 2)), torch.randn(2, 3, 16))
    run(lambda x: (F.adaptive_avg_pool2d(x, 3), *F.adaptive_max_pool2d(x, 3, return_indices=True)), x)
    run(lambda x: (F.adaptive_avg_pool2d(x, (7, 40)), F.adaptive_max_pool2d(x, (17, 5))), x.to(memory_format=LAST))
    run(lambda x: (F.adaptive_avg_pool3d(x, 3), F.adaptive_max_pool3d(x, 3)), torch.randn(2, 3, 7, 8, 4))


@pytest.mark.parametrize("layout", ["rows", "channels"])
def test_pool_gradients(layout: str) -> None:
    x = torch.randn(2, 3, 12, 16)
    x = x.to(memory_format=LAST) if layout == "channels" else x
    gradients(lambda x: F.max_pool2d(x.sin(), 3, 2, 1), x)
    for window in WINDOWS.values():
        gradients(lambda x, w=window: F.avg_pool2d(x.sin(), **w), x)
        gradients(lambda x, w=window: F.avg_pool2d(x, count_include_pad=False, **w), x)
    gradients(lambda x: F.avg_pool2d(x, 5, divisor_override=3), x)
    gradients(lambda x: F.adaptive_avg_pool2d(x, 4), x)
    gradients(lambda x: F.adaptive_avg_pool2d(x, 5), x)
    gradients(lambda x: F.adaptive_avg_pool2d(x, (20, 7)), x)
    gradients(lambda x: F.adaptive_max_pool2d(x, 4), x)
    gradients(lambda x: F.adaptive_max_pool2d(x.sin(), (5, 7)), x)
    gradients(lambda x: F.max_pool2d(x, 3, 1), x.bfloat16(), rtol=1e-2, atol=1e-2)
    gradients(lambda x: F.max_pool3d(x, 2, 1, 1, 2), x.unsqueeze(0))
    gradients(lambda x: F.lp_pool2d(x.abs() + 1, 2, 2), x)


def test_pool_errors_are_eagers() -> None:
    for fn in (lambda x: F.max_pool2d(x, 3, 2, 2), lambda x: F.avg_pool2d(x, 30)):
        with pytest.raises(RuntimeError) as expected:
            fn(torch.randn(2, 3, 8, 8))
        with pytest.raises(RuntimeError) as found:
            fuselens.compile(fn)(torch.randn(2, 3, 8, 8))
        assert str(found.value) == str(expected.value)


def test_pool_sizes_that_vary() -> None:
    compiled = fuselens.compile(lambda x: F.max_pool2d(x.relu(), 2) + 1, dynamic=True)
    for shape in ((2, 3, 8, 10), (3, 5, 12, 6), (1, 3, 9, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), F.max_pool2d(x.relu(), 2) + 1)


def test_pool_gradients_are_loops() -> None:
    x = torch.randn(2, 3, 12, 16)
    for fn in (
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 2, 3),
        lambda x: F.adaptive_avg_pool2d(x, (3, 16)),
        lambda x: F.adaptive_avg_pool2d(x, (5, 20)),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_max_pool2d(x, (5, 20)),
    ):
        compiled = fuselens.compile(fn, fullgraph=True)
        compiled(x.requires_grad_()).sum().backward()
        report = compiled.__fuselens__.recorder.report
        assert not any(g.fallback or g.externs for g in report.graphs), report.graphs[0].externs


# --- borders and grids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padding(mode: str) -> None:
    x = torch.randn(2, 3, 12, 17)
    for x in (x, x.to(memory_format=LAST), x.transpose(2, 3)):
        for pads in ((1, 2, 3, 1), (2, 0, 0, 1), (5, 5, 5, 5), (-1, 2, 1, -2)):
            if mode != "circular" or min(pads) >= 0:
                run(lambda x, pads=pads: F.pad(x, pads, mode=mode) * 2, x)
    run(lambda x: F.pad(x, (1, 2), mode=mode), torch.randn(2, 3, 40))
    run(lambda x: F.pad(x, (1, 2, 1, 1, 2, 1), mode=mode), torch.randn(2, 3, 4, 5, 6))
    run(lambda x: F.pad(x, (3, 2), mode=mode), torch.randint(0, 9, (2, 3, 40)).to(torch.float64))
    gradients(lambda x: F.pad(x.sin(), (1, 2, 3, 1), mode=mode), torch.randn(2, 3, 5, 6))


def test_padding_errors_are_eagers() -> None:
    fn = lambda x: F.pad(x, (9, 2), mode="reflect")  # noqa: E731
    with pytest.raises(RuntimeError) as expected:
        fn(torch.randn(2, 3, 8))
    with pytest.raises(RuntimeError) as found:
        fuselens.compile(fn)(torch.randn(2, 3, 8))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("aligned", [False, True])
def test_bicubic(aligned: bool) -> None:
    options = {"mode": "bicubic", "align_corners": aligned}
    for x in (
        torch.randn(2, 3, 5, 7),
        torch.randn(2, 16, 5, 7).to(memory_format=LAST),
        torch.randn(2, 3, 5, 7).double(),
    ):
        for size in ({"size": (8, 4)}, {"size": (1, 7)}, {"scale_factor": 1.7}, {"scale_factor": 2}):
            run(lambda x, s=size: F.interpolate(x.sin(), **s, **options) + 1, x, rtol=1e-5, atol=1e-5)
    gradients(lambda x: F.interpolate(x.sin(), scale_factor=2, **options), torch.randn(2, 3, 5, 7))
    compiled = fuselens.compile(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), dynamic=True)
    for shape in ((2, 3, 5, 7), (2, 3, 6, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), F.interpolate(x, scale_factor=2, mode="bicubic"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest(mode: str) -> None:
    x = torch.randn(2, 3, 12, 17)
    for factor in (2, 3, (2, 5), 7):
        run(lambda x, f=factor: F.interpolate(x, scale_factor=f, mode=mode), x, externs=1)
        run(lambda x, f=factor: F.interpolate(x, scale_factor=f, mode=mode), x.to(memory_format=LAST))
        gradients(lambda x, f=factor: F.interpolate(x.sin(), scale_factor=f, mode=mode), x)
    run(lambda x: F.interpolate(x, size=(24, 34), mode=mode).relu(), x.to(memory_format=LAST))
    run(lambda x: F.interpolate(x, size=(25, 30), mode=mode), x.to(memory_format=LAST), externs=1)
    run(lambda x: F.interpolate(x, scale_factor=2.5, mode=mode), x, externs=1)
    run(lambda x: F.interpolate(x, size=(24, 17), mode=mode), x)
    for size in ((25, 30), (5, 40), (1, 3), (12, 34)):
        gradients(lambda x, s=size: F.interpolate(x.sin(), size=s, mode=mode), x)
    gradients(lambda x: F.interpolate(x, scale_factor=(2.5, 0.3), mode=mode), x.to(memory_format=LAST))
    gradients(lambda x: F.interpolate(x, scale_factor=1.7, mode=mode), x.double())
    for other in (x.double(), x.bfloat16(), (x * 50).to(torch.uint8)):
        run(lambda x: F.interpolate(x, scale_factor=3, mode=mode), other.to(memory_format=LAST), externs=1)


@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic", "trilinear", "area"])
def test_interpolation_through_the_library(mode: str) -> None:
    x = torch.randn(*{"linear": (2, 3, 12), "trilinear": (2, 3, 4, 5, 6)}.get(mode, (2, 3, 12, 17)))
    for corners in (None,) if mode == "area" else (False, True):
        for scale in (2, 0.5):

            def fn(x: torch.Tensor, corners: bool | None = corners, scale: float = scale) -> torch.Tensor:
                return F.interpolate(x.relu(), scale_factor=scale, mode=mode, align_corners=corners)

            run(fn, x, externs=1)
            gradients(fn, x)


def test_rearrangements() -> None:
    x = torch.randn(2, 12, 6, 8)
    run(lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x, 3)), x)
    run(lambda x: (F.unfold(x, 3, padding=1), F.unfold(x, (2, 3), stride=2)), x)
    run(lambda x: F.fold(F.unfold(x, 3, padding=1), (6, 8), 3, padding=1), x, externs=1)
    run(lambda x: x.repeat_interleave(2, -1), x)
    grid = torch.rand(2, 5, 7, 2) * 2 - 1
    run(lambda x, g: F.grid_sample(x, g, align_corners=False), x, grid, externs=1)
    gradients(lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True), x, grid)
