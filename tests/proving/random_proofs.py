"""Random graphs proved. Whatever a proof finds there is a wrong answer of ours, or a false alarm: both are to be mended.

python -m tests.proving.random_proofs --graphs 2000 --seed 0 --jobs 2 [--device cuda]

Graphs are proved in processes of their own, some in each: one that dies is a finding, too, but for calls with which eager ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuselens.record.report import Proof

ROOT = Path(__file__).parents[2]
MOST_STEPS = 12
GRAPHS_PER_PROCESS = 20
SECONDS = 120.0  # for one graph


@dataclass
class Found:
    """What proofs of some graphs said: how often each kind was tried, and what it found, as text."""

    graphs: int = 0
    tried: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)

    def add(self, other: dict[str, Any]) -> None:
        self.graphs += other["graphs"]
        self.tried = dict(Counter(self.tried) + Counter(other["tried"]))
        self.notes = dict(Counter(self.notes) + Counter(other["notes"]))
        self.findings += other["findings"]


def prove(seed: int, number: int, device: str = "cpu", left_out: Sequence[str] = (), *, tells: bool = False) -> Found:
    """Proves one graph in this process. It ``tells`` each step beforehand, as a line of JSON."""
    import torch

    from fuselens.proving.proof import Prover
    from tests.integration import random_graphs

    from .test_kinds import Function

    with torch.device("cpu"):
        program = random_graphs.drawn(Random(f"{seed} {number}"), MOST_STEPS, random_graphs.SIZES)
        given = [v.to(device) if isinstance(v, torch.Tensor) else v for v in program.arguments().values()]
    subject, found = Function(program.function(), tuple(given)), Found(1)

    def known(proof: Proof) -> None:
        if tells and proof.at is not None:
            at = {"inputs": proof.at.inputs, "eager": proof.at.eager}
            print(json.dumps(at), flush=True, file=sys.__stdout__)  # what a proof prints is not heard

    proof = Prover(subject, f"graph{number}", "", known=known, left_out=left_out).proof(SECONDS)
    for tried in proof.tried:
        name = "rows" if "in place of" in tried.inputs else tried.inputs
        found.tried[name] = found.tried.get(name, 0) + 1
        if tried.raises or (tried.agrees and tried.detail):
            note = "both raise" if tried.raises else tried.detail
            found.notes[note] = found.notes.get(note, 0) + 1
    wrong = [f"{t.inputs} ({t.how}): {t.detail}" for t in proof.tried if not t.agrees]
    if wrong:
        found.findings.append("\n".join([f"seed {seed}, graph {number}", *wrong, str(program)]))
    return found


def alone(seed: int, first: int, count: int, device: str, left_out: Sequence[str]) -> None:
    """Proves graphs in this process, the first without the kinds ``left_out``, and prints lines of JSON about each."""
    import torch

    from fuselens import api

    warnings.simplefilter("ignore")
    torch.set_default_device(None if device == "cpu" else device)
    for number in range(first, first + count):
        print(json.dumps({"begins": number}), flush=True)
        found = prove(seed, number, device, left_out if number == first else (), tells=True)
        print(json.dumps(asdict(found)), flush=True)
        api.reset()


def proved(seed: int, first: int, count: int, device: str = "cpu") -> Found:
    """Proves graphs in a process of its own; in another one, what is left when it dies."""
    found, end, left_out = Found(), first + count, list[str]()
    while first < end:
        command = [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "tests.proving.random_proofs",
            "--alone",
            *map(str, (seed, first, end - first)),
            *("--device", device, "--left-out", *left_out),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for one in said:
            if "graphs" in one:
                found.add(one)
        if done.returncode == 0:
            return found
        number = next((one["begins"] for one in reversed(said) if "begins" in one), first)
        at = said[-1] if said and "eager" in said[-1] else {"inputs": "", "eager": False}
        if at["eager"] and at["inputs"] not in left_out:
            found.notes["eager ends the process"] = found.notes.get("eager ends the process", 0) + 1
            first, left_out = number, [*(left_out if number == first else ()), at["inputs"]]
            continue
        why = f"the process ended ({done.returncode}) with {at['inputs']}\n{done.stderr[-3000:]}"
        found.findings.append(f"seed {seed}, graph {number}: {why}")
        first, left_out = number + 1, []
    return found


def report(found: Found, seconds: float) -> Iterator[str]:
    yield from (f"----\n{text}" for text in found.findings)
    yield from (f"{count:8} × {name}" for name, count in Counter(found.tried).most_common())
    yield from (f"{count:8} × {note}" for note, count in Counter(found.notes).most_common(8))
    kinds = sum(found.tried.values())
    yield f"{found.graphs} graphs, {kinds} calls of {len(found.tried)} kinds, {len(found.findings)} findings in {seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first graph (0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--alone", type=int, nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--left-out", nargs="*", default=[], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        alone(*arguments.alone, arguments.device, arguments.left_out)
        return 0
    started, all_found = time.monotonic(), Found()
    end = arguments.first + arguments.graphs
    step = GRAPHS_PER_PROCESS if arguments.device == "cpu" else 4  # kernels for a card take long to compile

    def proofs_from(at: int) -> Found:
        return proved(arguments.seed, at, min(step, end - at), arguments.device)

    with ThreadPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(proofs_from, at) for at in range(arguments.first, end, step)]
        for future in as_completed(futures):
            one = future.result()
            all_found.add(asdict(one))
            for text in one.findings:
                print(f"----\n{text}", flush=True)
            print(
                f"{all_found.graphs} graphs, {len(all_found.findings)} findings, {time.monotonic() - started:.0f} s",
                flush=True,
            )
    all_found.findings, wrong = [], len(all_found.findings)
    print("\n".join(report(all_found, time.monotonic() - started)))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
