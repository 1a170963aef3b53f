"""Functions called in inference mode: views share memory, writes reach what they are views of, shapes change in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens


def transposed_in_place(x: torch.Tensor) -> Any:
    x.transpose_(0, -1)
    return x.double(), torch.softmax(x, 1)


def written_through_a_view(x: torch.Tensor) -> Any:
    torch.atleast_3d(x).add_(1)
    return x * 2


def written_through_broadcasts(x: torch.Tensor) -> Any:
    whole, _ = torch.broadcast_tensors(x, x[:1])
    whole[0].mul_(3)
    return x + 1, whole


def both_views(x: torch.Tensor) -> Any:
    return x.view(-1)[1:], x


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "transposed": transposed_in_place, "through a view": written_through_a_view, "through broadcasts": written_through_broadcasts,
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"), "atleast": lambda x: torch.atleast_3d(x),
    "einsum": lambda x: torch.einsum("ij->ji", x), "broadcast": lambda x: torch.broadcast_tensors(x[:1], x), "views": both_views,
    "split": lambda x: x.split(1), "computed": lambda x: (x * 2).t(),
}  # fmt: skip


def left(function: Callable[[torch.Tensor], Any], made_inside: bool, mode: Any) -> list[Any]:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    with mode():
        x = x.clone() if made_inside else x
        found = function(x)
    results = found if isinstance(found, (tuple, list)) else [found]
    shares = [r.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for r in results]
    return [[(r.shape, r.stride(), r.dtype, r.is_inference()) for r in (x, *results)], shares, [x, *results]]


@pytest.mark.parametrize("made_inside", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_eager(name: str, made_inside: bool) -> None:
    for mode in (torch.inference_mode, torch.no_grad):
        fuselens.reset()
        expected, found = (left(f, made_inside, mode) for f in (FUNCTIONS[name], fuselens.compile(FUNCTIONS[name])))
        assert found[:2] == expected[:2], mode
        torch.testing.assert_close([t.clone() for t in found[2]], [t.clone() for t in expected[2]])


def test_an_inference_tensor_outside_of_the_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(3, 4)
    found = fuselens.compile(lambda x: torch.atleast_3d(x))(x)
    assert found.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
