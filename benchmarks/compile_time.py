"""How long compiling takes, in processor seconds (children included, torch already imported), beside the peer.

    python -m benchmarks.compile_time                      # the suite: first, cold and warm, and ours by stage
    python -m benchmarks.compile_time --growth             # seconds against the number of operations
    python -m benchmarks.compile_time --growth --plot growth.png

*first* is the first compilation ever, in a process and with caches of its own; *cold* the same in a process that has
compiled other graphs; *warm* a second process that finds the caches full. Each is the least of ``--rounds`` processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .harness import ROOT, SYSTEMS, compiled, processor_seconds

PEER, OWN = SYSTEMS[1:]
STAGES = ("capture", "joint", "partition", "simplify", "lower", "fuse", "order", "generate", "build")
SIZES = (100, 1_000, 10_000)
KINDS = ("pointwise", "mixed")
PEERS_LARGEST = 1_000  # beyond, the peer takes minutes


def workloads() -> dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], bool]]:
    """name → (function and inputs, whether a backward follows)."""
    import torch
    from torch import nn

    from .suite import Block, FeedForward, chain, randn

    def softmax_gelu(x: Any, r: Any) -> Any:
        return torch.softmax(nn.functional.gelu(x) + torch.tanh(r), -1)

    def module(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Any]:
        return lambda: (make(), (randn(*shape),))

    return {
        "x + 1": (lambda: ((lambda x: x + 1), (randn(8),)), False),
        "pointwise chain": (lambda: (chain, (randn(256, 1024), randn(256, 1024))), False),
        "softmax + gelu": (lambda: (softmax_gelu, (randn(256, 1024), randn(256, 1024))), False),
        "MLP": (module(lambda: FeedForward(256), 128, 256), False),
        "MLP training": (module(lambda: FeedForward(256), 128, 256), True),
        "GPT-2 block": (module(lambda: Block(256, 4), 2, 64, 256), False),
        "GPT-2 block training": (module(lambda: Block(256, 4), 2, 64, 256), True),
        "12 GPT-2 blocks": (module(lambda: nn.Sequential(*(Block(256, 4) for _ in range(12))), 2, 64, 256), False),
    }


def growing(kind: str, operations: int) -> tuple[Any, tuple[Any, ...]]:
    """A function of so many operations: pointwise ones, or matmuls, reductions, views and pointwise ones in turn."""
    import torch

    from .suite import randn

    def pointwise(x: Any) -> Any:
        for _ in range(operations // 4):
            x = torch.relu(torch.sin(x) + 0.5) * 1.01
        return x

    weight = randn(32, 32) * 0.1

    def mixed(x: Any) -> Any:
        for _ in range(operations // 10):
            y = x @ weight
            y = torch.tanh(y - y.mean(-1, keepdim=True))
            x = x + torch.relu(y.view(8, 8, 32).transpose(0, 1).reshape(64, 32)) * 0.5
        return x

    return {"pointwise": pointwise, "mixed": mixed}[kind], (randn(64, 32),)


# --- one process ----------------------------------------------------------------------------------------------------


def _child(system: str, task: dict[str, Any]) -> None:
    """Compiles once and prints the processor seconds, and for our compiler those of each stage."""
    import torch

    def first_call(fn: Any, args: tuple[Any, ...], training: bool) -> float:
        args = tuple(a.requires_grad_() if training else a for a in args)
        start = processor_seconds()
        call = compiled(system, fn)
        with torch.set_grad_enabled(training):
            result = call(*args)
            if training:
                result.sum().backward()
        return processor_seconds() - start

    torch.set_num_threads(1)
    if task["warmed"]:
        for training in (False, True):
            first_call(lambda x: (x.sin() + 1).softmax(0) @ x, (torch.ones(6, 6),), training)
    training = task["training"]
    if "kind" in task:
        fn, args = growing(task["kind"], task["operations"])
    else:
        make, training = workloads()[task["workload"]]
        fn, args = make()
    graphs = _followed() if system == OWN and task["warmed"] else []
    seconds = first_call(fn, args, training)
    stages = dict.fromkeys(STAGES[1:], 0.0)
    for timing in (t for g in graphs for t in g.timings):
        stage, _, rest = timing.stage.partition(".")
        if rest in ("", "backward"):
            stages[stage] = stages.get(stage, 0.0) + timing.seconds
    print(json.dumps({"seconds": seconds, "capture": seconds - sum(stages.values()), **stages}))


def _followed() -> list[Any]:
    """The graphs that will be compiled, whose stages are timed in processor seconds."""
    from fuselens.pipeline import recorder

    graphs: list[Any] = []
    new_graph = recorder.Recorder.new_graph

    def remembered(self: Any, captured: Any) -> Any:
        graphs.append(new_graph(self, captured))
        return graphs[-1]

    recorder.Recorder.new_graph = remembered  # type: ignore[method-assign]
    recorder.time = types.SimpleNamespace(perf_counter=processor_seconds)  # type: ignore[assignment]
    return graphs


def _run(system: str, scratch: str, **task: Any) -> dict[str, float]:
    environment = {
        **os.environ, "TMPDIR": scratch, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/peer", "FUSELENS_CACHE_DIR": f"{scratch}/own",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    command = [sys.executable, "-m", "benchmarks.compile_time", "--child", system, json.dumps(task)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{system} failed on {task}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- tables ---------------------------------------------------------------------------------------------------------


def suite(names: list[str], systems: list[str], rounds: int) -> dict[str, Any]:
    """workload → system → {"first", "warm", "cold"}, and ours by stage."""
    table: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:  # writes the bytecode of our modules
        _run(OWN, scratch, workload="x + 1", warmed=True, training=False)
    for name in names:
        for system in systems:
            row: dict[str, Any] = {}
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as scratch:
                    for phase in ("first", "warm"):
                        found = _run(system, scratch, workload=name, warmed=False, training=False)
                        row[phase] = min(row.get(phase, found["seconds"]), found["seconds"])
                with tempfile.TemporaryDirectory() as scratch:
                    found = _run(system, scratch, workload=name, warmed=True, training=False)
                if found["seconds"] <= row.get("cold", found["seconds"]):
                    row |= {"cold": found["seconds"], "stages": found}
            table.setdefault(name, {})[system] = row
        print(suite_line(name, table[name]), flush=True)
    return table


HEADER = (
    f"{'':22}{'first':>8}{'peer':>8}{'ratio':>7}{'cold':>8}{'peer':>8}{'ratio':>7}{'warm':>8}{'peer':>8}   "
    + "".join(f"{s:>10}" for s in STAGES)
)  # fmt: skip


def suite_line(name: str, row: dict[str, Any]) -> str:
    own, peer = row.get(OWN, {}), row.get(PEER, {})
    line = f"{name:22}"
    for phase in ("first", "cold", "warm"):
        a, b = own.get(phase), peer.get(phase)
        line += f"{a:8.3f}" if a is not None else f"{'':8}"
        line += f"{b:8.2f}" if b is not None else f"{'':8}"
        if phase != "warm":
            line += f"{a / b:7.3f}" if a is not None and b else f"{'':7}"
    return line + "   " + "".join(f"{own.get('stages', {}).get(s, 0.0):10.3f}" for s in STAGES)


def growth(kinds: list[str], systems: list[str]) -> list[dict[str, Any]]:
    """Cold seconds for each kind, forward and training, and number of operations; printed as they come."""
    found = []
    for kind in kinds:
        for training in (False, True):
            for system in systems:
                for operations in SIZES:
                    if system == PEER and operations > PEERS_LARGEST:
                        continue
                    with tempfile.TemporaryDirectory() as scratch:
                        task = {"kind": kind, "operations": operations, "training": training}
                        row = {"system": system, **task, **_run(system, scratch, warmed=True, **task)}
                    found.append(row)
                    per = row["seconds"] / operations * 1e3
                    stages = "".join(f"{row.get(s, 0.0):10.2f}" for s in STAGES) if system == OWN else ""
                    mode = "training" if training else "forward"
                    print(
                        f"{kind:10}{mode:9}{system:14}{operations:7}{row['seconds']:9.2f} s{per:8.3f} ms each{stages}",
                        flush=True,
                    )
    return found


def plot(rows: list[dict[str, Any]], path: str) -> None:
    import matplotlib.pyplot as plt

    for kind in KINDS:
        for training in (False, True):
            for system in SYSTEMS[1:]:
                mine = [r for r in rows if (r["kind"], r["training"], r["system"]) == (kind, training, system)]
                if not mine:
                    continue
                label = f"{system}, {kind}, {'training' if training else 'forward'}"
                plt.loglog([r["operations"] for r in mine], [r["seconds"] for r in mine], "o-", label=label)
    ends = [min(r["operations"] for r in rows), max(r["operations"] for r in rows)]
    plt.loglog(ends, [n * 5e-3 for n in ends], ":", color="gray", label="5 ms each")
    plt.xlabel("operations")
    plt.ylabel("processor seconds")
    plt.legend()
    plt.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time", description=__doc__)
    parser.add_argument("--only", default="", help="workloads, or kinds of growth, comma-separated; default all")
    parser.add_argument("--own", action="store_true", help="without the peer")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--plot", default="", help="a PNG of the growth, where matplotlib is installed")
    parser.add_argument("--json", default="")
    parser.add_argument("--child", nargs=2, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(options.child[0], json.loads(options.child[1]))
        return
    only = [n for n in options.only.split(",") if n]
    systems = [OWN] if options.own else [OWN, PEER]
    if options.growth:
        print(f"{'':50}{'':14}" + "".join(f"{s:>10}" for s in STAGES))
        result: Any = growth(only or list(KINDS), systems)
        if options.plot:
            plot(result, options.plot)
    else:
        print(HEADER)
        result = suite(only or list(workloads()), systems, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
