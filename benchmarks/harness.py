"""Eager, the peer and Fuselens side by side, interleaved in one run, medians.

    python -m benchmarks                 # everything, as one table
    python -m benchmarks --only toy,mlp_train --rounds 40
    python -m benchmarks --only softmax_cache,softmax_big --threads 1 --start-rounds 0 --minimum
    python -m benchmarks --jobs 8 --threads 2 --json out.json      # workloads in processes of their own, 8 at a time

Bandwidths count the bytes that a workload must move at least; *triad* is the share of what a loop ``a = b + 3 * c`` over as
many bytes reaches, which takes its turns with the systems.

Cold and warm starts run in processes of their own, with caches of their own: *cold* is the first call in a process that
has compiled something else before (caches empty), *first* the very first compilation, *warm* the first call of a second
process that finds the caches full. All three are processor seconds, children included, torch already imported.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import os
import queue
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


def steady_times(
    names: list[str], device: str, rounds: int, threads: int, seconds: float, minimum: bool
) -> dict[str, dict[str, float]]:
    """workload → system → median (or least) seconds per call, the systems, and a triad of as many bytes, taking turns.

    A workload has ``rounds`` turns, fewer if they take longer than ``seconds``, but at least five.
    """
    import torch

    from .bandwidth import loop
    from .workloads import WORKLOADS, step

    torch.set_num_threads(threads)
    synchronize = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    summary = min if minimum else statistics.median
    table: dict[str, dict[str, float]] = {}
    for name in names:
        work = WORKLOADS[name]
        fn, args = work.make(device)
        scale = 1.0
        calls: dict[str, Any] = {s: functools.partial(step, compiled(s, fn), args, work.training) for s in SYSTEMS}
        if work.bytes and device == "cpu":
            calls["triad"], touched = loop("triad", work.bytes)
            scale = work.bytes / touched
        batches: dict[str, int] = {}
        for system, call in calls.items():
            for _ in range(3):
                call()
            synchronize()
            start = time.perf_counter()
            call()
            synchronize()
            batches[system] = max(1, int(2e-3 / max(1e-7, time.perf_counter() - start)))
        samples: dict[str, list[float]] = {s: [] for s in calls}
        begin = time.perf_counter()
        for turn in range(rounds):
            if turn >= 5 and time.perf_counter() - begin > seconds:
                break
            for system, call in calls.items():
                synchronize()
                start = time.perf_counter()
                for _ in range(batches[system]):
                    call()
                synchronize()
                samples[system].append((time.perf_counter() - start) / batches[system])
        table[name] = {s: summary(v) for s, v in samples.items()}
        if work.bytes:
            table[name]["bytes"] = float(work.bytes)
        if "triad" in calls:
            table[name]["triad"] *= scale
    return table


def steady_in_processes(names: list[str], jobs: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """As :func:`steady_times`, each workload in a process of its own on processors of its own, ``jobs`` at a time."""
    processors = sorted(os.sched_getaffinity(0))
    free: queue.SimpleQueue[set[int]] = queue.SimpleQueue()
    for k in range(jobs):
        free.put({processors[(k * options.threads + t) % len(processors)] for t in range(options.threads)})

    def one(name: str) -> dict[str, dict[str, float]]:
        mine = free.get()
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [
                "taskset", "--cpu-list", ",".join(map(str, sorted(mine))), sys.executable, "-m", "benchmarks",
                "--only", name, "--start-rounds", "0", "--rounds", str(options.rounds), "--device", options.device,
                "--threads", str(options.threads), "--seconds", str(options.seconds), "--json", out.name,
                *(["--minimum"] if options.minimum else []),
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            free.put(mine)
            if done.returncode:
                print(f"{name} failed:\n{done.stderr[-1500:]}", file=sys.stderr)
                return {}
            found = json.loads(Path(out.name).read_text())["steady"]
            print(show(found, {}, [name]).splitlines()[2], file=sys.stderr, flush=True)
            return found

    table: dict[str, dict[str, float]] = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(one, names):
            table |= found
    return table


# --- table --------------------------------------------------------------------------------------------------------


def show(steady: dict[str, dict[str, float]], starts: dict[str, dict[str, dict[str, float]]], names: list[str]) -> str:
    header = (
        f"{'workload':26}{'eager µs':>12}{'peer µs':>12}{'own µs':>12}{'peer/own':>10}{'eager/own':>10}"
        f"{'GB/s':>7}{'triad':>7}{'cold peer':>11}{'cold own':>10}{'ratio':>8}{'warm peer':>11}{'warm own':>10}"
    )
    lines = [header, "-" * len(header)]
    for name in names:
        s = steady.get(name)
        peer, own = (starts.get(x, {}).get(name, {}) for x in SYSTEMS[1:])
        row = f"{name:26}"
        if s:
            e, p, o = (s[x] * 1e6 for x in SYSTEMS)
            row += f"{e:12.2f}{p:12.2f}{o:12.2f}{p / o:10.2f}{e / o:10.2f}"
            row += f"{s['bytes'] / s['fuselens'] / 1e9:7.1f}" if "bytes" in s else " " * 7
            row += f"{s['triad'] / s['fuselens']:7.2f}" if "triad" in s else " " * 7
        else:
            row += " " * 70
        if peer and own:
            row += f"{peer['cold']:11.3f}{own['cold']:10.3f}{own['cold'] / peer['cold']:8.3f}{peer['warm']:11.3f}{own['warm']:10.3f}"
        lines.append(row.rstrip())
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
    parser.add_argument("--seconds", type=float, default=20.0, help="of steady state per workload, at most")
    parser.add_argument("--minimum", action="store_true", help="the least time, not the median: on a loaded machine")
    parser.add_argument(
        "--jobs", type=int, default=0, help="run workloads in processes of their own, so many at a time"
    )
    parser.add_argument("--json", default="")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    from .bandwidth import show as show_rates
    from .workloads import WORKLOADS

    names = [n for n in options.only.split(",") if n] or list(WORKLOADS)
    unknown = [n for n in names if n not in WORKLOADS]
    if unknown:
        parser.error(f"unknown workload {unknown[0]!r}; known are {', '.join(WORKLOADS)}")
    if options.child:
        child(options.child, names, options.device)
        return
    starts = start_times(names, options.device, options.start_rounds) if options.start_rounds else {}
    steady: dict[str, dict[str, float]] = {}
    if options.rounds and options.jobs:
        steady = steady_in_processes(names, options.jobs, options)
    elif options.rounds:
        steady = steady_times(names, options.device, options.rounds, options.threads, options.seconds, options.minimum)
    if steady and options.device == "cpu":
        print(show_rates(options.threads))
    print(show(steady, starts, names))
    if options.json:
        Path(options.json).write_text(json.dumps({"steady": steady, "starts": starts}, indent=1))


if __name__ == "__main__":
    main()
