"""What *What if* predicts of a change, beside what the edited file then gains.

    python -m benchmarks.what_if
    python -m benchmarks.what_if --only contiguous,dynamic --json out.json

Each program of ``programs/`` has a gain that is known: a copy that nobody needs, values kept for a backward that nobody asks for, and so
on. *Predicted* is what ``fuselens what-if`` says of that change in the file as it is. Then the edit is made in a copy of the file, and both
files are measured in processes of their own, whose calls are made in turn, in several rounds of new processes. *Measured* is the median of
the rounds: of the time of a call (with one thread the time of that thread, which other programs do not lengthen), of the memory that a call
holds at most, where freed blocks are given back, or of the first calls of the program into an empty cache. A change that gains nothing on
this machine is not offered, and measured all the same: bfloat16 where the processor has no instructions for it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from fuselens.record import plain
from fuselens.record.report import TriedChange
from fuselens.source import fixes

from ..harness import ROOT

PROGRAMS = Path(__file__).parent / "programs"
KNOWN = {  # program → the kind of the change, and what it gains
    "contiguous": ("contiguous", "time"),
    "clone": ("clone", "time"),
    "autocast": ("autocast", "time"),
    "mode": ("mode", "time"),
    "channels_last": ("channels_last", "time"),
    "no_grad": ("no_grad", "bytes"),
    "checkpoint": ("checkpoint", "bytes"),
    "memory_budget": ("memory_budget", "bytes"),
    "dynamic": ("dynamic", "time"),
    "batch": ("batch", "time"),
}
WITHIN = 0.15
_NOISE = 0.05  # what gains more should have been offered
_PAIRS = 40
_PYTHON = (sys.executable, "-P", "-m", "benchmarks.what_if.runner")


def main() -> int:
    parser = argparse.ArgumentParser(description="Predicted gains beside measured ones.")
    parser.add_argument("--only", default="", help="programs, by name")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of processes for each")
    parser.add_argument("--seconds", type=float, default=120.0, help="processor time for each prediction")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    chosen = [name for name in KNOWN if not options.only or name in options.only.split(",")]
    rows: list[dict[str, Any]] = []
    print(f"{'program':<16}{'change':<46}{'gains':<7}{'predicted':>10}{'measured':>10}{'off by':>8}", flush=True)
    for name in chosen:
        rows.append(row := _row(name, options.rounds, options.seconds))
        print(_text(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))
    good = sum(row.get("within", False) for row in rows)
    print(f"{good} of {len(rows)} within {WITHIN:.0%}, and offered where they gain")
    return int(good < len(rows))


def _row(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    kind, gains = KNOWN[name]
    source = (PROGRAMS / f"{name}.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before" / f"{name}.py"
        after = Path(folder) / "after" / f"{name}.py"
        for path in (before, after):
            path.parent.mkdir()
            path.write_text(source)
        found = _predicted(before, seconds, Path(folder) / "cache")
        tried = [c for c in found if c.kind == kind]
        known = [c for c in tried if (c.time if gains == "time" else c.bytes)]
        change = next((c for c in known if c.offered), known[0] if known else None)
        if change is None:
            whys = [c.why for c in tried]
            return {"program": name, "kind": kind, "gains": gains, "why": "; ".join(whys) or "it was not found"}
        after.write_text(fixes.applied(source, change.edits))
        predicted = change.time if gains == "time" else (change.bytes or 0) / (change.bytes_before or 1)
        pairs = [_measured(before, after, change, gains, Path(folder) / f"cache{k}") for k in range(rounds)]
    measured = statistics.median(pairs)
    off = (predicted or 0) / measured - 1
    rightly = change.offered or measured > 1 - _NOISE
    return {
        "program": name, "kind": kind, "title": change.title, "gains": gains, "predicted": predicted, "measured": measured,
        "rounds": pairs, "off": off, "within": abs(off) <= WITHIN and rightly, "change": plain.to_plain(change),
    }  # fmt: skip


def _predicted(path: Path, seconds: float, cache: Path) -> list[TriedChange]:
    command = [
        sys.executable,
        "-P",
        "-m",
        "fuselens.cli",
        "what-if",
        str(path),
        "--format",
        "json",
        "--seconds",
        f"{seconds:g}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(cache), check=False)
    if not done.stdout:
        raise SystemExit(f"{path.name}: {done.stderr}")
    return [plain.from_plain(TriedChange, one, []) for one in json.loads(done.stdout)[0].get("changes", ())]


def _environment(cache: Path) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "compiler"), str(ROOT / "server")]
    return os.environ | {"OMP_NUM_THREADS": "1", "FUSELENS_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(paths)}


def _measured(before: Path, after: Path, change: TriedChange, gains: str, cache: Path) -> float:
    """What the edited file needs, as a part of what the file as it is needs: of two new processes."""
    once = "first" if change.of == "first calls" else "bytes" if gains == "bytes" else ""
    if once:
        first, second = (_once(once, path, cache / path.parent.name) for path in (before, after))
        return second / first
    rows = 2 if change.of == "batch" else 1
    sides = [_Side(path, cache, rows if path == after else 1) for path in (before, after)]
    try:
        ratios = []
        for number in range(_PAIRS):
            order = (0, 1) if number % 2 == 0 else (1, 0)
            found = {k: sides[k].seconds() for k in order}
            ratios.append(found[1] / rows / found[0])
        return statistics.median(ratios)
    finally:
        for side in sides:
            side.close()


def _once(what: str, path: Path, cache: Path) -> float:
    done = subprocess.run(
        [*_PYTHON, what, str(path)], capture_output=True, text=True, env=_environment(cache), check=True
    )
    return float(done.stdout.split()[-1])


class _Side:
    """A process that calls one file's function when it is asked to."""

    def __init__(self, path: Path, cache: Path, rows: int) -> None:
        self._process = subprocess.Popen(
            [*_PYTHON, "serve", str(path), str(rows)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(cache)
        )  # fmt: skip

    def seconds(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def _text(row: dict[str, Any]) -> str:
    start = f"{row['program']:<16}{row.get('title', row['kind'])[:44]:<46}{row['gains']:<7}"
    if "predicted" not in row:
        return f"{start}not offered: {row['why']}"
    why = row["change"].get("why")
    mark = ("" if abs(row["off"]) <= WITHIN else "  too far") + (f"  not offered: {why}" if why else "")
    return f"{start}{row['predicted']:>10.3f}{row['measured']:>10.3f}{row['off']:>+8.1%}{mark}"


if __name__ == "__main__":
    sys.exit(main())
