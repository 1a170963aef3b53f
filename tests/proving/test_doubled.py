"""Values in float64 beside those that a call computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fuselens.inputs.doubled import Doubled, Exact


def exactly(fn: Callable[..., torch.Tensor], *given: torch.Tensor) -> tuple[torch.Tensor, Exact | None]:
    with Doubled() as doubled:
        found = fn(*given)
        return found, doubled.exactly(found)


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    y[1:].mul_(1 / 3)
    y.t().add_(x.t())
    return y.sin()


def through_views(x: torch.Tensor) -> torch.Tensor:
    base = torch.zeros(4, 6)
    base[:, ::2].copy_(x[:, :3])
    base.view(-1)[5] = 0.1
    return base.cumsum(0) / 7


def of_dropout(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(3)
    return F.relu(x) + torch.where(torch.rand(x.shape) > 0.5, x / 3, x * 0.1)


def written_out(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    torch.exp(x, out=y)
    return y / 3


def chosen_by_data(x: torch.Tensor) -> torch.Tensor:
    return (x / 3).flatten()[x.argmax(1)] if x.sum() > -1e9 else x


CASES = (
    written, through_views, written_out, chosen_by_data, lambda x: (x / 3 - 1).exp().softmax(-1), lambda x: x @ x.T / 7,
    lambda x: F.layer_norm(x, (6,)), lambda x: torch.linalg.vector_norm(x / 3, dim=1), lambda x: x.to(torch.bfloat16) / 3,
    lambda x: torch._foreach_mul([x, x / 3], 1.1)[1],
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_they_are_those_of_a_call_in_float64(number: int) -> None:
    fn, x = CASES[number], torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
    expected = fn(x.clone())
    found, exact = exactly(fn, x.clone())
    assert torch.equal(found, expected), "the call itself is as it would be"
    assert exact is not None and exact.value.dtype == torch.float64
    if number == 8:  # what is asked to be bfloat16 is kept in float64, too
        wanted = x.double() / 3
    else:
        torch.set_default_dtype(torch.float64)
        try:
            wanted = fn(x.double())
        finally:
            torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(exact.value, wanted, rtol=1e-7, atol=1e-9)


def test_gradients() -> None:
    weight = torch.randn(6, 6, requires_grad=True)
    x = torch.randn(4, 6)

    def step(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        loss = F.gelu(F.layer_norm(x @ weight, (6,))).square().mean()
        return torch.autograd.grad(loss, weight)[0]

    _, exact = exactly(step, weight, x)
    assert exact is not None
    torch.testing.assert_close(
        exact.value, step(weight.detach().double().requires_grad_(), x.double()), rtol=1e-9, atol=1e-12
    )


def test_random_numbers_and_what_has_no_float64_are_taken_as_they_are() -> None:
    found, exact = exactly(of_dropout, torch.randn(4, 6))
    assert exact is not None
    torch.testing.assert_close(exact.value, found.double(), rtol=1e-6, atol=1e-6)
    found, exact = exactly(lambda x: torch.bernoulli(x) / 3, torch.full((9,), 0.5))
    assert exact is not None and bool(((exact.value == 0) | (exact.value == 1 / 3)).all())


@pytest.mark.parametrize("fn", [lambda z: z.conj() / 3, lambda z: z.conj().imag / 3, lambda z: z.mT.conj() @ z])
def test_what_is_lazily_conjugated_or_negated(fn: Any) -> None:
    z = torch.randn(4, 6, dtype=torch.complex64)
    _, exact = exactly(fn, z)
    assert exact is not None
    torch.testing.assert_close(exact.value, fn(z.to(torch.complex128)), rtol=1e-9, atol=1e-12)


def test_zeros_without_memory() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:  # that of a sign is such a tensor
        return torch.autograd.grad(torch.norm(x, 1) + torch.sgn(x).sum(), x)[0]

    found, exact = exactly(gradient, torch.randn(5, requires_grad=True))
    assert exact is None or torch.equal(exact.value, found.double())


@pytest.mark.parametrize(
    ("fn", "signed"),
    [
        (lambda x: torch.where(x > 0, x, -0.0).relu(), True),
        (lambda x: torch.cat([x * -0.0, x])[1:], True),
        (lambda x: (x * -0.0).sum(0), False),
        (lambda x: (x * -0.0) @ x.T + 1, False),
        (
            lambda x: torch.minimum(x * -0.0, x * 0.0),
            False,
        ),  # eager's vectors, and what is left over from them, do not agree
        (lambda x: torch.clamp(x * -0.0, x * 0.0, x * -0.0), False),
        (lambda x: torch.clamp(x * -0.0, 0.0, 1.0), True),
    ],
)
def test_signs_of_zeros_are_certain_where_no_sum_was_taken(fn: Any, signed: bool) -> None:
    _, exact = exactly(fn, torch.randn(4, 6))
    assert exact is not None and exact.signed is signed


def test_integers_and_what_was_never_seen_are_not_known() -> None:
    with Doubled() as doubled:
        assert doubled.exactly(torch.arange(3) + 1) is None
        assert doubled.exactly("text") is None
    assert doubled.exactly(torch.ones(3)) is None
