"""The work of a compilation grows as the graph does: calls of Python functions are counted, not seconds."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fuselens
from fuselens.capture.hook import _hook

KINDS: dict[str, Callable[[int], Callable[[Any], Any]]] = {}
WEIGHT = torch.full((16, 16), 0.1)


def kind(make: Callable[[int], Callable[[Any], Any]]) -> None:
    KINDS[make.__name__] = make


@kind
def pointwise(rounds: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for _ in range(rounds):
            x = torch.relu(torch.sin(x) + 0.5) * 1.01
        return x

    return f


@kind
def mixed(rounds: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for _ in range(rounds):
            y = x @ WEIGHT
            y = torch.tanh(y - y.mean(-1, keepdim=True))
            x = x + torch.relu(y.view(4, 2, 16).transpose(0, 1).reshape(8, 16)) * 0.5
        return x

    return f


def calls(f: Callable[[Any], Any], training: bool, cache: Path) -> int:
    """Calls of Python functions in compiling ``f`` and its backward."""
    x = torch.ones(8, 16, requires_grad=training)
    compiled = fuselens.compile(f, options={"cache_dir": cache, "regions": False})
    profile = cProfile.Profile(builtins=False)
    with torch.autograd.set_multithreading_enabled(False):
        _hook.show_work(True)
        profile.enable()
        try:
            result = compiled(x)
            if training:
                result.sum().backward()
        finally:
            profile.disable()
            _hook.show_work(False)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("training", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("name", KINDS)
def test_twice_the_operations_are_twice_the_calls(name: str, training: bool, tmp_path: Path) -> None:
    make = KINDS[name]
    calls(make(3), training, tmp_path)  # what a process does once
    few, more, most = (calls(make(rounds), training, tmp_path) for rounds in (10, 20, 40))
    assert most - more <= 2.4 * (more - few)
