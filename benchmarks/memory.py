"""What a training step holds: predicted without running it, and measured.

    python -m benchmarks.memory
    python -m benchmarks.memory --device cuda --scale 16 --json out.json
    python -m benchmarks.memory --only gpt,unet --optimizer sgd

A step is forward, backward and AdamW. *Predicted* is what ``fuselens memory`` says, in a process that computes nothing. *Measured* is
the fourth step of another process that trains: on a GPU ``torch.cuda.max_memory_allocated``, on a CPU what tensors and compiled
programs have from malloc (``counting.c``, preloaded), in blocks of 32 KiB and more. Freed memory is given back there, so that it does
not count. *Others* is what all else has more than before the model was made: on a CPU the scratch memory of oneDNN and MKL, which the
prediction leaves out.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .harness import ROOT

_WARM = 3


def _optimizer(name: str, parameters: Any) -> Any:
    import torch

    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    return kinds[name](parameters, lr=1e-4)


def predicted(name: str, device: str, scale: int, optimizer: str) -> dict[str, Any]:
    import torch

    from fuselens.checking.located import Found
    from fuselens.checking.steps.step import Step, Subject
    from fuselens.config import from_environment
    from fuselens.inputs.example_inputs import ExampleInputs

    from .memory_models import MAKERS

    torch.manual_seed(0)
    model, args = MAKERS[name](scale)
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    target = f"cuda:sm_{major}{minor}" if device == "cuda" else "cpu"
    config = from_environment(target=target, step_optimizer=optimizer)
    found = Found(model, None, None, None)
    start = time.perf_counter()
    step = Step(Subject(name, found, ExampleInputs(args, {}), config), config).memory({})
    return {
        "peak": step.peak, "reserved": step.reserved, "phase": step.phase, "kinds": step.kinds, "phases": step.phases,
        "notes": step.notes, "seconds": time.perf_counter() - start,
    }  # fmt: skip


def measured(name: str, device: str, scale: int, optimizer: str) -> dict[str, Any]:
    import torch

    import fuselens

    from .memory_models import MAKERS

    torch.manual_seed(0)
    counter = None if device == "cuda" else ctypes.CDLL(None)
    if counter is not None:
        counter.counted_live.restype = counter.counted_peak.restype = ctypes.c_long
    before, others = (counter.counted_live(kind) if counter is not None else 0 for kind in (0, 1))
    model, args = MAKERS[name](scale)
    model, args = model.to(device), tuple(a.to(device) for a in args)
    update = _optimizer(optimizer, model.parameters())
    compiled = fuselens.compile(model, options={"keep_freed_memory": device == "cuda"})

    def step() -> None:
        compiled(*args).backward()
        update.step()
        update.zero_grad()

    for _ in range(_WARM):
        step()
    gc.collect()
    if counter is not None:
        counter.counted_reset()
        step()
        return {"peak": counter.counted_peak(0) - before, "others": counter.counted_peak(1) - others}
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return {"peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def _in_a_process(which: str, name: str, arguments: argparse.Namespace, counter: str) -> dict[str, Any]:
    environment = os.environ | ({"LD_PRELOAD": counter} if counter and which == "measured" else {})
    command = [
        sys.executable,
        "-m",
        "benchmarks.memory",
        "--child",
        which,
        "--only",
        name,
        "--device",
        arguments.device,
    ]
    command += ["--scale", str(arguments.scale), "--optimizer", arguments.optimizer]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def _counter(folder: str) -> str:
    """The library that counts; built here."""
    made = Path(folder) / "counting.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", made, ROOT / "benchmarks" / "counting.c"], check=True)
    return str(made)


def table(rows: dict[str, Any]) -> str:
    mib = 2**20
    heads = ("predicted MiB", "measured MiB", "ratio", "reserved", "measured", "others")
    widths = (15, 15, 8, 11, 11, 9)
    out = [f"{'model':<14}{''.join(h.rjust(w) for h, w in zip(heads, widths, strict=True))}  at the peak"]
    for name, row in rows.items():
        one, other = row["predicted"], row["measured"]
        if "error" in one or "error" in other:
            out.append(f"{name:<14}{one.get('error') or other.get('error')}")
            continue
        kinds = ", ".join(f"{kind} {count / mib:.0f}" for kind, count in list(one["kinds"].items())[:4])
        reserved = [f"{r['reserved'] / mib:.0f}" if r.get("reserved") else "" for r in (one, other)]
        others = f"{other['others'] / mib:.0f}" if "others" in other else ""
        out.append(
            f"{name:<14}{one['peak'] / mib:>15.1f}{other['peak'] / mib:>15.1f}{one['peak'] / other['peak']:>8.3f}"
            f"{reserved[0]:>11}{reserved[1]:>11}{others:>9}  {one['phase']}: {kinds}"
        )
    return "\n".join(out)


def main() -> None:
    from .memory_models import MAKERS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(MAKERS), help="models, by name")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="", help="by default a GPU, where there is one")
    parser.add_argument("--scale", type=int, default=0, help="the batch in multiples (1; on a GPU 16)")
    parser.add_argument("--optimizer", choices=("adamw", "adam", "sgd"), default="adamw")
    parser.add_argument("--json", type=Path, help="where everything goes as JSON")
    parser.add_argument("--child", choices=("predicted", "measured"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.device:
        import torch

        arguments.device = "cuda" if torch.cuda.is_available() else "cpu"
    arguments.scale = arguments.scale or (16 if arguments.device == "cuda" else 1)
    if arguments.child:
        run = predicted if arguments.child == "predicted" else measured
        print(json.dumps(run(arguments.only, arguments.device, arguments.scale, arguments.optimizer)))
        return
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        counter = _counter(folder) if arguments.device == "cpu" else ""
        for name in arguments.only.split(","):
            rows[name] = {which: _in_a_process(which, name, arguments, counter) for which in ("predicted", "measured")}
            print(table({name: rows[name]}).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
