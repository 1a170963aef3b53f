"""Assertions and exceptions that data decides."""

from __future__ import annotations

import torch

from ..program import Programs, some

programs = Programs()
BREAKS = "an assertion of a tensor ends the graph"


@programs(lambda: (some(4),), gap=BREAKS)
def with_a_message(t):
    assert (t > 0).all(), "must be positive"
    return t * 2


@programs(lambda: (some(4),))
def with_a_formatted_message(t):
    assert torch.all(t < 9), f"bad {t.shape}"
    return t + 1


@programs(lambda: (some(4),), gap=BREAKS)
def without_a_message(t):
    assert t.sum() > 0
    return t + 1


@programs(lambda: (some(4),))
def torchs_own(t):
    torch._assert(t.sum() > 0, "no")
    return t + 1


@programs(lambda: (some(4),))
def exception(t):
    if t.sum() < 0:
        raise ValueError("negative")
    return t * 2


@programs(lambda: (some(4),))
def check_of_a_value(t):
    torch._check_value((t > 0).all().item(), lambda: "bad")
    return t * 2


@programs(lambda: (-some(4),))
def that_fails(t):
    assert (t > 0).all(), "must be positive"
    return t * 2


@programs(lambda: (-some(4),))
def that_fails_before_a_write(t):
    assert t.sum() > 0, "no"
    t.mul_(2)
    return t
