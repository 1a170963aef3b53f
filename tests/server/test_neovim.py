"""A second editor: Neovim, headless, with no configuration but the server's command (Debian's 0.7.2 will do)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NEOVIM = os.environ.get("FUSELENS_NEOVIM") or shutil.which("nvim")
SCRIPT = Path(__file__).with_name("neovim.lua")


@pytest.mark.skipif(NEOVIM is None, reason="needs Neovim (Debian: apt-get install neovim)")
def test_neovim_shows_what_became_of_a_file(tmp_path, good, environment_of_servers):
    (tmp_path / "toy.py").write_text(good)
    out = tmp_path / "seen.json"
    environment = {**environment_of_servers, "FUSELENS_OUT": str(out), "FUSELENS_PYTHON": sys.executable}
    environment.update(XDG_CACHE_HOME=str(tmp_path), XDG_STATE_HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path))
    command = [str(NEOVIM), "--headless", "-u", "NONE", "toy.py", "-c", f"luafile {SCRIPT}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert out.exists(), done.stderr
    seen = json.loads(out.read_text())
    assert "problem" not in seen, seen["problem"] + done.stderr
    (broken,) = [d for d in seen["diagnostics"] if d["code"] == "FL101"]
    line = good.split("\n")[broken["line"]]
    assert line[broken["column"] :].startswith("b.sum() < 0")
    assert broken["source"] == "fuselens"
    assert "1 break" in seen["lenses"][0]
    assert {"Open kernel", "Run"} <= set(seen["lenses"])
    assert {command.startswith("fuselens.server.") for command in seen["lens_commands"]} == {True}
    assert "graph 0" in seen["hover"]
    assert "kernel0" in Path(seen["kernel"]).read_text()
    assert seen["kernel_line"].strip()
