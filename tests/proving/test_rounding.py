"""What rounding decides, and what it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fuselens.inputs import rounding
from fuselens.inputs.structures import Values

Function = Callable[[torch.Tensor], torch.Tensor]


def decided(function: Function, x: torch.Tensor, found: torch.Tensor) -> bool:
    """Whether what was ``found`` may be what the function gives with other last bits."""

    def called(by: rounding.Rounding) -> Values:
        with by:
            return [("result", function(x))]

    moved = [called(rounding.Rounding(seed)) for seed in range(rounding.RUNS)]
    limits = [called(by) for by in rounding.limits()]
    return rounding.decides("result", [("result", function(x))], [("result", found)], moved, limits)


def cancels(x: torch.Tensor) -> torch.Tensor:
    """Zero, but for the last bits."""
    return F.kl_div(F.logsigmoid(x), torch.sigmoid(x), reduction="sum") == 0


def saturated(x: torch.Tensor) -> torch.Tensor:
    return 1 / (1 - torch.sigmoid(x))


def test_a_sum_that_cancels_may_be_zero() -> None:
    torch.manual_seed(1)
    x = torch.randn(17)
    assert decided(cancels, x, ~cancels(x))


def test_a_limit_that_all_values_on_one_side_leave() -> None:
    x = torch.full((40,), 20.0)
    assert bool(torch.isinf(saturated(x)).all())
    assert decided(saturated, x, torch.full((40,), 2.0**24))


def small(x: torch.Tensor) -> torch.Tensor:
    return (torch.softmax(x, -1) * x.abs()).sum(-1) > 0


def test_what_is_too_large_for_half_precision_may_be_held_in_more() -> None:
    def large(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * x / 64, -1) > 0

    x = torch.tensor([[1000.0, 2.0]], dtype=torch.float16)
    assert not bool(large(x).any()), "no number is larger than zero"
    assert decided(large, x, torch.tensor([[True, False]]))


def test_what_is_too_small_for_half_precision_may_be_held_in_more() -> None:
    x = torch.tensor([[-60.0, 0.0], [0.0, -60.0]], dtype=torch.float16)
    assert not bool(small(x).any())
    assert decided(small, x, torch.ones(2, dtype=torch.bool))
    relu = torch.tensor([[-60.0, -1.0]], dtype=torch.float16)
    assert not decided(lambda x: torch.relu(x) > 0, relu, torch.ones(1, 2, dtype=torch.bool)), "zero in any precision"


@pytest.mark.parametrize(
    ("function", "x", "found"),
    [
        (lambda x: x > 0, torch.full((3,), 1e-30), torch.zeros(3, dtype=torch.bool)),  # small is not zero
        (lambda x: x + x, torch.full((3,), -0.0), torch.zeros(3)),  # nothing cancels: the sign is certain
        (lambda x: x + 1.0, torch.ones(3), torch.full((3,), 2.001)),
        (lambda x: 1 / x, torch.full((3,), 1e-38), torch.full((3,), float("inf"))),
    ],
    ids=["small", "sign", "far", "large"],
)
def test_what_it_does_not_decide(function: Function, x: torch.Tensor, found: torch.Tensor) -> None:
    assert not decided(function, x, found)


TWICE, ONCE = torch.tensor([1, 1, 3, 3]), torch.tensor([4, 1, 0, 3])
OTHERS = {"twice": torch.tensor([0, 0, 1, 1]), "once": torch.tensor([0, 1, 2, 3])}


def put_in(index: torch.Tensor) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(5, 6, 7)
        y[:, index] = x
        return y

    return function


def put_between(index: torch.Tensor) -> Function:
    def function(x: torch.Tensor) -> torch.Tensor:
        y, other = torch.zeros(5, 6, 7), OTHERS["once" if index is ONCE else "twice"]
        y[other, :, index] = x[0, :, :6]
        return y

    return function


def put_at_pairs(index: torch.Tensor) -> Function:
    places = [None, index[:, None].expand(4, 2), torch.tensor([0, 1])[None].expand(4, 2)]
    return lambda x: torch.ops.aten.index_put(torch.zeros(5, 6, 7), places, x[:, :, :2])


def copied_to(index: torch.Tensor) -> Function:
    return lambda x: torch.zeros(5, 6, 7).index_copy(1, index, x)


def scattered(index: torch.Tensor) -> Function:
    return lambda x: torch.zeros(5, 6, 7).scatter(1, index[None, :, None].expand(5, 4, 7), x)


def other_order(function: Function, x: torch.Tensor, seed: int) -> torch.Tensor:
    with rounding.Rounding(seed):
        return function(x)


@pytest.mark.parametrize("made", [put_in, put_between, put_at_pairs, copied_to, scattered])
def test_which_of_several_elements_stays_in_a_place_is_open(made: Callable[[torch.Tensor], Function]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4, 7)
    for index in (TWICE, ONCE):
        function = made(index)
        moved = [other_order(function, x, seed) for seed in range(4)]  # one of them may come upon the same
        kept, found = function(x), made(index.flip(0) if index is TWICE else index)(x.flip(1) if index is TWICE else x)
        assert all(torch.allclose(m, kept, 1e-5, 1e-6) for m in moved) == (index is ONCE)
        assert decided(function, x, found)
        assert not decided(made(ONCE), x, kept + 0.1)


def test_masks_numbers_and_sums_have_no_order() -> None:
    x = torch.randn(5, 4, 7)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[x > 1] = 0.0
        y[:, torch.tensor([1, 1])] = 2.0
        y = y.scatter(1, torch.ones(5, 2, 7, dtype=torch.int64), 3.0)
        return y.index_put((torch.tensor([1, 1]),), x[:2], accumulate=True)

    with rounding.Rounding(0):
        assert torch.allclose(function(x), function(x), 1e-5, 1e-6)


def centred(x: torch.Tensor) -> torch.Tensor:
    """What sums of like numbers round off, made large; and zeros of its sign."""
    y = (x - x.mean(1, keepdim=True)) * 1e6
    return torch.cat([y, y * 0], 1)


def test_sums_of_like_numbers_are_rounded_off_alike() -> None:
    x = torch.full((4, 1000), -13.8155)
    bit = 1e6 * torch.finfo(torch.float32).eps * 8
    found = centred(x) * 0 + torch.cat([torch.full((4, 1000), 2 * bit), torch.zeros(4, 1000)], 1)
    assert decided(centred, x, found) and decided(centred, x, -found)
    assert not decided(centred, x, found * 100)


def test_the_sign_of_a_zero_is_decided_where_values_are_known() -> None:
    x = torch.randn(4, 10)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * 2, x * 0])

    expected = function(x)
    assert not decided(function, x, torch.cat([expected[:4], -expected[4:]]))
