"""What the first call of a workload on a GPU takes: ``python -m benchmarks.gpu --cold`` measures each in fresh processes.

*first*: nothing was compiled in the process and caches are empty; *cold*: caches are empty, but the process has compiled a
small function; *warm*: a second process that finds the first one's caches. The clock runs from the call (a backward is part
of a training workload's) until the GPU is done. Importing torch and the system, the GPU's context and its libraries come
before: an eager call of the workload is made first. So does compiling the function without calling it, for which both
systems import most of themselves: it is listed apart.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

from .harness import ROOT

PHASES = ("first", "cold", "warm")
CACHES = ("FUSELENS_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
Times = dict[str, Any]  # "seconds", "compile", and of ours "stages"


def table(names: list[str], systems: list[str], parallel: int, phases: list[str]) -> dict[str, dict[str, Times]]:
    """workload → "system phase" → times, ``parallel`` processes at a time."""
    found: dict[str, dict[str, Times]] = {name: {} for name in names}

    def one(name: str, system: str, phase: str) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            for turn in ("first", "warm") if phase == "warm" else (phase,):
                found[name][f"{system} {turn}"] = _child(name, system, turn, scratch)

    for system in systems:  # whose files the operating system then has in memory
        with tempfile.TemporaryDirectory() as scratch:
            _child(names[0], system, "first", scratch)
    wanted = [p for p in phases if p != "first" or "warm" not in phases]
    with concurrent.futures.ThreadPoolExecutor(parallel) as pool:
        list(pool.map(lambda job: one(*job), [(n, s, p) for p in wanted for s in systems for n in names]))
    return found


def _child(name: str, system: str, phase: str, scratch: str) -> Times:
    environment = {
        **os.environ, **{variable: f"{scratch}/{variable}" for variable in CACHES},
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    done = subprocess.run(
        [sys.executable, "-m", __name__, name, system, phase],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"failed": done.stderr.strip()[-500:]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def show(found: dict[str, dict[str, Times]], systems: list[str], phases: list[str]) -> str:
    """Seconds of each system and phase, and ours as a share of the peer's."""
    both = "own" in systems and "peer" in systems
    columns = [f"{s} {p}" for p in phases for s in systems]
    lines = [f"{'seconds':24}" + "".join(f"{c:>14}" for c in columns) + "".join(f"{p:>8}" for p in phases if both)]
    for name, row in found.items():
        seconds = {c: row[c]["seconds"] for c in columns if "seconds" in row.get(c, {})}
        line = f"{name:24}" + "".join(f"{seconds[c]:14.2f}" if c in seconds else f"{'-':>14}" for c in columns)
        for p in phases if both else ():
            own, peer = seconds.get(f"own {p}"), seconds.get(f"peer {p}")
            line += f"{own / peer:8.2f}" if own and peer else f"{'-':>8}"
        lines.append(line)
        lines += [f"  {c}: {row[c]['failed']}" for c in columns if "failed" in row.get(c, {})]
    lines.append("")
    for name, row in found.items():
        for column, times in row.items():
            if "seconds" in times:
                stages = {"compile()": times["compile"], **times["stages"]}
                texts = [f"{stage} {s:.2f}" for stage, s in stages.items() if s >= 0.005]
                lines.append(f"{name} {column}: {', '.join(texts)}")
    return "\n".join(lines)


def measure(name: str, system: str, phase: str) -> Times:
    """In a process of its own."""
    import torch

    from .gpu_workloads import SYSTEMS, WORKLOADS

    workload, wrap = WORKLOADS[name], SYSTEMS[system]()
    workload.make(lambda fn: fn)()
    torch.cuda.empty_cache()
    if phase == "cold":
        x = torch.ones(1000, device="cuda", requires_grad=True)
        wrap(lambda x: (torch.sin(x) + 1).sum())(x).backward()
    made: list[Any] = []
    compiling = 0.0

    def remembering(fn: Any) -> Any:
        nonlocal compiling
        start = time.perf_counter()
        made.append(wrap(fn))
        compiling += time.perf_counter() - start
        return made[-1]

    call = workload.make(remembering)
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    stages: dict[str, float] = {}
    for report in (a.recorder.report for a in (getattr(m, "__fuselens__", None) for m in made) if a is not None):
        for timing in (t for graph in report.graphs for t in graph.timings):
            stages[timing.stage] = stages.get(timing.stage, 0.0) + timing.seconds
    return {"seconds": seconds, "compile": compiling, "stages": stages}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("system")
    parser.add_argument("phase")
    options = parser.parse_args()
    print(json.dumps(measure(options.name, options.system, options.phase)))


if __name__ == "__main__":
    main()
