"""Runs every check and test, says how long each took, and ends with one line: ``N passed, N failed``.

    run_tests.py [NAME ...]      all of them, or those named (--list shows the names)
    run_tests.py --all           without sampling

Of the tests in Python and in an editor a sample is taken, another one after each commit (``FUSELENS_SWEEP_SEED`` chooses one),
beside what the last commits changed. A step that fails does not keep the later ones from running. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv" / "bin"
EXTENSION = ROOT / "extension"

PART = 0.12  # of the Python tests: all take an hour on two processors
EDITOR_PART = 0.5  # of the files of tests in an editor: all take a quarter of an hour
CHANGED = 4  # commits whose tests run whole
ALWAYS = ("tests/packaging", "tests/torch_names", "tests/diagnostics")  # what must stay true of the tree


@dataclass(frozen=True)
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def check(*command: str | Path, cwd: Path = ROOT) -> Callable[[], Count]:
    """A step that counts as one test. What it says is printed in one piece, since others run beside it."""

    def run() -> Count:
        done = subprocess.run(
            [str(c) for c in command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(done.stdout, end="", flush=True)
        return Count(failed=1) if done.returncode else Count(passed=1)

    return run


def git(*arguments: str) -> str:
    """What git says; "" where there is no repository."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def sample(part: float) -> list[str]:
    """Of the tests that take long by their number the sample of this commit, and what the last commits changed."""
    os.environ.setdefault("FUSELENS_SWEEP_SEED", git("rev-list", "--count", "HEAD").strip() or "0")
    print(f"a sample of {part:.0%}, FUSELENS_SWEEP_SEED={os.environ['FUSELENS_SWEEP_SEED']}", flush=True)
    changed = git("log", f"-{CHANGED}", "--name-only", "--pretty=format:", "--", "tests").split()
    whole = sorted({*ALWAYS, *(name for name in changed if Path(name).name.startswith("test_"))})
    return [f"--sample={part}", *(f"--whole={name}" for name in whole)]


def pytest(*arguments: str, part: float = 1.0) -> Callable[[], Count]:
    """A step that counts what pytest counts; a run that breaks down (or collects nothing) is one failure."""

    def run() -> Count:
        chosen = sample(part) if part < 1 else []
        with tempfile.TemporaryDirectory() as folder:
            junit = Path(folder, "junit.xml")
            command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={junit}", *arguments, *chosen]
            status = subprocess.run(command, cwd=ROOT, env=os.environ | {"FUSELENS_E2E": "required"}).returncode
            count = _junit_count(junit) if junit.is_file() else Count()
        return count if status == 0 or count.failed else count + Count(failed=1)

    return run


def _junit_count(junit: Path) -> Count:
    total = Count()
    for suite in ElementTree.parse(junit).getroot().iter("testsuite"):
        tests, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        total += Count(tests - failed - skipped, failed, skipped)
    return total


def node_tests() -> Count:
    """The extension's unit tests, counted from the runner's summary."""
    done = subprocess.run(["npm", "test", "--silent"], cwd=EXTENSION, stdout=subprocess.PIPE, text=True)
    counts = {name: int(n) for name, n in re.findall(r"^# (pass|fail|skipped) (\d+)$", done.stdout, re.MULTILINE)}
    if done.returncode:
        print(done.stdout)
    failed = counts.get("fail", 0)
    return Count(counts.get("pass", 0), failed or int(done.returncode != 0), counts.get("skipped", 0))


def docs() -> Count:
    """The documentation, built with every warning an error: a link that leads nowhere, a page that is in no menu."""
    with tempfile.TemporaryDirectory() as folder:
        return check(BIN / "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder)()


# Three: tests of the server wait a third of their time. Each takes folders in order, so that what a module shares is made once.
PYTHON_TESTS = ("-n", "3", "--dist", "worksteal", "-m", "not e2e and not sweep")
# Two editors, each with modules of its own. Waits are patient, so what is broken takes long.
EDITOR_TESTS = ("-n", "2", "--dist", "loadfile", "--maxfail=3", "--sample-files", "tests/e2e")
STEPS: dict[str, Callable[[], Count]] = {
    "ruff": check(BIN / "ruff", "check", "--quiet", "."),
    "format": check(BIN / "ruff", "format", "--check", "--quiet", "."),
    "imports": check(BIN / "lint-imports"),
    "pyright": check(BIN / "pyright"),
    "docs": docs,
    "tsc": check("npm", "run", "--silent", "check", cwd=EXTENSION),
    "extension": node_tests,
    "pytest": pytest(*PYTHON_TESTS, part=PART),
    "e2e": pytest(*EDITOR_TESTS, part=EDITOR_PART),
}
TESTS = ("pytest", "e2e")  # which have the machine to themselves


def outcome(name: str) -> tuple[str, Count, float]:
    started = time.monotonic()
    count = STEPS[name]()
    seconds = time.monotonic() - started
    print(f"=== {name}: {count} in {seconds:.1f} s ===\n", flush=True)
    return name, count, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every check and test of the project.")
    parser.add_argument("steps", nargs="*", metavar="NAME", help=", ".join(STEPS))
    parser.add_argument("--list", action="store_true", help="only show the names")
    parser.add_argument("--all", action="store_true", help="every test, not a sample")
    arguments = parser.parse_args()
    if arguments.all:
        STEPS.update(pytest=pytest(*PYTHON_TESTS), e2e=pytest(*EDITOR_TESTS))
    if arguments.list:
        print("\n".join(STEPS))
        return 0
    if unknown := set(arguments.steps) - set(STEPS):
        parser.error(f"no such step: {', '.join(sorted(unknown))} (one of {', '.join(STEPS)})")

    names = arguments.steps or STEPS
    with ThreadPoolExecutor(os.cpu_count()) as beside:
        outcomes = [*beside.map(outcome, [name for name in names if name not in TESTS])]
    outcomes += [outcome(name) for name in names if name in TESTS]
    total = sum((count for _, count, _ in outcomes), Count())

    print("\n=== summary ===")
    for name, count, seconds in outcomes:
        print(f"  {'FAILED' if count.failed else 'ok':<7} {name:<10} {seconds:6.1f} s   {count}")
    print(total, flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
