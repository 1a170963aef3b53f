"""Kernels as a GPU gets them, run by Triton's interpreter where there is none, against eager: a sample, and in the sweep everything."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import operator_database as database

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("float32", "float16", "int64", "bool")  # of bfloat16 the interpreter knows too little
SAMPLE = random.Random(3).sample(database.cases("cpu", DTYPES), 48)
SHARDS = 12


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
def test_a_model() -> None:
    assert interpreted("models", "gpt2")["launches"] > 40


def test_products_as_kernels() -> None:
    assert interpreted("tuned")["kernels"] > 8


@pytest.mark.sweep
@pytest.mark.parametrize("shard", range(SHARDS))
def test_every_operator(shard: int) -> None:
    counts = interpreted("operators", "--all", "--shard", f"{shard}/{SHARDS}")
    assert sum(counts["skipped"].values()) < counts["launches"] / 20


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit", "resnet"])
def test_models(name: str) -> None:
    counts = interpreted("models", name)
    assert sum(counts["skipped"].values()) < counts["launches"] / 4
