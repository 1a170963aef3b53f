"""Ranks that would communicate otherwise, or are gone: each of the others gets an error with a code. Nobody hangs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("disagreeing.py")


@pytest.fixture
def outcomes(both: Callable[..., Any], tmp_path: Path) -> Callable[[str], list[str]]:
    """What the ranks print."""
    return lambda how: [output.strip() for _, output, _ in both(PROGRAM, tmp_path, how)]


@pytest.mark.parametrize("how", ["alike", "the same anew"])
def test_ranks_that_agree(how: str, outcomes: Callable[[str], list[str]]) -> None:
    """One of them may compile alone, as long as it communicates like the others."""
    assert outcomes(how) == ["gives", "gives"]


@pytest.mark.parametrize(("how", "call"), [("another program", 1), ("another later", 4), ("functional ones", 1)])
def test_ranks_that_differ(how: str, call: int, outcomes: Callable[[str], list[str]]) -> None:
    for found in outcomes(how):
        assert found.startswith("RanksError"), found
        assert "FL930" in found and f"as call {call} of a graph on group" in found
        assert "all_reduce(float32 [4], sum); all_reduce(float32 [2], max)" in found


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("in buckets", "2 × all_reduce in a bucket of 32 bytes"),
        ("in buckets beside eager", "and rank 1 no compiled graph"),
    ],
)
def test_ranks_of_which_one_has_buckets(how: str, why: str, outcomes: Callable[[str], list[str]]) -> None:
    first, second = outcomes(how)
    assert first.startswith("RanksError") and "FL930" in first and why in first, first
    assert second != "gives", second


def test_a_rank_that_is_killed(outcomes: Callable[[str], list[str]]) -> None:
    first, killed = outcomes("killed")
    assert first.startswith("RanksError") and "FL930" in first, first
    assert killed == ""
