"""Eager, the peer and Fuselens on a GPU, in all their modes: each system in a process of its own, in turns.

    python -m benchmarks.gpu [--only softmax,decode] [--systems eager,peer,own] [--rounds 12] [--json out.json]

For each workload a fresh process a system starts, with empty caches. The processes stay, and take turns: what one measures,
the others wait for, so that all see the same clocks and temperatures, and none has another's hooks or caches about it. Two
figures, medians over the turns:

*queued*: milliseconds a call of calls that wait in the card's queue before the first of them begins: what the kernels take.
*one at a time*: from a call until the card has done it, nothing else being under way: what a person waits for a single call.

``GB/s`` counts the bytes that a workload must move at least, *copy* is the share of what a device copy of 1 GiB reaches in the
same run, both of queued calls. *first* is the first call's seconds (and the first backward's), of the default modes and of
``max-autotune``, without imports; ``--cold`` measures first calls with all that comes before (``cold_starts``). ``--only more``
takes ``MORE``: what else measuring chooses kernels for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import cold_starts
from .gpu_workloads import MORE, SYSTEMS, WORKLOADS
from .harness import ROOT

KINDS = ("queued", "single")
TITLES = {"queued": "queued, ms", "single": "one at a time, ms"}
MEASURES_WHILE_COMPILING = ("own", "own_graphs", "own_tuned", "peer_tuned")  # so nothing else may be under way
COPY = "copy"
Row = dict[str, dict[str, float]]  # system → "queued", "single", "first"


class System:
    """A process with one workload under one system."""

    def __init__(self, workload: str, system: str, scratch: str) -> None:
        caches = {variable: f"{scratch}/{system}/{variable}" for variable in cold_starts.CACHES}
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.name = system
        self.errors = Path(scratch, f"{system}.log").open("w+")  # noqa: SIM115  it lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu_process", workload, system],
            env={**os.environ, **caches, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self.errors, text=True,
        )  # fmt: skip

    def answer(self) -> dict[str, Any]:
        """The next line that it says. Raises RuntimeError with its last words where it died."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):  # others print, too
                return json.loads(line)
        self.errors.seek(0)
        raise RuntimeError(self.errors.read().strip()[-500:])

    def ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()


@contextlib.contextmanager
def processes(workload: str, systems: list[str]) -> Iterator[tuple[list[System], dict[str, float]]]:
    """Those of ``systems`` that could be prepared, and the seconds of their first calls. The rest is said on stderr."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(systems)) as pool:
        started = [System(workload, system, scratch) for system in systems]
        first: dict[str, float] = {}

        def attempt(system: System, what: str) -> None:
            try:
                said = system.ask(what) if what else system.answer()
                first[system.name] = said.get("first", float("nan"))
            except (RuntimeError, OSError) as error:
                first.pop(system.name, None)
                print(f"{workload}: {system.name} failed: {error}", file=sys.stderr)

        try:
            list(pool.map(lambda s: attempt(s, ""), started))
            alive = [s for s in started if s.name in first]
            together = [s for s in alive if s.name not in MEASURES_WHILE_COMPILING]
            list(pool.map(lambda s: attempt(s, "prepare"), together))
            for system in alive:
                if system not in together:
                    attempt(system, "prepare")
            yield [s for s in started if s.name in first], first
        finally:
            for system in started:
                system.close()


def measure(workload: str, systems: list[str], rounds: int) -> Row:
    with processes(workload, systems) as (ready, first):
        turns: dict[str, dict[str, list[float]]] = {s.name: {kind: [] for kind in KINDS} for s in ready}
        for _ in range(rounds):
            for kind in KINDS:
                for system in ready:
                    turns[system.name][kind].append(system.ask(kind)["ms"])
        return {
            name: {kind: statistics.median(taken[kind]) for kind in KINDS} | {"first": first[name]}
            for name, taken in turns.items()
        }


def groups(workload: str, systems: list[str], memory: int) -> list[list[str]]:
    """The systems that fit on the card together."""
    size = max(1, memory // (WORKLOADS | MORE)[workload].held)
    return [systems[i : i + size] for i in range(0, len(systems), size)]


def card() -> tuple[str, str, int, float]:
    """Name, torch's version and memory of the card, bytes a second of a copy. No context stays behind."""
    code = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
    memory = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    with tempfile.TemporaryDirectory() as scratch:
        copy = System(COPY, "eager", scratch)
        try:
            known = copy.answer()
            copy.ask("prepare")
            taken = statistics.median(copy.ask("queued")["ms"] for _ in range(5))
        finally:
            copy.close()
    return known["card"], known["torch"], memory, (2 << 30) / taken * 1e3


def best(row: Row, system: str, kind: str) -> float:
    """The least of the modes of ``system``; nan where none ran."""
    return min((r[kind] for s, r in row.items() if s.startswith(system)), default=float("nan"))


def show(table: dict[str, Row], systems: list[str], copy: float) -> str:
    """Milliseconds of each system; the best of ours against the best of the peer's."""
    out = []
    for kind in KINDS:
        queued = kind == "queued"
        out.append(
            f"{TITLES[kind]:24}" + "".join(f"{s:>12}" for s in systems) + f"{'peer/own':>10}"
            + (f"{'GB/s':>7}{'copy':>6}{'first':>9}" if queued else "")
        )  # fmt: skip
        ratios = []
        for name, row in table.items():
            peer, own = best(row, "peer", kind), best(row, "own", kind)
            ratios += [peer / own] if peer / own > 0 else []
            line = f"{name:24}" + "".join(f"{row[s][kind]:12.4f}" if s in row else f"{'-':>12}" for s in systems)
            line += f"{peer / own:10.2f}"
            if queued:
                rate = (WORKLOADS | MORE)[name].bytes / own * 1e3
                line += f"{rate / 1e9:7.0f}{rate / copy:6.2f}" if rate else " " * 13
                modes = ("peer", "own", "peer_tuned", "own_tuned")
                line += "".join(f"{row[s]['first']:8.2f}" for s in modes if s in row)
            out.append(line)
        if ratios:
            out.append(f"geomean of the best modes, peer/own, {TITLES[kind]}: {statistics.geometric_mean(ratios):.3f}")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", default="", help="workloads, comma-separated; default all")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma-separated; default all")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cold", action="store_true", help="first calls of peer and own with all that comes before")
    parser.add_argument("--phases", default=",".join(cold_starts.PHASES), help="with --cold; default all")
    parser.add_argument("--parallel", type=int, default=1, help="processes at a time, with --cold")
    options = parser.parse_args()
    names = list(MORE) if options.only == "more" else options.only.split(",") if options.only else list(WORKLOADS)
    systems = options.systems.split(",")
    name, version, memory, copy = card()
    print(f"{name}, torch {version}: device copy {copy / 1e9:.0f} GB/s", flush=True)
    if options.cold:
        systems = [s for s in systems if s in ("peer", "own")]
        found = cold_starts.table(names, systems, options.parallel, options.phases.split(","))
        print(cold_starts.show(found, systems, options.phases.split(",")))
        if options.json:
            options.json.write_text(json.dumps(found))
        return
    table: dict[str, Row] = {}
    for workload in names:
        table[workload] = {}
        for group in groups(workload, systems, memory):
            table[workload] |= measure(workload, group, options.rounds)
        print("\n".join(show({workload: table[workload]}, systems, copy).splitlines()[1::3]), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"card": name, "torch": version, "copy": copy, "workloads": table}))
    print(show(table, systems, copy))


if __name__ == "__main__":
    main()
