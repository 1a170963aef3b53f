"""Steps of training (forward, backward, optimiser) on the CPU: time, memory, and what tracing them costs.

    python -m benchmarks.training
    python -m benchmarks.training --only gpt2,mlp --threads 1 --rounds 30 --json out.json

*Step* is the time of a whole step, *grad* of forward and backward, *adam* of the optimiser (AdamW): medians of steps that the
systems take in turns, in one process for each number of threads. Freed memory that ours keeps there serves all of them.

*Peak* is the most memory that tensors made during a step take at once, *grad* that of forward and backward with the gradients
that they leave, *saved* what is kept between the two: sums over the allocations and frees of torch's CPU allocator, which the
profiler reports for every system alike. *Resident* is what really became resident: how far a step raises the high-water mark
of the process (``VmHWM``, reset before) above what was resident, with an allocator that gives freed blocks back at once. It
counts vendors' scratch memory too, but no untouched pages. Each system has a process of its own for this.

*Trace* is the processor time of the joint graph and its partition in a warm process: ours of ``joint.trace`` and
``partition.partition``, the peer's of its backend wrapper (metadata, joint graph, partition) around compilers that do nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .harness import ROOT, SYSTEMS, compiled, geomean

_RETURNING = {"MALLOC_MMAP_THRESHOLD_": "16384", "MALLOC_TRIM_THRESHOLD_": "0"}  # glibc: freed blocks leave the process


class Step:
    """A model, its optimiser, and both compiled by one system."""

    def __init__(self, system: str, name: str, keeping: bool = True) -> None:
        import torch

        import fuselens

        from .training_models import MAKERS

        torch.manual_seed(0)
        self.model, self.args = MAKERS[name]()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), 1e-4)
        if system == "fuselens" and not keeping:
            options = {"keep_freed_memory": False}
            self.loss: Any = fuselens.compile(self.model, options=options)
            self.update: Any = fuselens.compile(self.optimiser.step, options=options)
        else:
            self.loss, self.update = compiled(system, self.model), compiled(system, self.optimiser.step)

    def gradients(self) -> None:
        self.loss(*self.args).backward()

    def run(self) -> None:
        self.gradients()
        self.update()
        self.optimiser.zero_grad()


# --- time ---------------------------------------------------------------------------------------------------------


def times(names: list[str], rounds: int) -> dict[str, Any]:
    """workload → system → {"step", "grad", "adam"} in seconds, the systems taking turns."""
    table: dict[str, Any] = {}
    for name in names:
        steps = {s: Step(s, name) for s in SYSTEMS}
        for step in steps.values():
            for _ in range(3):
                step.run()
        samples: dict[str, dict[str, list[float]]] = {s: {"grad": [], "adam": [], "step": []} for s in SYSTEMS}
        for _ in range(rounds):
            for system, step in steps.items():
                start = time.perf_counter()
                step.gradients()
                middle = time.perf_counter()
                step.update()
                end = time.perf_counter()
                step.optimiser.zero_grad()
                for part, seconds in (("grad", middle - start), ("adam", end - middle), ("step", end - start)):
                    samples[system][part].append(seconds)
        table[name] = {
            s: {part: statistics.median(v) for part, v in parts.items()} | {"least": min(parts["step"])}
            for s, parts in samples.items()
        }
    return table


# --- memory -------------------------------------------------------------------------------------------------------


def allocations(run: Callable[[], Any]) -> tuple[int, int]:
    """(most bytes that live at once, bytes that live at the end) of what ``run`` allocates."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = run()
    results: Any = recorded.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    del kept
    return most, live


def _status(field: str) -> int:
    """Bytes that ``/proc/self/status`` gives for a field."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field))
    return 1024 * int(line.split()[1])


def memory(system: str, name: str) -> dict[str, int]:
    step = Step(system, name, keeping=False)
    for _ in range(3):
        step.run()
    risen = []
    for _ in range(3):
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is what is resident now
        before = _status("VmRSS")
        step.run()
        risen.append(_status("VmHWM") - before)
    _, saved = allocations(lambda: step.loss(*step.args))
    grad, _ = allocations(step.gradients)
    step.optimiser.zero_grad()
    peak, _ = allocations(step.run)
    return {"peak": peak, "grad": grad, "saved": saved, "resident": min(risen)}


# --- tracing ------------------------------------------------------------------------------------------------------


def tracing(name: str, rounds: int = 3) -> dict[str, float]:
    """The least processor seconds of both systems' joint graph and partition, over ``rounds`` repetitions."""
    import torch
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    import fuselens
    from fuselens.autograd.joint import trace
    from fuselens.autograd.partition import partition

    from .training_models import MAKERS

    def own(module: Any, _: Any) -> None:
        fakes = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
        partition(trace(module, fakes, grad_enabled=True))

    peer = aot_autograd(
        fw_compiler=lambda module, _: module.forward, partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )  # fmt: skip

    def timed(stages: Callable[[Any, Any], Any], compile_with: Callable[..., Any]) -> float:
        spent = []

        def backend(module: Any, inputs: Any) -> Any:
            for _ in range(rounds + 1):  # the first one warms torch's tables
                start = time.process_time()
                stages(module, inputs)
                spent.append(time.process_time() - start)
            return module.forward

        model, args = MAKERS[name]()
        compile_with(model, backend=backend)(*args)
        if len(spent) != rounds + 1:
            raise RuntimeError(f"{name} is not one graph")
        return min(spent[1:])

    return {"fuselens": timed(own, fuselens.compile), "torch.compile": timed(peer, torch.compile)}


# --- table --------------------------------------------------------------------------------------------------------


def _child(question: str, threads: int, names: list[str], rounds: int, system: str = "", **environment: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.training", "--child", question, "--threads", str(threads)]
    command += ["--only", ",".join(names), "--rounds", str(rounds), "--system", system]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    everything = {**os.environ, **environment, "PYTHONPATH": path}
    done = subprocess.run(command, env=everything, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{question} {' '.join(names)} {system} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(question: str, names: list[str], rounds: int, system: str) -> Any:
    if question == "times":
        return times(names, rounds)
    if question == "memory":
        return memory(system, names[0])
    return {name: tracing(name) for name in names}


def measure(names: list[str], threads: list[int], rounds: int, parts: set[str]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    if "time" in parts:
        table["time"] = {n: _child("times", n, names, rounds) for n in threads}
    if "memory" in parts:
        table["memory"] = {
            n: {s: _child("memory", threads[0], [n], 0, s, **_RETURNING) for s in SYSTEMS} for n in names
        }
    if "trace" in parts:
        table["trace"] = _child("trace", threads[0], names, 0)
    return table


def show(table: dict[str, Any]) -> str:
    lines: list[str] = []
    eager, peer, own = SYSTEMS
    for threads, rows in table.get("time", {}).items():
        lines.append(
            f"{f'{threads} threads, ms':16}" + "".join(f"{p + ' ' + s:>12}" for p in ("step", "grad", "adam") for s in _SHORT)
            + f"{'peer/own':>10}{'eager/own':>10}{'least p/o':>10}"
        )  # fmt: skip
        for name, row in rows.items():
            cells = "".join(f"{1e3 * row[s][p]:12.2f}" for p in ("step", "grad", "adam") for s in SYSTEMS)
            ratios = [row[s]["step"] / row[own]["step"] for s in (peer, eager)]
            ratios.append(row[peer]["least"] / row[own]["least"])
            lines.append(f"{name:16}{cells}" + "".join(f"{r:10.2f}" for r in ratios))
        speed = [row[peer]["step"] / row[own]["step"] for row in rows.values()]
        lines.append(f"geomean peer/own: {geomean(speed):.2f}")
    if "memory" in table:
        lines.append(
            f"{'memory, MiB':16}" + "".join(f"{p + ' ' + s:>15}" for p in _MEMORY for s in _SHORT)
            + "".join(f"{p + ' o/p':>14}" for p in _MEMORY)
        )  # fmt: skip
        for name, row in table["memory"].items():
            cells = "".join(f"{row[s][p] / 2**20:15.2f}" for p in _MEMORY for s in SYSTEMS)
            ratios = [row[own][p] / max(1, row[peer][p]) for p in _MEMORY]
            lines.append(f"{name:16}{cells}" + "".join(f"{r:14.2f}" for r in ratios))
    if "trace" in table:
        lines.append(f"{'trace, ms':16}{'peer':>12}{'own':>12}{'own/peer':>10}")
        for name, row in table["trace"].items():
            lines.append(f"{name:16}{1e3 * row[peer]:12.0f}{1e3 * row[own]:12.0f}{row[own] / row[peer]:10.3f}")
    return "\n".join(lines)


_SHORT = ("eager", "peer", "own")
_MEMORY = ("peak", "grad", "saved", "resident")


def main() -> None:
    from .training_models import MAKERS

    parser = argparse.ArgumentParser(prog="python -m benchmarks.training", description=__doc__)
    parser.add_argument("--only", default="", help="workloads, comma-separated; default all")
    parser.add_argument("--parts", default="time,memory,trace")
    parser.add_argument("--threads", default="1,2", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", default="")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--system", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [n for n in options.only.split(",") if n] or list(MAKERS)
    threads = [int(n) for n in options.threads.split(",")]
    if unknown := [n for n in names if n not in MAKERS]:
        parser.error(f"unknown workload {unknown[0]!r}; known are {', '.join(MAKERS)}")
    if options.child:
        import torch

        torch.set_num_threads(threads[0])
        print(json.dumps(answer(options.child, names, options.rounds, options.system)))
        return
    table = measure(names, threads, options.rounds, set(options.parts.split(",")))
    print(show(table))
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
