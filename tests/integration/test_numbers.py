"""Floats that change between calls: one graph serves them, with eager's types and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fuselens
from fuselens.inputs import comparison

from .test_modules import t

VALUES = (0.5, 0.25, 1e-3, -2.0, 3.0)


def scaled(x: Any, v: float) -> Any:
    return x * v + (1 - v * 0.1)


def by_keyword(x: Any, v: float) -> Any:
    return torch.add(x, x, alpha=v) - x.add(1, alpha=v)


def fused(x: Any, v: float) -> Any:
    return torch.addcdiv(x, x, x.abs() + 1, value=-v), torch.addcmul(x, x, x, value=v).lerp(x, 1 - v)


def in_place(x: Any, v: float) -> Any:
    x.mul_(1 - v).add_(x, alpha=v)
    return x.sum()


def lists(x: Any, v: float) -> Any:
    torch._foreach_mul_([x], v)
    torch._foreach_add_([x], [x * 2], alpha=-v)
    return torch._foreach_lerp([x], [x + 1], v / 10)


def filled(x: Any, v: float) -> Any:
    return torch.full_like(x, v) + torch.full((8, 8), v)


def powers(x: Any, v: float) -> Any:
    return x.abs() ** (v / 4), (v + 9) ** x


def number_returned(x: Any, v: float) -> Any:
    return x + v, v * 2


def compared(x: Any, v: float) -> Any:
    return x * v if v > 0.3 else x - v


def clamped(x: Any, v: float) -> Any:
    return x.clamp(-v * v, v * v), torch.dropout(x, 0.5, False)


FUNCTIONS: list[Callable[..., Any]] = [
    scaled, by_keyword, fused, in_place, lists, filled, powers, number_returned, compared, clamped,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_are_eagers(function: Callable[..., Any], dtype: torch.dtype) -> None:
    compiled = fuselens.compile(function)
    for k, value in enumerate(VALUES):
        x, y = (t(8, 8, seed=k, dtype=dtype) for _ in range(2))
        difference = comparison.differ((function(x, value), x), (compiled(y, value), y), f"{value}")
        assert difference is None, difference


@pytest.mark.parametrize("function", [scaled, by_keyword, fused, in_place, lists, filled], ids=lambda f: f.__name__)
def test_one_graph_serves_all_values(function: Callable[..., Any]) -> None:
    compiled = fuselens.compile(function)
    for k, value in enumerate(VALUES * 3):
        compiled(t(8, 8, seed=k), value + k)
    graphs = compiled.__fuselens__.recorder.report.graphs
    assert [g.fallback for g in graphs] == [False, False], "the first value, and all others"
    assert not [e for g in graphs for e in g.externs]


@pytest.mark.parametrize(
    "x", [torch.tensor(1.5), torch.tensor([1, 2]), torch.tensor(3), torch.tensor([2.5], dtype=torch.float16)], ids=repr
)
def test_a_number_promotes_types_as_one(x: Any) -> None:
    def f(x: Any, v: float) -> Any:
        return x * v, v - x, x + 1

    compiled = fuselens.compile(f)
    for value in VALUES:
        difference = comparison.differ(f(x, value), compiled(x, value), f"{value}")
        assert difference is None, difference


def test_gradients_depend_on_the_number() -> None:
    def f(x: Any, v: float) -> Any:
        return ((x * v).exp() * (1 - v)).sum()

    compiled = fuselens.compile(f)
    for value in VALUES:
        a, b = (t(4, 4).requires_grad_() for _ in range(2))
        f(a, value).backward()
        compiled(b, value).backward()
        difference = comparison.differ(a.grad, b.grad, f"{value}")
        assert difference is None, difference


def test_the_type_is_guarded() -> None:
    compiled = fuselens.compile(lambda x, v: x * v)
    x = torch.arange(3)
    for value in (0.5, 0.25, 2, True, 0.75, float("inf"), float("nan")):
        expected, actual = x * value, compiled(x, value)
        assert expected.dtype == actual.dtype
        assert torch.equal(expected.nan_to_num(9.0), actual.nan_to_num(9.0))


WITH_A_NUMBER: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "add": lambda x, c: x + c, "sub": lambda x, c: x - c, "rsub": lambda x, c: c - x, "mul": lambda x, c: x * c,
    "mul_left": lambda x, c: c * x, "div": lambda x, c: x / c, "fmod": torch.fmod, "remainder": torch.remainder,
    "remainder_of_it": lambda x, c: c % x, "pow": lambda x, c: x.abs() ** c, "pow_of_it": lambda x, c: c**x,
    "floor_divide": lambda x, c: x // c, "greater": lambda x, c: x > c, "where": lambda x, c: torch.where(x > 0, c, x),
    "threshold": lambda x, c: F.threshold(x, float(c), 1.0), "leaky_relu": lambda x, c: F.leaky_relu(x, float(c)),
    "elu": lambda x, c: F.elu(x, float(c)), "hardshrink": lambda x, c: F.hardshrink(x, float(c)),
    "masked_fill": lambda x, c: x.masked_fill(x > 0, c), "clamp": lambda x, c: x.clamp(-c, c),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", WITH_A_NUMBER)
def test_half_precision_meets_numbers_as_in_eager(name: str, dtype: torch.dtype) -> None:
    """Whether the number is rounded to the tensor's dtype first depends on the operator."""
    run = WITH_A_NUMBER[name]
    steps = torch.arange(-3, 4, dtype=torch.int16)
    for number in (0.2, 0.7, 1.1):
        near = (torch.tensor(number, dtype=dtype).view(torch.int16) + steps).view(dtype)
        x = torch.cat([near, -near, torch.randn(200).to(dtype)])
        for c in (number, torch.tensor(number)):
            expected = run(x, c)
            assert torch.equal(fuselens.compile(run)(x, c), expected)
            assert torch.equal(fuselens.compile(lambda x, c=c: run(x, c))(x), expected)
