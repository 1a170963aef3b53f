"""What capture itself costs, compiled code apart: `backend="eager"` against the peer's, in two processes that take turns.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --rounds 60 --json out.json

*Overhead of a call* is its time less that of the same torch operations called one after the other with their inputs at
hand: what eager costs without any module around it (a captured module is faster than eager, which has to call them).
*Guards* is the evaluation of our guards alone. *Capture* is the processor time of the first call of a fresh function,
for each 1,000 bytecode instructions that it executes, in a process that has captured something else before.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = ("torch.compile", "fuselens")
CALLS = {"x + 1": 0, "100 parameters": 50, "1000 parameters": 500}
"""Name → number of linear layers; 0: a function without a module."""


def compiled(system: str, fn: Any) -> Any:
    if system == "fuselens":
        import fuselens

        return fuselens.compile(fn, backend="eager")
    import torch

    return torch.compile(fn, backend="eager")


# --- programs whose capture is timed ------------------------------------------------------------------------------

_TENSORS = [
    "x = x * y + 1.0",
    "y = torch.relu(x) - y",
    "x = x.reshape(-1).reshape(4, 4)",
    "y = y.sum(0, keepdim=True) + x",
]
_PYTHON = ["n = (n * 7 + 3) % 101", "items.append(n)", "table['k'] = len(items) + n", "a, b = items[-1], table['k']",
           "s = f'{a}-{b}'.upper() if a > b else str(b)", "n += len(s)"]  # fmt: skip
_CALLS = ["n = twice(n, k=2) % 97", "x = scaled(x, *(n, 1))", "n = point.moved(n)", "x = (lambda v: v - n)(x)"]
_HEADER = """
import torch
class Point:
    def __init__(self, n): self.n = n
    def moved(self, by):
        if by > self.n: return by - self.n
        return self.n - by
def twice(n, k=1): return n * k
def scaled(x, *factors):
    for f in factors: x = x * f
    return x
def program(x, y, n):
    items, table, point = [1], {}, Point(5)
"""
PROGRAMS: dict[str, list[str]] = {
    "tensor operations": _TENSORS * 25,
    "Python values": _PYTHON * 60,
    "calls and objects": _CALLS * 30,
    "a mixture": (_TENSORS + _PYTHON * 4 + _CALLS) * 10,
}


def fresh_program(name: str) -> Callable[..., Any]:
    """The program as a function that nobody has seen."""
    source = _HEADER + "".join(f"    {line}\n" for line in PROGRAMS[name]) + "    return x + y, n\n"
    space: dict[str, Any] = {}
    exec(compile(source, __file__, "exec"), space)
    return space["program"]


def executed_instructions(fn: Callable[..., Any], args: tuple[Any, ...]) -> int:
    """How many bytecode instructions a call executes in this file's code, callees included."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename != __file__:
            return None
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    previous = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 looks only here, when tracing starts, whether anyone wants opcodes
    sys.settrace(trace)
    try:
        fn(*args)
    finally:
        sys.settrace(previous)
    return count


# --- the process of one system ------------------------------------------------------------------------------------


def make(layers: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """(what is compiled, the same operations in a row, its argument)."""
    import torch
    from torch import nn

    if layers == 0:
        return (lambda x: x + 1), (lambda x: x + 1), (torch.ones(2, 4),)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
    space: dict[str, Any] = {"linear": torch.nn.functional.linear}
    names = [f"p{i}" for i in range(2 * layers)]
    lines = [f"    x = linear(x, p{2 * i}, p{2 * i + 1})\n" for i in range(layers)]
    exec(f"def bare(x, {', '.join(names)}):\n{''.join(lines)}    return x\n", space)
    parameters, bare = tuple(model.parameters()), space["bare"]
    return model, (lambda x: bare(x, *parameters)), (torch.ones(2, 4),)


class Child:
    """Answers ``call NAME`` and ``capture NAME`` with seconds."""

    def __init__(self, system: str) -> None:
        import torch

        torch.set_num_threads(1)
        self.system = system
        self.calls: dict[str, tuple[Any, Any, tuple[Any, ...], int]] = {}
        self.captured: dict[str, tuple[Any, tuple[Any, ...]]] = {}
        with torch.no_grad():
            compiled(system, fresh_program("a mixture"))(torch.ones(4, 4), torch.ones(4, 4), 3)
            for name, layers in CALLS.items():
                fn, bare, args = make(layers)
                call = compiled(system, fn)
                for _ in range(5):
                    call(*args)
                    bare(*args)
                self.captured[name] = fn, args
                self.calls[name] = call, bare, args, max(1, 300 // (layers + 1))

    def call(self, name: str) -> dict[str, float]:
        call, bare, args, n = self.calls[name]
        return {"compiled": self._best(call, args, n), "bare": self._best(bare, args, n)}

    def _best(self, call: Any, args: tuple[Any, ...], n: int) -> float:
        best = float("inf")
        gc.disable()
        for _ in range(10):
            start = time.perf_counter()
            for _ in range(n):
                call(*args)
            best = min(best, (time.perf_counter() - start) / n)
        gc.enable()
        return best

    def capture(self, name: str) -> dict[str, float]:
        import torch

        args = torch.ones(4, 4), torch.ones(4, 4), 3
        call = compiled(self.system, fresh_program(name))
        start = time.process_time()
        call(*args)
        return {"seconds": time.process_time() - start}

    def guards(self, name: str) -> dict[str, float]:
        """Evaluation of the guards of the compiled function or of its module's ``forward``."""
        from fuselens.capture.hook import _hook

        fn, args = self.captured[name]
        function, args = (type(fn).forward, (fn, *args)) if CALLS[name] else (fn, args)
        entry = next(e for e in _hook.entries(function) if e.guards.check(function, args)[0])
        return {"seconds": 1e-9 * min(entry.guards.time(function, args, 200) for _ in range(20))}

    def serve(self) -> None:
        import torch

        with torch.no_grad():
            for line in sys.stdin:
                verb, _, name = line.strip().partition(" ")
                print(json.dumps(getattr(self, verb)(name)), flush=True)


class Process:
    """A child and the questions to it."""

    def __init__(self, system: str) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, "-m", "benchmarks.overhead", "--child", system]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, question: str) -> dict[str, float]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that was asked {question!r} is gone")
        return json.loads(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# --- the table ----------------------------------------------------------------------------------------------------


def measure(rounds: int) -> dict[str, Any]:
    """The least of ``rounds`` answers to each question, in µs per call and ms per 1,000 instructions."""
    import torch

    processes = {system: Process(system) for system in SYSTEMS}
    best: dict[tuple[str, str, str], float] = {}
    try:
        for i in range(rounds):
            for system in SYSTEMS if i % 2 else SYSTEMS[::-1]:
                questions = [("call", n) for n in CALLS] + [("capture", n) for n in PROGRAMS if i % 4 == 0]
                questions += [("guards", n) for n in CALLS if system == "fuselens"]
                for verb, name in questions:
                    for what, seconds in processes[system].ask(f"{verb} {name}").items():
                        key = (system, f"{verb} {name}", what)
                        best[key] = min(best.get(key, seconds), seconds)
    finally:
        for process in processes.values():
            process.close()
    peer, own = SYSTEMS
    table: dict[str, Any] = {"calls": {}, "capture": {}}
    for name in CALLS:
        bare = min(best[s, f"call {name}", "bare"] for s in SYSTEMS)
        over = {s: 1e6 * (best[s, f"call {name}", "compiled"] - bare) for s in SYSTEMS}
        guards = 1e6 * best[own, f"guards {name}", "seconds"]
        table["calls"][name] = {"bare": 1e6 * bare, "peer": over[peer], "own": over[own], "guards": guards}
    for name in PROGRAMS:
        count = executed_instructions(fresh_program(name), (torch.ones(4, 4), torch.ones(4, 4), 3))
        each = {s: 1e6 * best[s, f"capture {name}", "seconds"] / count for s in SYSTEMS}
        table["capture"][name] = {"instructions": count, "peer": each[peer], "own": each[own]}
    return table


def show(table: dict[str, Any]) -> str:
    lines = [f"{'overhead of a call, µs':26}{'bare':>10}{'peer':>10}{'own':>10}{'own/peer':>10}{'guards':>10}"]
    for name, row in table["calls"].items():
        lines.append(
            f"{name:26}{row['bare']:10.2f}{row['peer']:10.2f}{row['own']:10.2f}{row['own'] / row['peer']:10.3f}{row['guards']:10.2f}"
        )
    lines.append(f"{'capture, ms per 1,000':26}{'executed':>10}{'peer':>10}{'own':>10}{'own/peer':>10}")
    for name, row in table["capture"].items():
        lines.append(
            f"{name:26}{row['instructions']:10}{row['peer']:10.2f}{row['own']:10.2f}{row['own'] / row['peer']:10.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--json", default="")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        Child(options.child).serve()
        return
    table = measure(options.rounds)
    print(show(table))
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
