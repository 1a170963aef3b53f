"""An operator that fails while a compiled graph runs is named: the error is its own, a note says which one, where, on what."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch

import fuselens


@pytest.fixture
def fails_in_backward() -> Iterator[str]:
    """The name of an operator whose derivative raises, and nothing else can tell."""
    library = torch.library.Library("fuselens_failing", "DEF")
    library.define("forward(Tensor x) -> Tensor")
    library.define("backward(Tensor g) -> Tensor")
    library.impl("forward", torch.clone, "CPU")
    library.impl("backward", refuse, "CPU")
    for name in ("forward", "backward"):
        torch.library.register_fake(f"fuselens_failing::{name}", torch.empty_like, lib=library)
    torch.library.register_autograd(
        "fuselens_failing::forward", lambda _, g: torch.ops.fuselens_failing.backward(g), lib=library
    )
    yield "fuselens_failing.backward"
    library._destroy()


def refuse(_: torch.Tensor) -> torch.Tensor:
    raise KeyError("no such thing")


@pytest.mark.parametrize("backend", ["fuselens", "aot_eager"])
def test_of_a_backward(fails_in_backward: str, backend: str) -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        return (torch.ops.fuselens_failing.forward(x.sin()) * 2).sum()

    x = torch.randn(3, requires_grad=True)
    result = fuselens.compile(loss, backend=backend)(x)
    with pytest.raises(KeyError, match="no such thing") as caught:
        result.backward()
    if backend == "fuselens":
        (note,) = caught.value.__notes__
        line = loss.__code__.co_firstlineno + 1
        assert fails_in_backward in note and f"{__file__}:{line}" in note
        assert "float32" in note and re.search(r"shape \(3,\)", note)


def test_of_a_forward_that_is_repeated_eagerly() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x @ x.mT
        return torch.linalg.cholesky(y - 100) * 2

    x = torch.randn(4, 4)
    for run in (f, fuselens.compile(f)):
        with pytest.raises(torch.linalg.LinAlgError, match="positive-definite") as caught:
            run(x)
        lines = [entry.lineno + 1 for entry in caught.traceback if entry.path and str(entry.path) == __file__]
        assert f.__code__.co_firstlineno + 2 in lines
