"""What a compilation takes as a model gets deeper, or a loop longer: 48 layers beside 4, 170 steps beside 4.

    python -m benchmarks.deep                    a transformer's forward and training, and two recurrent nets that are unrolled
    python -m benchmarks.deep --device cuda
    python -m benchmarks.deep --systems own,whole,peer,eager

``whole`` is our own without regions: the graph is compiled as one. Each measurement is a process of its own with empty caches:
the first call, with its backward in training, less the median of later ones (``compile``), and that median (``step``).
``deep / few`` is how many times longer the compilation of the large one takes.
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

SIZES = {"forward": (4, 48), "training": (4, 48), "steps": (4, 170), "written": (4, 170)}
WIDTH, HEADS, LENGTH, BATCH = 256, 4, 64, 4
CALLS = 15


def transformer(layers: int, device: str) -> tuple[Any, Any]:
    """A model of ``layers`` layers and its input, ``int64[BATCH, LENGTH]``."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(self.before(x)).split(WIDTH, 2)
            q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
            return x + self.down(F.gelu(self.up(self.between(x))))

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(1000, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Transformer().to(device), torch.randint(0, 1000, (BATCH, LENGTH), device=device)


def recurrent(steps: int, device: str) -> tuple[Any, Any]:
    """Two ``LSTMCell`` over a series that is unrolled, as in torch's example of time series, and its input,
    ``float64[97, steps]``."""
    import torch
    from torch import nn

    class Series(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51), nn.Linear(51, 1)

        def forward(self, series: Any) -> Any:
            a = b = c = d = torch.zeros(series.shape[0], 51, dtype=series.dtype, device=series.device)
            found = []
            for item in series.split(1, dim=1):
                a, b = self.first(item, (a, b))
                c, d = self.second(a, (c, d))
                found.append(self.last(c))
            return torch.cat(found, dim=1)

    return Series().double().to(device), torch.randn(97, steps, dtype=torch.float64, device=device)


def written(steps: int, device: str) -> tuple[Any, Any]:
    """A GRU that is written out, of which each step takes its words out of all, and its input, ``int64[64, steps]``."""
    import torch
    from torch import nn

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last = nn.Embedding(1000, 64), nn.Linear(128, 10)
            self.given, self.kept = nn.Linear(64, 3 * 128), nn.Linear(128, 3 * 128)

        def forward(self, words: Any) -> Any:
            x = self.words(words)
            h, found = x.new_zeros(x.shape[0], 128), []
            for t in range(x.shape[1]):
                (r, z, n), (u, v, w) = self.given(x[:, t]).chunk(3, 1), self.kept(h).chunk(3, 1)
                r, z = torch.sigmoid(r + u), torch.sigmoid(z + v)
                h = (1 - z) * torch.tanh(n + r * w) + z * h
                found.append(self.last(h))
            return torch.stack(found, 1)

    return Gated().to(device), torch.randint(0, 1000, (64, steps), device=device)


MODELS = {"forward": transformer, "training": transformer, "steps": recurrent, "written": written}


def measure(system: str, program: str, size: int, device: str) -> dict[str, float]:
    """In a process of its own."""
    import torch

    torch.manual_seed(0)
    model, given = MODELS[program](size, device)

    def step(call: Any) -> Any:
        if program == "forward":
            with torch.no_grad():
                found = call(given)
        else:
            found = call(given)
            found.square().mean().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return found.detach()

    wanted = step(model)
    if system == "eager":
        call = model
    elif system == "peer":
        call = torch.compile(model)
    else:
        import fuselens

        call = fuselens.compile(model, options={"regions": system == "own"})
    times = []
    for _ in range(CALLS + 1):
        start = time.perf_counter()
        found = step(call)
        times.append(time.perf_counter() - start)
    usual = statistics.median(times[1:])
    return {"compile": times[0] - usual, "step": usual, "difference": (found - wanted).abs().max().item()}


def _child(system: str, program: str, size: int, device: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            **os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/peer", "FUSELENS_CACHE_DIR": f"{scratch}/own",
            "TRITON_CACHE_DIR": f"{scratch}/triton", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.deep", "--device", device, "--child", system, program, str(size)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{system} failed at {program}, {size}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", default="own,whole")
    parser.add_argument("--programs", default=",".join(SIZES))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        system, program, size = options.child
        print(json.dumps(measure(system, program, int(size), options.device)))
        return
    systems = options.systems.split(",")
    found: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for _ in range(options.rounds):
        for program in options.programs.split(","):
            for size in SIZES[program]:
                for system in systems:
                    measured = _child(system, program, size, options.device)
                    found.setdefault((program, system, size), []).append(measured)
    print(
        f"{'':10}{'':8}{'few, s':>10}{'deep, s':>10}{'deep / few':>12}{'step of few, ms':>17}{'of deep':>10}{'differs by':>12}"
    )
    for program in options.programs.split(","):
        for system in systems:
            few, deep = (
                {
                    name: statistics.median(r[name] for r in found[program, system, size])
                    for name in ("compile", "step", "difference")
                }
                for size in SIZES[program]
            )
            print(
                f"{program:10}{system:8}{few['compile']:10.2f}{deep['compile']:10.2f}{deep['compile'] / few['compile']:12.2f}"
                f"{1e3 * few['step']:17.2f}{1e3 * deep['step']:10.2f}{max(few['difference'], deep['difference']):12.1e}"
            )


if __name__ == "__main__":
    main()
