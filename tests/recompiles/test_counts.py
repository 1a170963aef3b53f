"""What is foretold equals what a run of the program compiles."""

import json
import os
import subprocess
import sys
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
    """Codes, with whether marks are asked for, and what fixes spare."""
    expected = {
        "lengths": ("FL207", True, "1 compilation in place of 2"),
        "one_row": ("FL207", True, "2 compilations in place of 3"),
        "last_batch": ("FL207", True, "1 compilation in place of 2"),
        "condition_on_sizes": ("FL207", True, "2 compilations in place of 3"),
        "counter": ("FL208", False, "2 compilations in place of 5"),
        "limit": ("FL208", False, ""),
        "one_length": None, "train_and_eval": None, "step_number": None, "flag": None, "marked": None,
        "prompt_and_words": None,
    }  # fmt: skip
    for name, told in expected.items():
        found = [d for report in ask(folder / f"{name}.py").functions for d in report.diagnostics]
        said = [(d.code, d.message.endswith("mark dynamic?"), "".join(f.trial for f in d.fixes)) for d in found]
        assert said == ([told] if told else []), name
