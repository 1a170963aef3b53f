"""Runs the Python tests on every supported torch, each in an environment of its own, and prints one table.

    versions.py [COLUMN ...]      all of them, or those named, such as 2.11 2.15 3.14

The oldest and the newest torch, and the development pin, run whole; those between, and the newest Python, a sample that
FUSELENS_SWEEP_SEED seeds. Each torch comes with the Triton that it asks for. A column that fails hides no other, and one
whose Python is not on this machine is left out. Environments are made under .cache/versions, and kept. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".cache" / "versions"
PROBE = "import sys; print(sys.executable)"
VERSIONS = "import importlib.metadata as m; print(m.version('torch'), m.version('triton'))"


@dataclass(frozen=True)
class Column:
    """A row of the table: what is installed, and the part of the tests that runs."""

    name: str
    python: str
    constraints: str
    part: float = 1.0


COLUMNS = (
    Column("2.11", "3.12", "torch-2.11.txt"),
    Column("2.12", "3.11", "torch-2.12.txt", 0.1),
    Column("2.13", "3.13", "dev.txt", 0.1),  # whole on 3.11 by `make test`
    Column("2.14", "3.12", "torch-2.14.txt", 0.1),
    Column("2.15", "3.13", "torch-2.15.txt"),
    Column("3.14", "3.14", "torch-2.15.txt", 0.1),
)


@dataclass
class Outcome:
    """How a column went."""

    column: Column
    versions: str = "-"
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    said: str = ""

    def __str__(self) -> str:
        torch, _, triton = self.versions.partition(" ")
        part = "whole" if self.column.part == 1 else f"{self.column.part:.0%}"
        return (
            f"{self.column.name:7}{self.column.python:8}{torch:16}{triton or '-':9}{part:7}{self.passed:>7}{self.failed:>8}"
            f"{self.skipped:>9}{self.seconds:>8.0f}  {self.said}"
        )


HEADER = f"{'':7}{'Python':8}{'torch':16}{'Triton':9}{'tests':7}{'passed':>7}{'failed':>8}{'skipped':>9}{'seconds':>8}"


def interpreter(version: str) -> str | None:
    """The path of CPython ``version``, wherever it was installed from; None where it is not on this machine."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    if uv := shutil.which("uv"):
        candidates.append(
            subprocess.run([uv, "python", "find", version], capture_output=True, text=True).stdout.strip()
        )
    for candidate in filter(None, candidates):
        found = subprocess.run([candidate, "-c", PROBE], capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.strip()
    return None


def run(column: Column) -> Outcome:
    """Makes the environment of a column and runs its tests there."""
    outcome = Outcome(column)
    python = interpreter(column.python)
    if python is None:
        outcome.said = "this Python is not on this machine: left out"
        return outcome
    folder = ENVIRONMENTS / f"{column.name}-python-{column.python}"
    started = time.monotonic()
    made = subprocess.run(
        [ROOT / "scripts/environment.sh", folder, f"constraints/{column.constraints}"],
        env={**os.environ, "FUSELENS_PYTHON": python}, cwd=ROOT,
    )  # fmt: skip
    if made.returncode:
        outcome.failed, outcome.said = 1, "the environment could not be made"
        return outcome
    inside = str(folder / "bin" / "python")
    outcome.versions = subprocess.run([inside, "-c", VERSIONS], capture_output=True, text=True).stdout.strip()
    report = folder / "junit.xml"
    report.unlink(missing_ok=True)
    status = subprocess.run(
        [
            inside, "-m", "pytest", "-q", "-n", "2", "-m", "not e2e and not sweep", f"--sample={column.part}",
            f"--junitxml={report}",
        ], cwd=ROOT,
    ).returncode  # fmt: skip
    for suite in ElementTree.parse(report).getroot().iter("testsuite") if report.is_file() else ():
        failed, skipped = (int(suite.get("failures", 0)) + int(suite.get("errors", 0)), int(suite.get("skipped", 0)))
        outcome.failed, outcome.skipped = outcome.failed + failed, outcome.skipped + skipped
        outcome.passed += int(suite.get("tests", 0)) - failed - skipped
    if status and not outcome.failed:
        outcome.failed, outcome.said = 1, f"pytest ended with status {status}"
    outcome.seconds = time.monotonic() - started
    return outcome


def main(names: list[str]) -> int:
    known = {column.name: column for column in COLUMNS}
    if unknown := set(names) - set(known):
        print(f"no such column: {', '.join(sorted(unknown))} (one of {', '.join(known)})", file=sys.stderr)
        return 2
    outcomes = []
    for name in names or known:
        outcomes.append(run(known[name]))
        print(f"\n{HEADER}\n{outcomes[-1]}", flush=True)
    print("\n" + "\n".join([HEADER, *map(str, outcomes)]))
    print(f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed")
    return int(any(o.failed for o in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
