"""What all folders of tests have: the fixture ``fresh``, and ``--sample 0.1``, a part of the tests, chosen by chance
(``FUSELENS_SWEEP_SEED``), the same in every process of a run; those below a ``--whole`` path all the same."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

import pytest

# Before torch is imported, and for the processes that tests start. Threads that wait spin otherwise, for what the processes
# beside them need: most of the time, where there are more threads than processors.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What sizes an earlier run of a test saw is not what it is about.
os.environ.setdefault("FUSELENS_KEEP_SIZES", "0")
# Hundreds of processes import the compiler; each would compile its sources anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample", type=float, default=1.0, metavar="PART", help="run this part of the tests, chosen by chance"
    )
    parser.addoption("--sample-files", action="store_true", help="the part is of files: their tests stay together")
    parser.addoption(
        "--whole", action="append", default=[], metavar="PATH", help="of these files or folders run all tests"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--sample")
    if part >= 1:
        return
    seed = os.environ.get("FUSELENS_SWEEP_SEED", "0")
    whole = tuple(config.getoption("--whole"))
    files = config.getoption("--sample-files")
    names = [item.nodeid.partition("::")[0] if files else item.nodeid for item in items]
    chosen = [name.startswith(whole) or random.Random(f"{seed} {name}").random() < part for name in names]
    config.hook.pytest_deselected(items=[item for item, taken in zip(items, chosen, strict=True) if not taken])
    items[:] = [item for item, taken in zip(items, chosen, strict=True) if taken]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Internal errors fail the test, and no test sees another's compiled code."""
    import fuselens

    monkeypatch.setenv("FUSELENS_STRICT", "1")
    fuselens.reset()
    yield
    fuselens.reset()
