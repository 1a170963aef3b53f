"""What a second process takes until GPT-2 small has done its first forward and backward, beside the peer.

    python -m benchmarks.warm_starts --rounds 3

Each system has caches of its own, which a first process fills. Then processes of both take turns. Each makes the model, calls
it eagerly once (so that torch's libraries are there), and then: imports the system, compiles, calls, goes backward. *over* is
that less a later eager forward and backward. Seconds of the wall clock, and of the processor with children.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from .harness import ROOT, processor_seconds

SYSTEMS = ("own", "peer")
TOKENS = 64


def measure(system: str) -> dict[str, float]:
    """In a process of its own."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).eval()
    tokens = torch.randint(0, 50257, (1, TOKENS))

    def step(call: Any) -> None:
        call(input_ids=tokens, labels=tokens).loss.backward()

    def timed(run: Any) -> tuple[float, float]:
        start = time.perf_counter(), processor_seconds()
        run()
        return time.perf_counter() - start[0], processor_seconds() - start[1]

    def first() -> None:
        if system == "own":
            import fuselens

            step(fuselens.compile(model))
        else:
            step(torch.compile(model))

    step(model)
    wall, processor = timed(first)
    eager = timed(lambda: step(model))
    return {"wall": wall, "processor": processor, "wall over": wall - eager[0], "processor over": processor - eager[1]}


def _child(system: str, scratch: str) -> dict[str, float]:
    environment = {
        **os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/peer", "FUSELENS_CACHE_DIR": f"{scratch}/own",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    command = [sys.executable, "-m", "benchmarks.warm_starts", "--child", system]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{system} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", choices=SYSTEMS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        cold = {system: _child(system, scratch) for system in SYSTEMS}
        warm: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
        for _ in range(options.rounds):
            for system in SYSTEMS:
                warm[system].append(_child(system, scratch))
    print(f"{'GPT-2 small, seconds':24}{'own':>8}{'peer':>8}{'ratio':>8}")
    for name, of in (("cold", {s: [cold[s]] for s in SYSTEMS}), ("warm", warm)):
        for what in ("wall", "processor", "wall over", "processor over"):
            own, peer = (statistics.median(r[what] for r in of[s]) for s in SYSTEMS)
            print(f"{f'{name} {what}':24}{own:8.2f}{peer:8.2f}{own / peer:8.2f}")


if __name__ == "__main__":
    main()
