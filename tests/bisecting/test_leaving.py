"""Which line of a call leaves what is seen after it."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from fuselens.bisecting import leaving
from fuselens.proving.kinds import Kind

MADE: list[int] = []


def scaled(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    x.mul_(2)  # writes to x
    return y


def step(x: torch.Tensor, times: int) -> Any:
    y = scaled(x)
    z = y.t()  # makes z
    z.add_(1)  # writes to z
    MADE.append(times)  # changes MADE
    w = torch.nn.functional.dropout(y, 0.5)  # draws
    torch.set_grad_enabled(False)  # sets
    n = times + 1
    return z, w, n  # returns


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        self.calls += 1  # counts
        self.seen += x.sum(0)  # adds up
        return y


def marked(function: Any, comment: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(n for n, line in enumerate(lines) if line.rstrip().endswith(f"# {comment}"))


@pytest.mark.parametrize(
    ("where", "function", "comment"),
    [
        ("result[0], its memory", step, "makes z"),
        ("result[0]", step, "writes to z"),
        ("result[1]", step, "draws"),
        ("result[2]", step, "returns"),
        ("x afterwards: written to", scaled, "writes to x"),
        ("x afterwards", scaled, "writes to x"),
        ("torch.is_grad_enabled() afterwards", step, "sets"),
        ("random numbers", step, "draws"),
    ],
)
def test_the_line_of_a_function(where: str, function: Any, comment: str) -> None:
    kind = Kind("", (torch.randn(4, 3), 2), {})
    found = leaving.line_of(where, step, kind)
    assert found is not None and (found.file, found.line) == (__file__, marked(function, comment))
    assert torch.is_grad_enabled() and not MADE  # the call leaves nothing


def test_the_line_of_a_variable() -> None:
    found = leaving.line_of(f"{__name__}.MADE holds afterwards", step, Kind("", (torch.randn(4, 3), 2), {}))
    assert found is not None and found.line == marked(step, "changes MADE")


@pytest.mark.parametrize(("where", "comment"), [(".calls afterwards", "counts"), (".seen afterwards", "adds up")])
def test_the_line_of_a_module(where: str, comment: str) -> None:
    model = Counting()
    found = leaving.line_of(where, model, Kind("", (torch.randn(4, 3),), {}))
    assert found is not None and found.line == marked(Counting.forward, comment)
    assert model.calls == 0 and not model.seen.any()


@pytest.mark.parametrize("where", ["gradient of x", "nothing afterwards", ""])
def test_what_no_line_leaves(where: str) -> None:
    assert leaving.line_of(where, step, Kind("", (torch.randn(4, 3), 2), {})) is None


def test_a_call_that_raises() -> None:
    assert leaving.line_of("x afterwards: written to", step, Kind("", (torch.randn(2, 3, 4), 2), {})) is None
