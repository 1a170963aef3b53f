"""What the report predicts of communication on GPUs that are not here: eight ranks of which seven are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

PROGRAM = """
import json, sys
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.testing._internal.distributed.fake_pg import FakeStore
import fuselens

dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())

def step(x, w):
    total = functional.all_reduce(x, "sum", dist.group.WORLD)
    return total + (x @ w).relu() @ w

told = []
for width, link in ((1024, "450 GB/s, 3.4 us"), (64, "450 GB/s, 3.4 us"), (1024, "1 GB/s, 3.4 us")):
    given = torch.randn(512, width, dtype=torch.bfloat16), torch.randn(width, width, dtype=torch.bfloat16)
    report = fuselens.explain(step, target="cuda:sm_90", host_link=link)(*given)
    told.append([[d.reason, d.data] for g in report.graphs for d in g.decisions if d.code == "FL418"])
print(json.dumps(told))
"""


@cache
def told() -> list[Any]:
    place = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().rpartition("\n")[2])


@pytest.mark.parametrize("number", range(3))
def test_a_prediction_is_told(number: int) -> None:
    ((reason, data),) = told()[number]
    assert "run meanwhile; predicted " in reason and reason.endswith("hidden"), reason
    assert data["phase"] == "forward" and data["calls"] == 2


def test_more_is_hidden_where_more_is_computed_and_less_where_links_are_slow() -> None:
    wide, narrow, slow = (found[0][1] for found in told())
    assert wide["predicted_hidden"] > narrow["predicted_hidden"] > slow["predicted_hidden"] > 0
    # 2 (n - 1) / n of 1 MiB, over 450 and 1 GB/s, and the steps
    assert 4e-6 < wide["predicted_seconds"] < 60e-6 and 1.8e-3 < slow["predicted_seconds"] < 2e-3
