"""A folder of training scripts is checked: it stays as it was, the programs say nothing, and each has its graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .programs import HEAD, PROGRAMS

MARK = 'print("the program ran"); os.system("touch ran")\n'


def state(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {p: (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in sorted(folder.rglob("*"))}


def test_a_folder_of_programs(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, (text, _) in PROGRAMS.items():
        (folder / f"{name.replace(' ', '_')}.py").write_text(HEAD + text + MARK)
    home = tmp_path / "home"  # of somebody new: no library has a folder there
    home.mkdir()
    before = state(folder)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fuselens.cli", "check", "--format", "json", "-j", "2", "."],
        cwd=folder, capture_output=True, text=True, timeout=300,
        env=os.environ | {"FUSELENS_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(home)},
    )  # fmt: skip
    assert state(folder) == before
    assert list(home.iterdir()) == []
    assert done.stderr == ""
    assert done.returncode == 0, done.stdout
    files = {Path(f["file"]).stem.replace("_", " "): f for f in json.loads(done.stdout)}
    assert set(files) == set(PROGRAMS)
    for name, (_, expected) in PROGRAMS.items():
        functions = {f["function"]: f for f in files[name]["functions"]}
        assert set(functions) == set(expected)
        for function in functions.values():
            assert len(function["graphs"]) == 1, (name, function["diagnostics"], function["breaks"])
            said = {d["code"]: d["message"] for d in function["diagnostics"]}
            assert "FL921" in said and not said.keys() & {"FL402", "FL404"}, (name, *said.values())
