"""Processes that share a cache are killed with -9 while they compile: results stay eager's, and no broken entry is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuselens import cli

SCRIPT = Path(__file__).with_name("killed_processes.py")
SEED = os.environ.get("FUSELENS_SWEEP_SEED") or "1"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
@pytest.mark.parametrize(("compilations", "kills"), [(30, 6), pytest.param(500, 100, marks=pytest.mark.sweep)])
def test_killed_processes_leave_no_broken_entry(
    tmp_path: Path, compilations: int, kills: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    command = [sys.executable, SCRIPT, folder, str(compilations), str(kills), SEED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    right, wrong, killed = map(int, done.stdout.split())
    assert wrong == 0, f"{wrong} of {right + wrong} results are wrong"
    assert right >= compilations and killed >= kills
    monkeypatch.setenv("FUSELENS_CACHE_DIR", str(folder))
    assert cli.main(["cache", "verify"]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert " 0 damaged" in said and " 0 files" not in said
    print(f"{right} compilations, {killed} processes killed; {said}")
