"""What eager refuses, and fake tensors do not: the compiled function raises the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fuselens

PLACES: dict[str, Any] = {
    "indices": torch.tensor([0, 1]), "a mask": torch.tensor([True, False, True, False]), "a list": [0, 1], "a slice": slice(0, 2),
    "several": (torch.tensor([0, 1]), slice(None)), "one": torch.tensor(1), "a mask of columns": (slice(None), torch.tensor([True, False, True])),
}  # fmt: skip
VALUES = {
    "a number": 1, "no dimension": torch.tensor(1.0, dtype=torch.bfloat16), "one": torch.ones(1, dtype=torch.bfloat16),
    "a row": torch.ones(3, dtype=torch.bfloat16), "an integer": torch.tensor(2),
}  # fmt: skip


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001
        return type(error), str(error).splitlines()[0]


def same(function: Callable[..., Any], *args: Any) -> Any:
    """What both give."""
    copies = [[a.clone() if isinstance(a, torch.Tensor) and a.is_contiguous() else a for a in args] for _ in range(2)]
    expected, found = outcome(function, *copies[0]), outcome(fuselens.compile(function), *copies[1])
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected
    return expected


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("place", PLACES)
def test_values_of_another_dtype_that_are_put_somewhere(place: str, value: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x[PLACES[place]] = VALUES[value]
        return x + 1

    same(function, torch.zeros(4, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x % 0, x + 1)[1],
        lambda x: (x // 0, x + 1)[1],
        lambda x: (torch.fmod(x, 0), x + 1)[1],
        lambda x: (x.clone().remainder_(0), x + 1)[1],
    ],
)
def test_integers_divided_by_zero_also_where_nobody_reads_it(function: Callable[[torch.Tensor], Any]) -> None:
    assert "ZeroDivisionError" in str(same(function, torch.arange(4)))
    assert isinstance(same(function, torch.arange(4.0)), torch.Tensor)
    assert isinstance(same(function, torch.arange(0)), torch.Tensor)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x) * 2


def of_a_part(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x[1:]) * 2


@pytest.mark.parametrize("function", [doubled, of_a_part, lambda x: torch.view_as_complex(x * 1) * 2])
@pytest.mark.parametrize("first", [0, 1])
def test_complex_numbers_begin_at_even_elements(function: Callable[[torch.Tensor], torch.Tensor], first: int) -> None:
    memory = torch.randn(25)
    given = memory[:24].view(3, 4, 2), memory[1:].view(3, 4, 2)
    compiled = fuselens.compile(function)
    for x in (given[first], given[1 - first], given[first]):
        expected, found = outcome(function, x), outcome(compiled, x)
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(found, expected)
        else:
            assert found == expected
