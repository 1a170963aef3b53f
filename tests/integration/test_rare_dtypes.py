"""Dtypes that eager hardly computes with, wide unsigned integers and float8: its values, its errors, and calls of ATen's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens
from tests.capture.harness import agrees_with_eager

UNSIGNED = torch.uint16, torch.uint32, torch.uint64
FLOAT8 = torch.float8_e4m3fn, torch.float8_e5m2
COMPUTED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "mul": lambda x, y: x * y, "div": lambda x, y: x / y, "bits": lambda x, y: (x & y, x | y, x ^ y),
    "compare": lambda x, y: (x == y, x != 3), "float": lambda x, y: x.float() * 2 + y.double(), "long": lambda x, y: x.long() + 1,
    "bool": lambda x, y: x.bool() | y.bool(), "from_float": lambda x, y: (x.float() * 0.5 + 0.7).to(x.dtype), "cat": lambda x, y: torch.cat([x, y]),
    "stack": lambda x, y: torch.stack([x, y]), "where": lambda x, y: torch.where(x == y, x, y), "sum": lambda x, y: x.sum() + y.sum(),
    "slice": lambda x, y: (x[1:3], y[::2].clone()), "mixed": lambda x, y: x + torch.ones(6), "full": lambda x, y: torch.full_like(x, 7),
}  # fmt: skip
REFUSED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "less": lambda x, y: x < y, "neg": lambda x, y: -x,
    "fill": lambda x, y: x.masked_fill(y == 3, 0), "triangle": lambda x, y: x.reshape(2, 3).tril(), "isin": lambda x, y: torch.isin(x, y),
    "total": lambda x, y: x.sum(dtype=x.dtype), "flip": lambda x, y: x.flip(0), "max": lambda x, y: x.max(), "promote": lambda x, y: x + torch.arange(6),
}  # fmt: skip


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("name", [*COMPUTED, *REFUSED])
def test_unsigned_integers(name: str, dtype: torch.dtype) -> None:
    top = torch.iinfo(dtype).max
    x, y = (torch.tensor(v, dtype=dtype) for v in ([0, 1, 2, 3, top - 1, top], [3, 3, 2, 7, 2, top]))
    agrees_with_eager((COMPUTED | REFUSED)[name], (x, y), backend="fuselens")


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_operators_of_unsigned_integers_are_loops(dtype: torch.dtype) -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        moved = torch.nn.functional.pad(torch.cat([x, y]), (1, 2), value=9).roll(5).reshape(3, 9).t().contiguous()
        chosen = moved * 5 ^ 6
        return (
            moved,
            chosen.float().sqrt(),
            chosen.sum(0),
            chosen.any(1),
            chosen[torch.tensor([2, 0])],
            chosen.cumsum(0),
        )

    call = fuselens.compile(f, fullgraph=True)
    top = torch.iinfo(dtype).max
    x, y = torch.tensor([*range(7), *range(top - 4, top + 1)], dtype=dtype), torch.arange(12).to(dtype)
    for found, expected in zip(call(x, y), f(x, y), strict=True):
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
    (graph,) = call.__fuselens__.recorder.report.graphs
    assert not [d for d in graph.decisions if d.code == "FL401"]


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 12).to(dtype)
    agrees_with_eager(lambda x: (x.float() * 2, x.half() + 1), (x,), backend="fuselens")
    agrees_with_eager(lambda x: (x.float() * 1.5).to(x.dtype).float(), (x,), backend="fuselens")
    agrees_with_eager(lambda x: torch.cat([x, x]).float(), (x,), backend="fuselens")
    agrees_with_eager(lambda x: x + x, (x,), backend="fuselens")


@pytest.mark.parametrize("dtype", FLOAT8)
def test_conversions_are_calls_between_loops(dtype: torch.dtype) -> None:
    call = fuselens.compile(lambda x: x.float() * 2 + 1, fullgraph=True)
    x = torch.arange(8).to(dtype)
    assert torch.equal(call(x), x.float() * 2 + 1)
    report = call.__fuselens__.recorder.report
    decisions = [d for g in report.graphs for d in g.decisions if d.code == "FL401"]
    assert len(decisions) == 1 and len(report.graphs[0].kernels) == 1


def test_complex_halves_are_calls_between_loops() -> None:
    def f(x: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        made = (x * 2 + 1).chalf()
        return torch.view_as_real(made), made.real * 3, torch.view_as_real(z.clone()), z.to(torch.complex64) * 2, z.imag

    call = fuselens.compile(f, fullgraph=True)
    x, z = torch.randn(4, 3), torch.randn(5, 2, dtype=torch.complex64).to(torch.complex32)
    for found, expected in zip(call(x, z), f(x, z), strict=True):
        assert found.dtype is expected.dtype
        assert found.stride() == expected.stride()
        assert torch.equal(found, expected)
    report = call.__fuselens__.recorder.report
    assert not report.diagnostics
    assert any(g.kernels for g in report.graphs)
