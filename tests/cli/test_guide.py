"""Guides run: their programs are written, their commands are called, and what these print is what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(console: str) -> list[tuple[str, list[str]]]:
    """Commands with the lines that they print."""
    found: list[tuple[str, list[str]]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def pattern(lines: list[str]) -> str:
    """A line of only … stands for any lines, … inside of a line for any characters of it."""
    return "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in lines
    )


@pytest.mark.parametrize(
    ("guide", "least"), [("debugging", 15), ("migrating", 1), ("distributed", 2), ("revisions", 3)]
)
def test_a_guide(guide: str, least: int, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FUSELENS_", "OMP_"))}
    environment["FUSELENS_CACHE_DIR"] = str(tmp_path / "cache")
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment |= {"GIT_AUTHOR_NAME": "Ann", "GIT_AUTHOR_EMAIL": "ann@example.com", "GIT_CONFIG_GLOBAL": os.devnull}
    environment |= {"GIT_COMMITTER_NAME": "Ann", "GIT_COMMITTER_EMAIL": "ann@example.com"}
    commands = 0
    for kind, text in _BLOCK.findall((GUIDES / f"{guide}.md").read_text()):
        if kind == "python":
            name, _, program = text.partition("\n")
            if not name.startswith("# "):
                continue  # part of a program
            (tmp_path / name.removeprefix("# ")).write_text(program)
            continue
        for command, expected in steps(text):
            done = subprocess.run(
                ["bash", "-c", f"{{ {command}; }} 2>&1"],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert re.fullmatch(pattern(expected), done.stdout), f"$ {command}\n{done.stdout}\nis not\n" + "\n".join(
                expected
            )
            commands += 1
    assert commands >= least
