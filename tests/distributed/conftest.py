"""Two processes of one program, which talk by Gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Outcome = tuple[int, str, str]
"""Exit status, output, errors."""


def run_both(program: Path, cache: Path, *arguments: str) -> list[Outcome]:
    """Runs ``python program RANK PORT arguments`` for both ranks. ``{rank}`` in an argument is the rank's number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "FUSELENS_CACHE_DIR": str(cache), "FUSELENS_STRICT": "1", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(rank), port, *(a.format(rank=rank) for a in arguments)],
            env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=280) for rank in ranks]
    return [(rank.returncode, *output) for rank, output in zip(ranks, outputs, strict=True)]


@pytest.fixture(scope="session")
def both() -> Callable[..., list[Outcome]]:
    return run_both
