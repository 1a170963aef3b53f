"""Scans: each program is lowered, fused and ordered, and what is compiled for it compared with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens
from fuselens.ir.evaluate import evaluate
from fuselens.ir.text import parse, show
from fuselens.ir.verify import verify

from .test_oracle import compare, flat, stages

pytestmark = pytest.mark.usefixtures("fresh")

SCANS: dict[str, Callable[..., Any]] = {
    "cumsum": lambda x, dim: x.cumsum(dim),
    "cumprod": lambda x, dim: x.cumprod(dim),
    "logcumsumexp": lambda x, dim: x.logcumsumexp(dim),
    "cummax": lambda x, dim: tuple(x.cummax(dim)),
    "cummin": lambda x, dim: tuple(x.cummin(dim)),
    "cumsum_f64": lambda x, dim: x.cumsum(dim, dtype=torch.float64),
    "cumsum_int": lambda x, dim: x.cumsum(dim, dtype=torch.int32),
    "backward": lambda x, dim: x.flip(dim).cumsum(dim).flip(dim),
}
SHAPES: list[tuple[int, ...]] = [(), (1,), (5,), (3, 40), (2, 3, 50), (0, 4), (4, 0), (70_000,), (3, 5000)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]


def run(fn: Callable[..., Any], *inputs: Any, rtol: float | None = None, atol: float | None = None) -> None:
    """Compares compiled with eager, in values, dtypes and strides; nothing may go through ATen."""
    compiled = fuselens.compile(fn, fullgraph=True)
    found, expected = compiled(*inputs), fn(*inputs)
    for a, e in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
        assert a.stride() == e.stride()
    report = compiled.__fuselens__.recorder.report
    assert not any(g.fallback or g.externs for g in report.graphs), report.summary()


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", SCANS)
def test_every_stage_agrees_with_eager(name: str, mode: str) -> None:
    for shape in ((3, 40), (2, 3, 5), (0, 4), (5,)):
        x = torch.randn(shape)
        for dim in range(len(shape)):

            def fn(x: torch.Tensor, dim: int = dim) -> Any:
                return SCANS[name](x * 1.5, dim)

            for stage, graph in stages(fn, [x], mode).items():
                verify(graph)
                text = show(graph)[0]
                assert show(parse(text))[0] == "\n".join(line.split("  #")[0] for line in text.split("\n"))
                compare(evaluate(graph, [x]), flat(fn(x)), stage)
                assert not graph.externs()
                assert stage == "lower" or 0 in shape or len(graph.kernels()) == 1, text


@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_agrees_with_eager(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        x = (torch.randn(shape) * (0.7 if dtype.is_floating_point else 2)).to(dtype)

        def fn(x: torch.Tensor) -> Any:
            out: list[Any] = []
            for dim in range(max(x.dim(), 1)):
                for name, scan in SCANS.items():
                    if (name != "backward" or x.dim()) and (name != "logcumsumexp" or x.is_floating_point()):
                        out += flat(scan(x, dim))
            return out

        loose = 2e-2 if dtype in (torch.float16, torch.bfloat16) else None
        run(fn, x, rtol=loose, atol=loose)


def test_strided_inputs() -> None:
    for change in (
        lambda t: t.t(),
        lambda t: t[1::3, ::2],
        lambda t: t[:, :1].expand(-1, 7),
        lambda t: t.reshape(5, 4, 3, 10).to(memory_format=torch.channels_last),
    ):
        x = change(torch.randn(20, 30))
        run(lambda x: (x.cumsum(0), x.cumsum(-1), x.logcumsumexp(1), *x.cummax(1)), x)


def test_one_kernel_with_what_is_around_it() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return (x.sin().cumsum(-1) * 2).softmax(-1)

    def backward(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (g * 2).flip(-1).cumsum(-1).flip(-1) * x.cos()

    for mode in ("fake", "symbolic"):
        assert len(stages(forward, [torch.randn(4, 30)], mode)["fuse"].kernels()) == 1
        assert len(stages(backward, [torch.randn(4, 30)] * 2, mode)["fuse"].kernels()) == 1
    run(forward, torch.randn(4, 1000))
    run(backward, torch.randn(4, 1000), torch.randn(4, 1000))


def test_what_a_scan_does_not_fuse_with() -> None:
    run(lambda x: x.cumsum(1).cumsum(0), torch.randn(30, 40))
    run(lambda x: x.cumsum(1).sum(0), torch.randn(30, 40))
    run(lambda x: x.cumsum(1)[:, 3:] + x.cumsum(1)[:, :-3], torch.randn(30, 40))
    run(lambda x: x.cumsum(1) + x.flip(1).cumsum(1).flip(1), torch.randn(30, 40))
    run(lambda x: x.flatten().cumsum(0).view(30, 40).softmax(-1), torch.randn(30, 40))
    run(lambda x: x.cumsum(1).t().contiguous(), torch.randn(30, 40))


def test_not_a_number_and_infinity() -> None:
    x = torch.zeros(4, 50)
    x[0, 7], x[1, 9], x[1, 30], x[2, :] = torch.nan, torch.inf, -torch.inf, -torch.inf
    run(lambda x: [o for n in ("cumsum", "logcumsumexp", "cummax", "cummin") for o in flat(SCANS[n](x, 1))], x)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"])
def test_gradients(name: str) -> None:
    for shape, dim in (((3, 40), 1), ((3, 40), 0), ((7,), 0), ((), 0)):

        def fn(x: torch.Tensor, dim: int = dim) -> torch.Tensor:
            return flat(SCANS[name](x.sin() + 1.1, dim))[0]

        x, y = (torch.linspace(-1, 1, max(1, x.numel())).reshape(shape) for x in [torch.empty(shape)] * 2)
        x.requires_grad_()
        y.requires_grad_()
        expected, found = fn(x), fuselens.compile(fn, fullgraph=True)(y)
        torch.testing.assert_close(found, expected)
        weights = torch.rand(shape)
        (expected * weights).sum().backward()
        (found * weights).sum().backward()
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-5)


def test_sizes_that_vary() -> None:
    compiled = fuselens.compile(lambda x: (x.cumsum(1), *x.cummax(1)), dynamic=True)
    for shape in ((3, 40), (5, 7), (2, 1000), (4, 2)):
        x = torch.randn(shape)
        for a, e in zip(compiled(x), (x.cumsum(1), *x.cummax(1)), strict=True):
            torch.testing.assert_close(a, e)


def test_errors_are_eagers() -> None:
    for fn in (lambda x: x.cumsum(2), lambda x: x.cummax(-4), lambda x: x.logcumsumexp(5)):
        with pytest.raises(IndexError) as expected:
            fn(torch.randn(3, 4))
        with pytest.raises(IndexError) as found:
            fuselens.compile(fn)(torch.randn(3, 4))
        assert str(found.value) == str(expected.value)
