"""What the machine's memory gives: read, copy and triad, in bytes that the program asks for.

The loops run on torch's OpenMP threads over memory that exists already, so that a workload's share of ``triad`` says how
far its kernel is from a plain loop, page faults of its outputs included.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import torch

from fuselens.codegen.cpu.vectors.isa import ISAS
from fuselens.config import from_environment
from fuselens.runtime.build import build, host_isa
from fuselens.runtime.cache.store import Cache

_SOURCE = """
typedef float v __attribute__((vector_size(BYTES)));
#define SHARED _Pragma("omp parallel for schedule(static)") for (long i = 0; i < n; ++i)
extern "C" void read(v* b, v*, v*, long n) {
#pragma omp parallel
  {
    v s0 = {}, s1 = {}, s2 = {}, s3 = {};
#pragma omp for schedule(static) nowait
    for (long i = 0; i < n; i += 4) s0 += b[i], s1 += b[i + 1], s2 += b[i + 2], s3 += b[i + 3];
#pragma omp critical
    b[0] = s0 + s1 + s2 + s3;
  }
}
extern "C" void copy(v* a, v* b, v* c, long n) { SHARED a[i] = b[i]; }
extern "C" void triad(v* a, v* b, v* c, long n) { SHARED a[i] = b[i] + 3.0f * c[i]; }
"""
ARRAYS = {"read": 1, "copy": 2, "triad": 3}  # that each loop touches


def loop(name: str, size: int) -> tuple[Callable[[], None], int]:
    """A call that runs one of the loops over arrays of ``size`` bytes in all, and how many bytes it moves."""
    config = from_environment()
    isa = ISAS[host_isa(config)]
    register = max(16, isa.register)  # wider vectors are split badly by compilers
    library = build(_SOURCE.replace("BYTES", str(register)), isa.flags, config, Cache(config.cache_dir)).library
    vectors = max(1, size // (4 * register * ARRAYS[name])) * 4
    memory = torch.ones(ARRAYS[name] * (vectors * register // 4 + 64) + 16)
    first = (memory.data_ptr() + 63) // 64 * 64
    step = vectors * register + 256  # apart from each other's cache sets
    function = getattr(library, name)

    def run(_: torch.Tensor = memory) -> None:
        function(*(ctypes.c_void_p(first + k * step) for k in range(3)), ctypes.c_long(vectors))

    return run, vectors * register * ARRAYS[name]


def rates(threads: int, size: int = 3 << 26, rounds: int = 15) -> dict[str, float]:
    """Bytes per second of each loop, the best of ``rounds``."""
    torch.set_num_threads(threads)
    found: dict[str, float] = {}
    for name in ARRAYS:
        run, moved = loop(name, size)
        seconds: list[float] = []
        for _ in range(rounds):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        found[name] = moved / min(seconds)
    return found


def show(threads: int) -> str:
    shown = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in rates(threads).items())
    return f"memory, {threads} thread{'s' if threads > 1 else ''}, GB/s: {shown}"


if __name__ == "__main__":
    for count in sorted({1, torch.get_num_threads()}):
        print(show(count))
