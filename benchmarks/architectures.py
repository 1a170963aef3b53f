"""Which transformers architectures are captured whole, forward and training, beside the peer, as a markdown table.

    python -m benchmarks.architectures [NAME ...] [--timeout 300] [--json out.json]

Each cell is a process of its own. A cell shows the processor seconds of the first call above eager's (those of C++ compilers
left out) when every call agreed with eager, and otherwise why it did not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {  # heading: (system, backend, training)
    "peer, forward": ("torch.compile", "eager", False),
    "forward": ("fuselens", "eager", False),
    "peer, training": ("torch.compile", "eager", True),
    "training": ("fuselens", "eager", True),
    "kernels, forward": ("fuselens", "fuselens", False),
    "kernels, training": ("fuselens", "fuselens", True),
}


def measured(name: str, heading: str, timeout: float) -> dict[str, Any]:
    """What :func:`child` finds, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.architectures", "--child", heading, name]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"problem": f"more than {timeout:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"problem": f"exit status {done.returncode}: {done.stderr[-300:]}"}
    return json.loads(lines[-1])


def child(name: str, heading: str) -> None:
    """One cell, printed as JSON."""
    from tests.models import runner

    warnings.simplefilter("ignore")
    system, backend, training = COLUMNS[heading]
    compile_ = runner.own(backend)
    if system == "torch.compile":
        import torch

        compile_ = lambda model: torch.compile(model, backend=backend, fullgraph=True)  # noqa: E731
    outcome = runner.measure(name, compile_, training=training, exact=False)
    print(json.dumps(dataclasses.asdict(outcome)))


def shown(cell: dict[str, Any]) -> str:
    problem = cell["problem"]
    if not problem:
        return f"{cell['seconds']:.2f}" + (f" ({len(cell['fallbacks'])} fall back)" if cell["fallbacks"] else "")
    return "no: " + problem.splitlines()[0].replace("|", "/")[:80]


def main() -> None:
    from tests.models.architectures import ARCHITECTURES

    parser = argparse.ArgumentParser(prog="python -m benchmarks.architectures", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(ARCHITECTURES))
    parser.add_argument("--columns", default=",".join(COLUMNS).replace(", ", " "), help="headings without their comma")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--json", type=Path, help="what was found, also read to leave out what it has already")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.names[0], arguments.child)
        return
    headings = [h for h in COLUMNS if h.replace(",", "") in arguments.columns.split(",")]
    found: dict[str, dict[str, Any]] = {}
    if arguments.json and arguments.json.exists():
        found = json.loads(arguments.json.read_text())
    print("|".join(["", " architecture ", *(f" {h} " for h in headings), ""]))
    print("|".join(["", " --- ", *(" ---: " for _ in headings), ""]))
    for name in arguments.names:
        row = found.setdefault(name, {})
        for heading in headings:
            if heading not in row:
                row[heading] = measured(name, heading, arguments.timeout)
        print("|".join(["", f" {name} ", *(f" {shown(row[h])} " for h in headings), ""]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))
    count = [f" {sum(not found[n][h]['problem'] for n in arguments.names)} " for h in headings]
    print("|".join(["", f" captured, of {len(arguments.names)} ", *count, ""]))


if __name__ == "__main__":
    main()
