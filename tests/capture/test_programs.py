"""Random programs do compiled what they do in eager. `make sweep` runs 10,000 of them, CI a fixed sample."""

from __future__ import annotations

import os

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from .random_programs import Program, difference, programs

SEED = int(os.environ.get("FUSELENS_SWEEP_SEED") or 0)
BATCHES, PROGRAMS_PER_BATCH = 40, 250


def agree(count: int, seed: int) -> int:
    """Compares ``count`` different programs, fails with the smallest that differs; gives how many there were."""
    seen: dict[str, str | None] = {}

    @hypothesis.seed(seed)
    @settings(
        max_examples=3 * count, database=None, deadline=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False,
    )  # fmt: skip
    @given(programs())
    def compare(program: Program) -> None:
        key = repr(program)
        if key not in seen and (len(seen) < count or any(seen.values())):
            seen[key] = difference(program)
        assert seen.get(key) is None, seen[key]

    compare()
    return len(seen)


@pytest.mark.timeout(600)
def test_a_sample_of_programs() -> None:
    assert agree(75, SEED) == 75


@pytest.mark.sweep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seed", [SEED * BATCHES + i + 1 for i in range(BATCHES)], ids=lambda s: f"seed {s}, {PROGRAMS_PER_BATCH} programs"
)
def test_many_programs(seed: int) -> None:
    assert agree(PROGRAMS_PER_BATCH, seed) == PROGRAMS_PER_BATCH
