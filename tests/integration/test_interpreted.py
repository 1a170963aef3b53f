"""Kernels as a GPU gets them, run by Triton's interpreter where there is none, against eager: a sample, and in the sweep everything.

Programs of a launch run from the last to the first, folds join halves, and memory is full of NaN with guards behind it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rewrite.spellings import SPELLINGS

from . import operator_database as database

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("float32", "float16", "bfloat16", "int64", "bool")
SAMPLE = random.Random(3).sample(database.cases("cpu", DTYPES), 48)
SHARDS = 12
SEED = int(os.environ.get("FUSELENS_SWEEP_SEED") or 0)
BATCHES, GRAPHS_PER_BATCH = 40, 50


def interpreted(*arguments: str, seconds: float = 1800) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.integration.interpreted", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    print({k: v for k, v in counts.items() if k not in ("differences", "errors")})
    assert not counts["differences"], "\n".join(counts["differences"])[:8000]
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(2))
def test_operators(shard: int) -> None:
    assert interpreted("operators", *(f"{name}:{dtype}" for name, dtype in SAMPLE[shard::2]))["kernels"] > 40


@pytest.mark.slow
@pytest.mark.parametrize("how", [("0",), ("1",), ("2", "--small")], ids=" ".join)
def test_a_sample_of_graphs(how: tuple[str, ...]) -> None:
    assert interpreted("graphs", *how, "--count", "6")["kernels"] > 20


@pytest.mark.slow
def test_choices_of_measuring() -> None:
    counts = interpreted("operators", *(f"{name}:{dtype}" for name, dtype in SAMPLE[::3]), "--choose", "1")
    assert counts["chosen"] > 10


@pytest.mark.slow
def test_a_model() -> None:
    assert interpreted("models", "gpt2")["launches"] > 40


def test_images() -> None:
    assert interpreted("images")["launches"] > 30


def test_what_data_decides() -> None:
    assert interpreted("decided")["launches"] > 30


def test_products_as_kernels() -> None:
    assert interpreted("tuned")["kernels"] > 8


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(2))
def test_attention_that_is_written_out(shard: int) -> None:
    names = list(SPELLINGS)[shard::2]
    counts = interpreted("attention", *names)
    assert counts["launches"] >= 3 * len(names) and not counts["skipped"]


@pytest.mark.sweep
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_operator(shard: int) -> None:
    counts = interpreted("operators", "--all", "--shard", f"{shard}/{SHARDS}")
    assert sum(counts["skipped"].values()) < counts["launches"] / 20


@pytest.mark.sweep
@pytest.mark.timeout(2000)
@pytest.mark.parametrize("seed", range(SEED * BATCHES, (SEED + 1) * BATCHES))
def test_many_graphs(seed: int) -> None:
    assert interpreted("graphs", str(seed), "--count", str(GRAPHS_PER_BATCH))["graphs"] == GRAPHS_PER_BATCH


@pytest.mark.sweep
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_operator_with_choices_of_measuring(shard: int) -> None:
    assert interpreted("operators", "--all", "--shard", f"{shard}/{SHARDS}", "--choose", str(shard))["chosen"] > 100


@pytest.mark.sweep
@pytest.mark.parametrize("how", [(), ("--small",)], ids=" ".join)
def test_random_graphs_with_choices_of_measuring(how: tuple[str, ...]) -> None:
    assert interpreted("graphs", "1", "2", "3", "4", "--count", "50", "--choose", "1", *how)["chosen"] > 100


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit", "resnet"])
def test_models(name: str) -> None:
    counts = interpreted("models", name)
    assert sum(counts["skipped"].values()) < counts["launches"] / 4
