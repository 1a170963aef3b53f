"""``fuselens doctor`` on a machine that works, and on ones that do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def doctor(tmp_path: Path, **environment: str) -> tuple[int, dict[str, tuple[str, str]]]:
    environment = {"FUSELENS_CACHE_DIR": str(tmp_path / "cache")} | environment
    done = subprocess.run(
        [sys.executable, "-P", "-m", "fuselens.cli", "doctor"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, tuple[str, str]] = {}
    name = ""
    for line in done.stdout.splitlines()[:-1]:
        if line.startswith(" "):
            found[name] = found[name][0], found[name][1] + "\n" + line.strip()
        else:
            state, name, detail = line.split(None, 2)
            found[name] = state, detail
    return done.returncode, found


def test_a_machine_that_works(tmp_path: Path) -> None:
    status, found = doctor(tmp_path)
    assert status == 0
    assert list(found) == [
        "python",
        "torch",
        "extensions",
        "compiler",
        "cpu",
        "triton",
        "gpu",
        "cache",
        "sandbox",
        "server",
        "compilation",
    ]
    assert {state for state, _ in found.values()} <= {"ok", "missing"}
    for name in ("python", "torch", "extensions", "compiler", "cache", "compilation"):
        assert found[name][0] == "ok", found[name]
    assert str(tmp_path / "cache") in found["cache"][1]
    assert "1 graph" in found["compilation"][1]


REFUSES = "#!/bin/sh\ncase $* in *--version*) echo g++ 9;; *) echo 'error: no cc1plus' >&2; exit 1;; esac\n"


@pytest.mark.parametrize(
    ("program", "said"), [(None, "looked for"), ("#!/bin/sh\necho g++ 9\n", ""), (REFUSES, "no cc1plus")]
)
def test_a_compiler_that_does_not_work(tmp_path: Path, program: str | None, said: str) -> None:
    path = tmp_path / "c++"
    if program is not None:
        path.write_text(program)
        path.chmod(0o755)
    status, found = doctor(tmp_path, CXX=str(path))
    assert status == 1
    state, detail = found["compiler"]
    assert state == "broken" and "CXX" in detail
    assert said in detail
    assert found["compilation"][0] == "broken"


def test_a_cache_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, found = doctor(tmp_path, FUSELENS_CACHE_DIR=str(tmp_path / "file"))
    assert status == 1
    assert found["cache"][0] == "broken" and "FUSELENS_CACHE_DIR" in found["cache"][1]
