"""A second editor: Neovim, headless, shows diagnostics, hovers and lenses, and runs a function."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def test_neovim(tmp_path: Path) -> None:
    neovim = shutil.which("nvim")
    if neovim is None:
        message = "the test in Neovim needs it (Debian: apt-get install neovim)"
        if os.environ.get("FUSELENS_E2E") == "required":
            pytest.fail(message)
        pytest.skip(message)
    file, out = tmp_path / "toy.py", tmp_path / "seen.json"
    shutil.copy(ROOT / "examples" / "toy.py", file)
    home = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("CONFIG", "DATA", "STATE")}
    arguments = json.dumps([sys.executable, str(file), str(out)])
    subprocess.run(
        [neovim, "--headless", "--clean", "-n", "-c", f"luafile {HERE / 'neovim.lua'}"],
        env={**os.environ, **home, "FUSELENS_NEOVIM": arguments}, timeout=1700, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    seen = json.loads(out.read_text())
    assert "failure" not in seen, seen["failure"]
    text = (ROOT / "examples" / "toy.py").read_text()
    (broken,) = [d for d in seen["diagnostics"] if d["code"] == "FL101"]
    assert text.splitlines()[broken["line"]][broken["column"] :].startswith("b.sum() < 0")
    assert "f32[" in json.dumps(seen["hover"])
    titles = [lens["command"]["title"] for lens in seen["lenses"] if "command" in lens]
    assert any("1 break" in title for title in titles), titles
    assert {"▶ Run", "C++", "IR"} <= set(titles)
    assert "debug" not in titles, "it has no command for that"
    commands = {lens["command"]["command"] for lens in seen["lenses"] if "command" in lens}
    assert all(command.startswith("fuselens.server.") for command in commands), "those that Neovim can have executed"
    assert seen["kernel"]["file"].endswith(".cpp"), "Neovim opens no addresses of ours, so it was led to a file"
    assert "toy.py:" in seen["kernel"]["line"]
    assert all(d["code"] != "FL101" for d in seen["after"])
    assert seen["run"]["agrees"] is True
    assert "if b.sum()" not in file.read_text()
