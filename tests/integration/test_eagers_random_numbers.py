"""``fallback_random`` draws exactly eager's numbers, in whatever order eager fills memory, and leaves torch's generators as
eager leaves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fuselens

f16, bf16, f64 = torch.float16, torch.bfloat16, torch.float64
Draw = Callable[[Tensor], Any]


def layouts() -> dict[str, Tensor]:
    torch.manual_seed(1)
    base = torch.rand(4, 3, 6, 5) * 0.9 + 0.05
    return {
        "contiguous": base,
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "permuted": base.permute(0, 2, 1, 3),
        "rotated": base.permute(3, 1, 0, 2),
        "expanded": base[:1].expand(4, 3, 6, 5),
        "expanded_inside": base[:, :, :1].expand(4, 3, 6, 5),
        "gaps": (torch.rand(8, 3, 6, 10) * 0.9 + 0.05)[::2, :, :, ::2],
        "permuted_gaps": (torch.rand(4, 3, 6, 10) * 0.9 + 0.05)[..., ::2].permute(0, 2, 1, 3),
        "offset": (torch.rand(5, 3, 6, 5) * 0.9 + 0.05)[1:],
        "empty": torch.rand(4, 3, 0, 5).permute(0, 2, 1, 3),
        "ones": torch.rand(1, 3, 1, 5).permute(2, 1, 0, 3),
    }


def on_view(view: Draw, draw: Draw) -> Draw:
    """Draws in place into a view of a copy; gives the copy."""

    def fn(x: Tensor) -> Tensor:
        y = x.clone()
        draw(view(y))
        return y

    return fn


def turned(x: Tensor) -> Tensor:
    return x.permute(*range(x.ndim - 1, -1, -1))


IN_PLACE: dict[str, Draw] = {
    "bernoulli_": lambda t: t.bernoulli_(0.3), "bernoulli_tensor_": lambda t: t.bernoulli_(t.clone().clamp(0, 1)),
    "uniform_": lambda t: t.uniform_(-1, 2), "normal_": lambda t: t.normal_(1, 2), "exponential_": lambda t: t.exponential_(),
    "cauchy_": lambda t: t.cauchy_(1, 2), "log_normal_": lambda t: t.log_normal_(0, 0.5), "geometric_": lambda t: t.geometric_(0.3),
    "random_": lambda t: t.random_(), "random_to": lambda t: t.random_(10), "random_from": lambda t: t.random_(2, 10),
    "uniform_by_name": lambda t: t.uniform_(to=3), "normal_by_name": lambda t: t.normal_(std=2),
}  # fmt: skip
DRAWS: dict[str, Draw] = {
    "rand_like": torch.rand_like, "randn_like": torch.randn_like, "rand_like_f64": lambda x: torch.rand_like(x, dtype=f64),
    "rand_like_contiguous": lambda x: torch.rand_like(x, memory_format=torch.contiguous_format),
    "rand_like_channels_last": lambda x: torch.rand_like(x, memory_format=torch.channels_last),
    "randn_like_bf16": lambda x: torch.randn_like(x.bfloat16()), "rand_like_f16": lambda x: torch.rand_like(x.half()),
    "randn_like_complex": lambda x: torch.view_as_real(torch.randn_like(x.to(torch.complex64))),
    "randint_like": lambda x: torch.randint_like(x, -5, 100), "bernoulli": torch.bernoulli, "bernoulli_p": lambda x: torch.bernoulli(x, 0.3),
    "bernoulli_method": lambda x: x.bernoulli(0.3), "dropout": lambda x: F.dropout(x, 0.3), "dropout_in_place": lambda x: F.dropout(x + 1, 0.3, inplace=True),
    "dropout_of_permuted": lambda x: F.dropout(x.permute(0, 2, 1, 3), 0.3), "dropout_of_computed": lambda x: F.dropout((x + 1).transpose(0, -1), 0.3) * 2,
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True), "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha_dropout_in_place": lambda x: F.alpha_dropout(x.clone(), 0.3, True, True), "dropout1d": lambda x: F.dropout1d(x.flatten(2), 0.3),
    "dropout2d": lambda x: F.dropout2d(x, 0.3), "feature_alpha_dropout": lambda x: F.feature_alpha_dropout(x, 0.3, True),
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True), "rrelu_": lambda x: F.rrelu_(x - 0.5, training=True),
    "random_long": lambda x: torch.empty_like(x, dtype=torch.long).random_(), "poisson": lambda x: torch.poisson(x * 5),
    "multinomial": lambda x: torch.multinomial(x.flatten(1) + 1, 2), "multinomial_again": lambda x: torch.multinomial(x.flatten(1) + 1, 2, replacement=True),
    "binomial": lambda x: torch.binomial(x * 0 + 10, x), "normal_both": lambda x: torch.normal(x, x), "normal_mean": lambda x: torch.normal(x, 2.0),
    "normal_std": lambda x: torch.normal(1.0, x), "normal_size": lambda x: torch.normal(1.0, 2.0, x.shape), "randperm": lambda x: torch.randperm(9) + x.shape[0],
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, dim=-1), "gumbel_hard": lambda x: F.gumbel_softmax(x, dim=1, hard=True),
    "rand": lambda x: torch.rand(x.shape), "randn": lambda x: torch.randn(x.shape), "randint": lambda x: torch.randint(7, x.shape),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3), "kaiming": lambda x: nn.init.kaiming_uniform_(torch.empty_like(x) + 0 * x),
    "truncated": lambda x: nn.init.trunc_normal_(x.clone()), "two": lambda x: (F.dropout(x, 0.3), F.dropout(turned(x), 0.3)),
    "strided": lambda x: x.new_empty_strided(x.shape, x.stride()).normal_() if x.is_contiguous() or 0 not in x.stride() else x,
    "out_rand": lambda x: torch.rand(x.shape, out=torch.empty_like(x)), "out_randn": lambda x: torch.randn(x.shape, out=torch.empty_like(x)),
    "out_normal": lambda x: torch.normal(x, x, out=torch.empty_like(x)), "out_bernoulli": lambda x: torch.bernoulli(x, out=torch.empty_like(x)),
    "out_randint": lambda x: torch.randint(9, x.shape, out=torch.empty_like(x)),
    "checkpointed_bernoulli": lambda x: checkpoint(lambda v: torch.bernoulli(turned(v), 0.3), x, use_reentrant=False),
    "checkpointed": lambda x: checkpoint(lambda v: F.dropout(turned(v), 0.3) * 2, x, use_reentrant=False),
    **{f"{name}clone": on_view(lambda y: y, draw) for name, draw in IN_PLACE.items()},
    **{f"{name}turned": on_view(turned, draw) for name, draw in IN_PLACE.items()},
    **{f"{name}columns": on_view(lambda y: y[..., ::2], draw) for name, draw in IN_PLACE.items()},
    **{f"{name}column": on_view(lambda y: y[..., 1], draw) for name, draw in IN_PLACE.items()},
}  # fmt: skip
ROUNDED = ("gumbel_softmax", "attention", "truncated")  # what they compute besides is rounded otherwise


def outcome(fn: Draw, x: Tensor, gradient: bool) -> tuple[Any, Tensor]:
    """Results, gradient and the generator's state afterwards; where it raises, what."""
    given = x.detach().requires_grad_(gradient)
    torch.manual_seed(7)
    try:
        made = fn(given)
        results = list(made) if isinstance(made, tuple) else [made]
        needing = [r for r in results if r.requires_grad]
        if needing:
            results += torch.autograd.grad(needing, given, [r.detach().cos() for r in needing], allow_unused=True)
        return [r if r is None else r.detach() for r in results], torch.get_rng_state()
    except (RuntimeError, IndexError, ValueError) as e:
        return type(e), torch.empty(0, dtype=torch.uint8)


def compare(name: str, fn: Draw, layout: str, x: Tensor, backend: str, gradient: bool) -> None:
    expected, state = outcome(fn, x, gradient)
    call = lambda x: fn(x)  # noqa: E731
    call.__code__ = call.__code__.replace()  # nobody compiled this one before
    compiled = fuselens.compile(call, backend=backend, dynamic=False, options={"fallback_random": True})
    actual, after = outcome(compiled, x, gradient)
    where = f"{name}, {layout}, {backend}"
    if isinstance(expected, type):
        assert actual is expected, where
        return
    assert not isinstance(actual, type), f"{where}: {actual}"
    assert torch.equal(state, after), f"{where}: the generator's state"
    for e, a in zip(expected, actual, strict=True):
        if e is None or a is None:
            assert e is a, where
            continue
        assert (a.dtype, a.shape) == (e.dtype, e.shape), where
        same = torch.allclose(a, e, atol=2e-6) if name in ROUNDED else torch.equal(a.nan_to_num(), e.nan_to_num())
        assert same, where


@pytest.mark.parametrize("name", DRAWS)
def test_every_operator_in_every_layout(name: str) -> None:
    some = ("contiguous", "rotated", "permuted_gaps") if name.startswith(tuple(IN_PLACE)) else tuple(layouts())
    for layout in some:
        compare(name, DRAWS[name], layout, layouts()[layout], "aot_eager", gradient=False)
    compare(name, DRAWS[name], "permuted_gaps", layouts()["permuted_gaps"], "fuselens", gradient=False)


DIFFERENTIABLE = [
    "dropout", "dropout_in_place", "dropout_of_permuted", "dropout_of_computed", "native_dropout", "alpha_dropout",
    "dropout2d", "feature_alpha_dropout", "rrelu", "bernoulli_p", "bernoulli", "two", "attention", "checkpointed",
]  # fmt: skip


@pytest.mark.parametrize("backend", ["aot_eager", "fuselens"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_forward_and_backward(name: str, backend: str) -> None:
    for layout, x in layouts().items():
        if layout in ("contiguous", "channels_last", "permuted", "gaps", "expanded"):
            compare(name, DRAWS[name], layout, x, backend, gradient=True)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [nn.RNN, nn.LSTM, nn.GRU])
def test_dropout_between_recurrent_layers(make: Callable[..., nn.Module], training: bool) -> None:
    torch.manual_seed(0)
    net = make(4, 6, num_layers=3, dropout=0.4, batch_first=True).train(training)
    x = torch.rand(5, 7, 4).transpose(0, 1)
    torch.manual_seed(3)
    expected, state = net(x)[0], torch.get_rng_state()
    torch.manual_seed(3)
    actual = fuselens.compile(net, options={"fallback_random": True})(x)[0]
    torch.testing.assert_close(actual, expected)
    assert torch.equal(torch.get_rng_state(), state)


def test_symbolic_sizes() -> None:
    fn = lambda x: F.dropout(x.permute(0, 2, 1), 0.3)  # noqa: E731
    compiled = fuselens.compile(fn, dynamic=True, options={"fallback_random": True})
    for n in (3, 6, 7):
        x = torch.rand(n, n + 2, 5)
        torch.manual_seed(n)
        expected = fn(x)
        torch.manual_seed(n)
        assert torch.equal(compiled(x), expected)
