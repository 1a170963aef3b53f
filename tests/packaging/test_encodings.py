"""Text is never read or written in the encoding of whatever locale a user has."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = [ROOT / "compiler", ROOT / "server", ROOT / "scripts", ROOT / "hatch_build.py"]


def test_files_have_an_encoding() -> None:
    ruff = Path(sys.executable).with_name("ruff")
    command = [ruff, "check", "--no-cache", "--preview", "--select", "PLW1514", "--output-format", "concise", *CODE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pipes_have_an_encoding() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for place in CODE[:2]
        for file in place.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(call, ast.Call)
        and {"text", "universal_newlines"} & {k.arg for k in call.keywords}
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "subprocess"
    ]
    assert found == [], "give `encoding` and `errors`"
