"""What is foretold equals what a run of the program compiles."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from .programs import PROGRAMS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("programs")
    for name, text in PROGRAMS.items():
        (made / f"{name}.py").write_text(text)
    return made


@pytest.fixture(scope="module")
def real(folder, tmp_path_factory):
    """How often a run of each program compiles each function: of this process nothing, and nothing of earlier runs."""
    environment = os.environ | {"FUSELENS_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "FUSELENS_KEEP_SIZES": "0"}
    runner = Path(__file__).parent / "real_counts.py"
    done = subprocess.run([sys.executable, str(runner), str(folder)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_compiles_what_is_foretold(name, folder, real, ask):
    file = ask(folder / f"{name}.py")
    assert not file.diagnostics
    told = {r.function: r.foreseen for r in file.functions if r.foreseen is not None}
    counted = sum(t.compilations or 0 for t in told.values())
    assert counted == sum(real[name].values()), told
    assert all(t.certain for t in told.values()), told


def test_findings(folder, ask):
    codes = {name: Counter(d.code for r in ask(folder / f"{name}.py").functions for d in r.diagnostics) for name in (
        "lengths", "one_length", "last_batch", "train_and_eval", "counter", "step_number", "flag", "marked", "limit",
    )}  # fmt: skip
    assert codes == {
        "lengths": {"FL207": 1}, "one_length": {}, "last_batch": {"FL207": 1}, "train_and_eval": {}, "counter": {"FL208": 1},
        "step_number": {}, "flag": {}, "marked": {}, "limit": {"FL208": 1},
    }  # fmt: skip
