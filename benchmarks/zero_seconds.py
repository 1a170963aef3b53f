"""The first step of a program whose file the editor has checked, or that ran before: seconds after `import torch`.

    python -m benchmarks.zero_seconds [--device cuda] [--rounds 3]

A first process fills the cache. Each later one imports torch, makes its model, and does one step: GPT-2 small in training
(forward, loss, backward, AdamW), and a block of it in inference. *import* is what fuselens' import takes, *compile* what
``fuselens.compile`` does, *step* the first step; *later* is a later step, *eager* one without fuselens. The model and what torch
needs for its own first calls are no part of it: an eager step comes before, as in :mod:`.warm_starts`.
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

from .harness import ROOT

TOKENS = 128
PARTS = ("import", "compile", "step", "later", "eager", "sum")


def measure(what: str, device: str) -> dict[str, float]:
    """In a process of its own."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).to(device)
    tokens = torch.randint(0, 50257, (4 if device == "cuda" else 1, TOKENS), device=device)
    if what == "inference":
        model = model.transformer.h[0].eval()
        hidden = torch.randn(1, TOKENS, 768, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(call: Any) -> None:
        if what == "inference":
            with torch.no_grad():
                call(hidden)
        else:
            call(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()

    def timed(run: Any) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    step(model)
    found = {"eager": timed(lambda: step(model))}
    start = time.perf_counter()
    import fuselens

    fuselens.compile  # noqa: B018 - what the package has is imported when it is asked for
    found["import"] = time.perf_counter() - start
    start = time.perf_counter()
    compiled = fuselens.compile(model)
    found["compile"] = time.perf_counter() - start
    found["step"] = timed(lambda: step(compiled))
    found["later"] = min(timed(lambda: step(compiled)) for _ in range(3))
    return found | {"sum": found["import"] + found["compile"] + found["step"]}


def _child(what: str, device: str, cache: str) -> dict[str, float]:
    environment = {
        **os.environ, "FUSELENS_CACHE_DIR": cache, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages have their bytecode
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.zero_seconds", "--child", what, "--device", device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{what} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=("training", "inference"))
    parser.add_argument("--child", choices=("training", "inference"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.device)))
        return
    print(f"{'seconds':20}" + "".join(f"{part:>10}" for part in PARTS))
    for what in (options.only,) if options.only else ("training", "inference"):
        with tempfile.TemporaryDirectory() as cache:
            cold = _child(what, options.device, cache)
            warm = [_child(what, options.device, cache) for _ in range(options.rounds)]
        middle = {part: statistics.median(run[part] for run in warm) for part in PARTS}
        for name, row in ((f"{what} cold", cold), (f"{what} warm", middle)):
            print(f"{name:20}" + "".join(f"{row[part]:10.2f}" for part in PARTS), flush=True)


if __name__ == "__main__":
    main()
