"""python -m benchmarks.planted: a fault in each stage of the compiler, and what a proof says of a program that it makes wrong.

Each fault is planted in a process of its own, which asks for a proof as the editor and ``fuselens verify`` do.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .faults import FAULTS, Fault


def alone(name: str) -> dict[str, Any]:
    """Plants a fault in this process, and tells what a proof finds."""
    from fuselens.cli import main

    fault = next(f for f in FAULTS if f.name == name)
    folder = Path(tempfile.mkdtemp(prefix="planted"))
    os.environ["FUSELENS_CACHE_DIR"] = str(folder / "cache")
    os.chdir(folder)
    fault.plant()
    program = folder / "program.py"
    if fault.before:
        program.write_text(fault.before)
        _verified(main)
    program.write_text(fault.program)
    started = time.monotonic()
    (proof,) = json.loads(_verified(main))
    return {"proof": proof, "seconds": time.monotonic() - started}


def _verified(main: Any) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["verify", "program.py", "--format", "json", "--output", "out"])
    return out.getvalue()


def line_of(fault: Fault) -> int:
    return next(n for n, text in enumerate(fault.program.splitlines(), start=1) if "# here" in text)


def looked_for(fault: Fault) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.planted", "--alone", fault.name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": done.stderr[-2000:] or done.stdout[-2000:]}
    return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults; all by default")
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(alone(arguments.alone)))
        return 0
    chosen = [f for f in FAULTS if not arguments.names or f.name in arguments.names]
    found = lines = 0
    rows = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for fault, told in zip(chosen, pool.map(looked_for, chosen), strict=True):
            rows[fault.name] = told
            proof = told.get("proof", {})
            finding = proof.get("fault")
            span = (finding or {}).get("span", {})
            right = span.get("line") == line_of(fault)
            found, lines = found + bool(finding), lines + bool(finding and right)
            what = f"{finding['code']} line {span.get('line')}" if finding else told.get("error", "not found")
            wanted = "" if right else f", wanted line {line_of(fault)}"
            print(f"{fault.stage:9} {fault.name:38} {what}{wanted} · {told.get('seconds', 0):.0f} s", flush=True)
    print(f"{found} of {len(chosen)} faults found, {lines} in the right line")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return int(found < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
