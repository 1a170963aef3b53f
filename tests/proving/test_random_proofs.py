"""No proof of a random graph finds anything. `make sweep` proves 2,000 of them, CI a sample."""

from __future__ import annotations

import os

import pytest

from .random_proofs import GRAPHS_PER_PROCESS, proved

SEED = int(os.environ.get("FUSELENS_SWEEP_SEED") or 0)
BATCHES = 100


def agree(seed: int, first: int, count: int) -> None:
    found = proved(seed, first, count)
    if found.findings:
        pytest.fail("\n\n".join(found.findings), pytrace=False)
    assert found.graphs == count and sum(found.tried.values()) > 8 * count


@pytest.mark.timeout(600)
def test_a_sample_of_graphs_is_proved() -> None:
    agree(SEED, 0, 6)


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("batch", range(BATCHES), ids=lambda b: f"graphs {b * GRAPHS_PER_PROCESS}…")
def test_many_graphs_are_proved(batch: int) -> None:
    agree(SEED, batch * GRAPHS_PER_PROCESS, GRAPHS_PER_PROCESS)
