"""Products of quantised matrices with their scales, beside bfloat16's product, eager and the peer.

    python -m benchmarks.quantised                      on a GPU: [4096, 4096] by [4096, 4096], and 8192
    python -m benchmarks.quantised --device cpu --size 1024

Each function takes activations in bfloat16 and weights that were quantised before. *dynamic* quantises the activations as well,
a scale for each row. Times are medians of calls, systems in turn; *of bf16* is how many times faster than bfloat16's product
of the same sizes, compiled by the same system; *differs* is the largest difference from eager's result, over the largest result.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

F8 = torch.float8_e4m3fn
GROUP = 32  # weights of four bits that share a scale


@dataclass(frozen=True)
class Program:
    """``function(x, *weights)`` for ``x`` bf16[rows, K] and what ``quantise`` makes of a weight bf16[N, K]; the result is
    bf16[rows, N]."""

    function: Callable[..., Tensor]
    quantise: Callable[[Tensor], tuple[Tensor, ...]]


def _by_rows(w: Tensor, largest: float) -> Tensor:
    return w.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / largest


def _int8(w: Tensor) -> tuple[Tensor, ...]:
    scale = _by_rows(w, 127)
    return (w.float() / scale).round().clamp(-128, 127).to(torch.int8), scale


def _f8(w: Tensor) -> tuple[Tensor, ...]:
    scale = _by_rows(w, 448)
    return (w.float() / scale).clamp(-448, 448).to(F8), scale


def _f8_whole(w: Tensor) -> tuple[Tensor, ...]:
    scale = w.float().abs().amax() / 448
    return (w.float() / scale).clamp(-448, 448).to(F8), scale


def _int4(w: Tensor) -> tuple[Tensor, ...]:
    """Two numbers of four bits in a byte."""
    groups = w.float().view(w.shape[0], -1, GROUP)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 7
    q = ((groups / scale).round().clamp(-8, 7) + 8).to(torch.uint8).view(w.shape)
    return (q[:, ::2] << 4) | q[:, 1::2], scale.squeeze(-1).to(w.dtype)


def bf16(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def int8_dynamic(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    own = _by_rows(x, 127)
    q = (x.float() / own).round().clamp(-128, 127).to(torch.int8)
    return (torch._int_mm(q, w.t()).float() * own * scale.t()).to(x.dtype)


def int8_weights(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * scale.t().to(x.dtype)


def int4_weights(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    numbers = torch.stack([(w >> 4).to(x.dtype) - 8, (w & 15).to(x.dtype) - 8], -1)
    wide = numbers.view(w.shape[0], -1, GROUP) * scale[:, :, None]
    return F.linear(x, wide.view(w.shape[0], -1))


def f8_rows(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    own = _by_rows(x, 448)
    q = (x.float() / own).clamp(-448, 448).to(F8)
    return torch._scaled_mm(q, w.t(), own, scale.t(), out_dtype=x.dtype)


def f8_whole(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    own = x.float().abs().amax().clamp(min=1e-12) / 448
    q = (x.float() / own).clamp(-448, 448).to(F8)
    return torch._scaled_mm(q, w.t(), own, scale, out_dtype=x.dtype)


def f8_weights(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * scale.t().to(x.dtype)


PROGRAMS = {
    "bf16": Program(bf16, lambda w: (w,)),
    "int8 dynamic by rows": Program(int8_dynamic, _int8),
    "int8 weights": Program(int8_weights, _int8),
    "int4 weights by groups": Program(int4_weights, _int4),
    "fp8 dynamic by rows": Program(f8_rows, _f8),
    "fp8 dynamic, one scale": Program(f8_whole, _f8_whole),
    "fp8 weights": Program(f8_weights, _f8),
}


def inputs(name: str, rows: int, k: int, n: int, device: str) -> tuple[Tensor, ...]:
    """What the program is given, from a seed."""
    chance = torch.Generator().manual_seed(0)
    x, w = (torch.randn(size, k, generator=chance).to(device, torch.bfloat16) for size in (rows, n))
    return x, *PROGRAMS[name].quantise(w / k**0.5)


def _seconds(call: Callable[[], Any], device: str) -> float:
    repeats = 20
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def main() -> None:
    from .harness import compiled

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--size", default="4096,8192")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", default="eager,torch.compile,own")
    options = parser.parse_args()
    systems = options.systems.split(",")
    for size in map(int, options.size.split(",")):
        print(f"{f'{size}³, µs':26}" + "".join(f"{s:>16}{'of bf16':>9}" for s in systems) + f"{'differs':>10}")
        plain: dict[str, float] = {}
        for name, program in PROGRAMS.items():
            given = inputs(name, size, size, size, options.device)
            calls = {s: compiled(s, program.function) for s in systems}
            with torch.no_grad():
                results = {s: call(*given) for s, call in calls.items()}
                for call in calls.values():
                    _seconds(functools.partial(call, *given), options.device)
                times: dict[str, list[float]] = {s: [] for s in systems}
                for _ in range(options.rounds):
                    for s, call in calls.items():
                        times[s].append(_seconds(functools.partial(call, *given), options.device))
            wanted = results[systems[0]].float()
            differs = (results[systems[-1]].float() - wanted).abs().max() / wanted.abs().max()
            line = f"{name:26}"
            for s in systems:
                took = statistics.median(times[s])
                plain.setdefault(s, took)
                line += f"{1e6 * took:16.1f}{plain[s] / took:9.2f}"
            print(line + f"{differs.item():10.1e}", flush=True)


if __name__ == "__main__":
    main()
