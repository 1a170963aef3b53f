"""``fuselens memory``: what it prints, its status, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_mlp.py"


def fuselens(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "fuselens.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)


def test_a_step_that_fits_and_one_that_does_not() -> None:
    done = fuselens("memory", "--size", "batch=64", "--limit", "1MiB", EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert "::model: a step holds " in done.stdout
    assert "with batch=64" in done.stdout
    assert "it fits: the limit is 1 MiB; the largest batch that fits is " in done.stdout
    assert "saved for backward" in done.stdout
    assert "line 18" in done.stdout
    done = fuselens("memory", "--limit", "100KiB", f"{EXAMPLE}::model")
    assert done.returncode == 1, done.stderr
    assert "IT DOES NOT FIT" in done.stdout
    assert "what would help" in done.stdout


def test_as_json() -> None:
    done = fuselens("memory", "--card", "h100", "--optimizer", "adam", "--format", "json", EXAMPLE)
    assert done.returncode == 0, done.stderr
    (one,) = json.loads(done.stdout)
    assert one["function"] == "model"
    assert one["diagnostics"] == []
    step = one["step"]
    assert step["target"] == "cuda:sm_90"
    assert step["card"] == "H100"
    assert step["optimizer"] == "Adam"
    assert step["peak"] <= step["reserved"] < step["limit"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--size", "batch"), "step_sizes is 'batch'"),
        (("--size", "batch=0"), "step_sizes is 'batch=0'"),
        (("--limit", "lots"), "'lots' is no size"),
        (("--limit", "0"), "step_limit is 0"),
        (("--card", "h1000"), "invalid choice: 'h1000'"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], says: str) -> None:
    done = fuselens("memory", *arguments, EXAMPLE)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
