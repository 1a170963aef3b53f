"""Integer arithmetic at its edges, and zeros, infinities and NaN of floats: the same values and exceptions as in eager."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import fuselens

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
DIVISIONS: dict[str, Callable[[Any, Any], Tensor]] = {
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}
NUMBERS = (1, 2, 3, 7, 8, 100, -1, -3)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSELENS_STRICT", "1")


def edges(dtype: torch.dtype) -> list[int]:
    info = torch.iinfo(dtype)
    near = [0, 1, 2, 3, 5, 7, 8, 31, 32, 33, 63, 64, 100, -1, -2, -3, -7, -8, -33, -100, 2**40 + 1, 2**51, 2**52 + 1]
    near += [info.min, info.min + 1, info.max, info.max - 1]
    return [v for v in near if info.min <= v <= info.max]


def pairs(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    both = torch.tensor(list(itertools.product(edges(dtype), repeat=2)), dtype=dtype)
    return both[:, 0].contiguous(), both[:, 1].contiguous()


def agree(function: Callable[..., Any], *arguments: Tensor) -> None:
    expected, found = function(*arguments), fuselens.compile(function)(*arguments)
    for k, (e, f) in enumerate(zip(expected, found, strict=True)):
        assert f.dtype == e.dtype
        same = (f == e) | (f.isnan() & e.isnan())
        if e.is_floating_point():
            same = (same & (f.signbit() == e.signbit())) | e.isnan()
        assert same.all(), (k, [(a.expand_as(e)[~same][:3], e[~same][:3], f[~same][:3]) for a in arguments if a.ndim])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division(dtype: torch.dtype) -> None:
    a, b = pairs(dtype)
    defined = (b != 0) & ~((a == torch.iinfo(dtype).min) & (b == -1) & (dtype != torch.uint8))  # eager may trap there
    agree(lambda a, b: [f(a, b) for f in DIVISIONS.values()], a[defined], b[defined])
    a = a[a != torch.iinfo(dtype).min] if dtype != torch.uint8 else a
    agree(lambda a: [f(a, n) for f in DIVISIONS.values() for n in NUMBERS], a)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integer_division_by_zero_raises(name: str, dtype: torch.dtype) -> None:
    compiled = fuselens.compile(DIVISIONS[name])
    for size in (1, 7, 40):
        a = torch.arange(size).to(dtype)
        b = torch.ones(size, dtype=dtype)
        assert torch.equal(compiled(a, b), DIVISIONS[name](a, b))
        b[size - 1] = 0
        with pytest.raises(RuntimeError) as expected:
            DIVISIONS[name](a, b)
        with pytest.raises(RuntimeError) as found:
            compiled(a, b)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_powers_and_signs_of_integers(dtype: torch.dtype) -> None:
    agree(lambda a, b: [a << b, a >> b, a**b, abs(a), -a, ~a, torch.sign(a), a * b, a - b], *pairs(dtype))
    agree(lambda a: [f(a, n) for n in (0, 1, 7, 8, 31, 63, 64, -1) for f in (torch.bitwise_left_shift, torch.bitwise_right_shift)],
          torch.tensor(edges(dtype), dtype=dtype))  # fmt: skip
    agree(lambda a: [n**a for n in (2, 3, -1)], torch.tensor(edges(dtype), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_conversions_of_floats_that_do_not_fit(dtype: torch.dtype) -> None:
    values = [0.0, -0.0, 0.5, -1.5, 2.5, 127.5, 128.0, -129.0, 255.9, 256.0, -1.0, 32768.0, -32769.0, 65536.0, 2147483520.0,
              2147483648.0, -2147483904.0, 4.5e9, 9.2e18, 9.3e18, 1e20, -1e20, torch.inf, -torch.inf, torch.nan]  # fmt: skip
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    agree(lambda x: [x.to(d) for d in (*INTEGERS, torch.bool)], torch.cat([x, x]))


@pytest.mark.parametrize("call", [torch.abs, torch.floor, torch.round, torch.relu])
def test_what_eager_does_not_compute_of_bools_raises(call: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError) as expected:
        call(torch.tensor([True, False]))
    with pytest.raises(RuntimeError) as found:
        fuselens.compile(call)(torch.tensor([True, False]))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_and_nan_of_choices(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 5e-324], dtype=dtype)
    both = torch.cartesian_prod(values, values)
    x, y = both[:, 0].contiguous(), both[:, 1].contiguous()
    agree(lambda x, y: [torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y)], x, y)
    agree(lambda x: [torch.relu(x), x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0.0), x.clamp(min=-0.0), torch.tanh(x),
                     torch.nn.functional.relu6(x), torch.sign(x), torch.trunc(x), torch.round(x), torch.ceil(x)],
          torch.cat([values] * 4))  # fmt: skip
    agree(
        lambda r: [r.amax(-1), r.amin(-1), r.argmax(-1), r.argmin(-1)],
        torch.stack([values[:2].repeat(5), values[[1, 0]].repeat(5)]),
    )


@pytest.mark.parametrize("size", [36, 64])
def test_quotients_keep_the_signs_of_zeros(size: int) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -1e-45]).repeat(size // 4)
    agree(lambda x: [x / 2, x / -2, x / 3.0, -2.5 / x, x / x.new_tensor(-7.0)], x)


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e9])
def test_large_scores_in_half_precision_have_a_softmax(scale: float) -> None:
    """A maximum is one of the rounded values that are subtracted from it."""

    def attended(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.softmax(x @ x.mT / 8, -1) @ x

    x = torch.rand(3, 2, generator=torch.Generator().manual_seed(0)) * scale
    agree(attended, x)
