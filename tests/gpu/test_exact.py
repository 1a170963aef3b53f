"""Values that only some inputs show: remainders of far quotients, denormals, and exponentials below large maxima."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fuselens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICE = "cuda"
Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def same(function: Function, *given: torch.Tensor) -> None:
    """Values, infinities and signs of zeros."""
    expected, found = function(*given), fuselens.compile(function)(*given)
    torch.testing.assert_close(found, expected, equal_nan=True)
    zeros = (expected == 0) & (found == 0)
    assert torch.equal(expected.signbit() & zeros, found.signbit() & zeros)


def far(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    powers = torch.linspace(-18, 18, 37, dtype=torch.float64)
    x = torch.cat(
        [10.0**powers, -(10.0**powers), torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 7.5, -7.5])]
    )
    x = x.to(dtype).to(DEVICE)
    return x[:, None].expand(-1, x.numel()).contiguous(), x[None].expand(x.numel(), -1).contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", [torch.fmod, torch.remainder, torch.floor_divide])
def test_remainders(function: Function, dtype: torch.dtype) -> None:
    same(lambda x, y: function(x, y), *far(dtype))


@pytest.mark.parametrize(
    "name", "floor ceil sin tan asin atan sinh asinh atanh erf expm1 log1p exp2 sqrt rsqrt log tanh sigmoid".split()
)
def test_denormals(name: str) -> None:
    x = torch.linspace(-8, 8, 1024, dtype=torch.float64).mul_(torch.finfo(torch.float32).tiny / 8).float().to(DEVICE)
    expected, found = (f(x) for f in (getattr(torch, name), fuselens.compile(lambda x: getattr(torch, name)(x))))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("size", [1.0, 1e6, 1e15])
def test_softmax_of_large_products(size: float) -> None:
    x = torch.randn(64, 300, device=DEVICE) * size
    same(lambda x: torch.softmax(x * 0.37, -1), x)
    same(lambda x: (x * 0.37 - (x * 0.37).amax(-1, keepdim=True)).exp(), x)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e8])
def test_attention_with_large_scores(size: float) -> None:
    q, k, v = (torch.randn(2, 4, 64, 32, device=DEVICE) * size for _ in range(3))
    function = lambda q, k, v: F.scaled_dot_product_attention(q, k, v)  # noqa: E731
    expected, found = function(q, k, v), fuselens.compile(function)(q, k, v)
    assert not found.isnan().any() and float((found - expected).abs().max() / expected.abs().max()) < 1e-3


def test_the_logarithm_of_a_running_sum_begins_with_no_negative_zero() -> None:
    same(lambda x: torch.logcumsumexp(x, 0), torch.tensor([-0.0, -torch.inf, 1.0], device=DEVICE))


def norm_then_larger(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.layer_norm(x, x.shape[-1:]), F.interpolate(x, scale_factor=2.0)


@pytest.mark.parametrize(
    "function", [norm_then_larger, lambda x: (torch.trace(x[0, 0]), torch.mvlgamma(x.abs() + 2, 2))]
)
def test_dtypes_under_autocast(function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    x = torch.randn(1, 2, 4, 4, device=DEVICE, dtype=torch.bfloat16)
    with torch.autocast(DEVICE, torch.bfloat16):
        expected, found = function(x), fuselens.compile(function)(x)
    assert [t.dtype for t in found] == [t.dtype for t in expected]
    for e, f in zip(expected, found, strict=True):
        torch.testing.assert_close(f, e, rtol=2e-2, atol=2e-2)


def test_an_element_that_is_not_there() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.select(-1, 0).zero_()
        return x * 2

    compiled = fuselens.compile(first)
    assert torch.equal(compiled(torch.ones(3, device=DEVICE)), torch.full((3,), 2.0, device=DEVICE))
    with pytest.raises(IndexError):
        compiled(torch.ones(0, device=DEVICE))
