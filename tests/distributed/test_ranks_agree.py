"""Ranks that would communicate otherwise, or are gone: each of the others gets an error with a code. Nobody hangs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("disagreeing.py")


def outcomes(how: str, place: Path) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(place), "FUSELENS_STRICT": "1", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(port), how], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    return [rank.communicate(timeout=120)[0].strip() for rank in ranks]


@pytest.mark.parametrize("how", ["alike", "the same anew"])
def test_ranks_that_agree(how: str, tmp_path: Path) -> None:
    """One of them may compile alone, as long as it communicates like the others."""
    assert outcomes(how, tmp_path) == ["gives", "gives"]


@pytest.mark.parametrize(("how", "call"), [("another program", 1), ("another later", 4)])
def test_ranks_that_differ(how: str, call: int, tmp_path: Path) -> None:
    for found in outcomes(how, tmp_path):
        assert found.startswith("RanksError"), found
        assert "FL930" in found and f"as call {call} of a graph on group" in found
        assert "all_reduce(float32 [4], sum); all_reduce(float32 [2], max)" in found


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    first, killed = outcomes("killed", tmp_path)
    assert first.startswith("RanksError") and "FL930" in first, first
    assert killed == ""
