"""Eager, the peer and Fuselens side by side, interleaved in one run, medians.

    python -m benchmarks                 # everything, as one table
    python -m benchmarks --only toy,mlp_train --rounds 40
    python -m benchmarks --json out.json

Cold and warm starts run in processes of their own, with caches of their own: *cold* is the first call in a process that
has compiled something else before (caches empty), *first* the very first compilation, *warm* the first call of a second
process that finds the caches full. All three are processor seconds, children included, torch already imported.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SYSTEMS = ("eager", "torch.compile", "fuselens")
ROOT = Path(__file__).resolve().parent.parent


def processor_seconds() -> float:
    """Processor time of this process and the children that it waited for."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def compiled(system: str, fn: Any, mode: str | None = None) -> Any:
    import torch

    if system == "eager":
        return fn
    if system == "torch.compile":
        return torch.compile(fn, mode=mode) if mode else torch.compile(fn)
    import fuselens

    return fuselens.compile(fn, mode=mode) if mode else fuselens.compile(fn)


# --- starts -------------------------------------------------------------------------------------------------------


def start_times(names: list[str], device: str, rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """system → workload → {"cold", "warm", "first"} in processor seconds: medians over ``rounds`` pairs of processes."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for _ in range(rounds):
        for system in SYSTEMS[1:]:
            with tempfile.TemporaryDirectory() as scratch:
                for phase in ("cold", "warm"):
                    for name, seconds in _child(system, names, device, scratch).items():
                        key = "first" if name == "__first__" and phase == "cold" else phase
                        found.setdefault(system, {}).setdefault(name, {}).setdefault(key, []).append(seconds)
    return {
        s: {n: {p: statistics.median(v) for p, v in phases.items()} for n, phases in table.items()}
        for s, table in found.items()
    }


def _child(system: str, names: list[str], device: str, scratch: str) -> dict[str, float]:
    environment = {
        **os.environ, "TMPDIR": scratch, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/peer", "FUSELENS_CACHE_DIR": f"{scratch}/own",
        "TRITON_CACHE_DIR": f"{scratch}/triton", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "benchmarks.harness",
        "--child",
        system,
        "--device",
        device,
        "--only",
        ",".join(names),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{system} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def child(system: str, names: list[str], device: str) -> None:
    """Compiles each workload once in this process and prints the seconds that each first call took."""
    import torch

    from .workloads import WORKLOADS, step

    times: dict[str, float] = {}
    start = processor_seconds()
    compiled(system, lambda x: x.sin() + 1)(torch.ones(8, device=device))
    times["__first__"] = processor_seconds() - start
    for name in names:
        work = WORKLOADS[name]
        fn, args = work.make(device)
        start = processor_seconds()
        step(compiled(system, fn), args, work.training)
        times[name] = processor_seconds() - start
    print(json.dumps(times))


# --- steady state -------------------------------------------------------------------------------------------------


def steady_times(names: list[str], device: str, rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """workload → system → median seconds per call, the systems taking turns."""
    import torch

    from .workloads import WORKLOADS, step

    torch.set_num_threads(threads)
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    table: dict[str, dict[str, float]] = {}
    for name in names:
        work = WORKLOADS[name]
        fn, args = work.make(device)
        calls = {s: compiled(s, fn) for s in SYSTEMS}
        for call in calls.values():
            for _ in range(3):
                step(call, args, work.training)
        synchronize()
        start = time.perf_counter()
        step(fn, args, work.training)
        synchronize()
        batch = max(1, int(2e-3 / max(1e-7, time.perf_counter() - start)))
        samples: dict[str, list[float]] = {s: [] for s in SYSTEMS}
        for _ in range(rounds):
            for system, call in calls.items():
                synchronize()
                start = time.perf_counter()
                for _ in range(batch):
                    step(call, args, work.training)
                synchronize()
                samples[system].append((time.perf_counter() - start) / batch)
        table[name] = {s: statistics.median(v) for s, v in samples.items()}
    return table


# --- table --------------------------------------------------------------------------------------------------------


def show(steady: dict[str, dict[str, float]], starts: dict[str, dict[str, dict[str, float]]], names: list[str]) -> str:
    header = (
        f"{'workload':22}{'eager µs':>11}{'peer µs':>11}{'own µs':>11}{'peer/own':>10}{'eager/own':>10}"
        f"{'cold peer':>11}{'cold own':>10}{'ratio':>8}{'warm peer':>11}{'warm own':>10}"
    )
    lines = [header, "-" * len(header)]
    for name in names:
        s = steady.get(name)
        peer, own = (starts.get(x, {}).get(name, {}) for x in SYSTEMS[1:])
        row = f"{name:22}"
        if s:
            e, p, o = (s[x] * 1e6 for x in SYSTEMS)
            row += f"{e:11.2f}{p:11.2f}{o:11.2f}{p / o:10.2f}{e / o:10.2f}"
        else:
            row += " " * 53
        if peer and own:
            row += f"{peer['cold']:11.3f}{own['cold']:10.3f}{own['cold'] / peer['cold']:8.3f}{peer['warm']:11.3f}{own['warm']:10.3f}"
        lines.append(row)
    if steady:
        lines.append(f"geomean peer/own: {geomean([s['torch.compile'] / s['fuselens'] for s in steady.values()]):.2f}")
    for system, table in starts.items():
        if "__first__" in table:
            lines.append(f"first compilation ever, {system}: {table['__first__']['first']:.2f} s of processor time")
    return "\n".join(lines)


def geomean(values: list[float]) -> float:
    return statistics.geometric_mean(values) if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", help="workloads, comma-separated; default all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--start-rounds", type=int, default=1, help="pairs of processes for cold and warm starts; 0: none"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", default="")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    from .workloads import WORKLOADS

    names = [n for n in options.only.split(",") if n] or list(WORKLOADS)
    unknown = [n for n in names if n not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}; known are {', '.join(WORKLOADS)}")
    if options.child:
        child(options.child, names, options.device)
        return
    starts = start_times(names, options.device, options.start_rounds) if options.start_rounds else {}
    steady = steady_times(names, options.device, options.rounds, options.threads) if options.rounds else {}
    print(show(steady, starts, names))
    if options.json:
        Path(options.json).write_text(json.dumps({"steady": steady, "starts": starts}, indent=1))


if __name__ == "__main__":
    main()
