"""Bytes of kernels: what we say that they move, and what counters of a memory hierarchy see.

    python -m benchmarks.roofline
    python -m benchmarks.roofline --only softmax,transpose --json out.json
    python -m benchmarks.roofline --device cuda

Each program becomes one kernel. *Said* are its bytes as ``fuselens limits`` and the editor tell them, from which the share of what memory
allows is computed: it is as far from that of the counters as the bytes are. *Counted* are the lines (64 B) that a call of the same
kernel, built for AVX2, brings into the last cache, as Valgrind's cachegrind counts them while the kernel runs on the program's inputs: a
processor in a virtual machine has no counters of its own to be asked. The caches that it has are small (32 KiB and 1 MiB), so that
tensors of some MiB are in none. From the counts are taken those of the same
process without the calls.

On a card a program has tensors of some GiB, and may become two kernels. *Counted* are the bytes that its memory reads and writes, by the
card's own counters (``ncu``, which may need to be allowed): with ``--device cuda``, and with no change of its clocks.
"""

from __future__ import annotations

import argparse
import atexit
import csv
import ctypes
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

_LINE = 64
_CACHES = ("--D1=32768,8,64", "--LL=1048576,16,64")
_CALLS = 2
_COUNTERS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")
_ROWS = 1024
_SCALE = 256  # of tensors on a card: what is written and is in its cache at the end is not counted
Program = tuple[Callable[..., Any], Callable[[int], tuple[torch.Tensor, ...]]]


def _given(*shapes: tuple[int, ...]) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda scale: tuple(torch.randn(n * scale if rest else n, *rest) for n, *rest in shapes)


def _indices(scale: int) -> tuple[torch.Tensor, ...]:
    return torch.randint(0, scale << 14, (scale << 13,)), torch.randn(scale << 14, 256)


PROGRAMS: dict[str, Program] = {
    "multiply and add": (lambda a, b, c: a * b + c, _given(*[(_ROWS, 2048)] * 3)),
    "gelu": (lambda x: F.gelu(x), _given((_ROWS, 2048))),
    "bias and relu": (lambda x, b: torch.relu(x + b), _given((_ROWS, 2048), (2048,))),
    "softmax": (lambda x: torch.softmax(x, -1), _given((_ROWS, 2048))),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (2048,), w, b), _given((_ROWS, 2048), (2048,), (2048,))),
    "sum of rows": (lambda x: x.sum(-1), _given((_ROWS, 2048))),
    "transpose": (lambda x: x.t().contiguous() * 2, _given((_ROWS, 2048))),
    "gather of rows": (lambda i, w: w[i] * 2, _indices),
    "to half precision": (lambda x: (x * 2).to(torch.bfloat16), _given((_ROWS, 2048))),
    "products of rows": (lambda a, b: (a * b).sum(-1), _given(*[(_ROWS, 2048)] * 2)),
    "pooling": (lambda x: F.max_pool2d(x, 2), _given((8, 16, 128, 128))),
    "logsumexp of columns": (lambda x: torch.logsumexp(x, 0), _given((_ROWS, 2048))),
}


def kernel(name: str) -> tuple[Any, Any, Any, dict[str, torch.Tensor]]:
    """The kernel of a program: the loops that it was made from, what was generated, how it is called, and its inputs."""
    import fuselens
    from fuselens.pipeline import phases

    function, inputs = PROGRAMS[name]
    torch.manual_seed(0)
    given, seen = inputs(1), []

    def noted(shown: Any, ran: Any) -> Any:
        seen.append(ran)
        return made(shown, ran)

    made = phases._program
    with mock.patch.object(phases, "_program", noted):
        fuselens.compile(function)(*given)
    (work,) = seen
    (info,) = work.generated.cpp.kernels
    return work.ordered, work.generated, info, dict(zip(inspect.signature(function).parameters, given, strict=True))


_DRIVER = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char** of) {  // library, function, whether to call it, then for each argument: bytes, and a file or -
  void* library = dlopen(of[1], RTLD_NOW);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  void (*call)(void*, void*, void*, void*, void*, void*) = dlsym(library, of[2]);
  void* given[6] = {0};
  for (int k = 0; 2 * k + 5 < count; ++k) {
    long bytes = atol(of[4 + 2 * k]);
    given[k] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(given[k], 0, bytes);
    if (strcmp(of[5 + 2 * k], "-")) {
      FILE* file = fopen(of[5 + 2 * k], "rb");
      if (!file || fread(given[k], 1, bytes, file) != (size_t)bytes) return 2;
      fclose(file);
    }
  }
  char* flush = malloc(16 << 20);
  for (int k = 0; k < CALLS; ++k) {
    memset(flush, k, 16 << 20);  // nothing of an earlier call is in a cache
    if (atoi(of[3])) call(given[0], given[1], given[2], given[3], given[4], given[5]);
  }
  return 0;
}
"""


def measured(name: str) -> dict[str, Any]:
    from fuselens.codegen.traffic import bytes_moved
    from fuselens.config import from_environment
    from fuselens.ir.loops import Kernel
    from fuselens.runtime.build import build
    from fuselens.runtime.cache.store import Cache
    from fuselens.schedule.order import storage_bytes

    graph, generated, info, given = kernel(name)
    (node,) = (n for n in graph.nodes if isinstance(n, Kernel))
    read, written = (int(n) for n in bytes_moved(node, graph))
    config = from_environment()
    library = build(generated.cpp.text, generated.isa_flags, config, Cache(config.cache_dir)).path
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "unit.so"
        shutil.copyfile(library, unit)
        arguments: list[str] = []
        for storage in info.arguments:
            file = "-"
            if storage in graph.inputs:
                tensor = given[storage]
                assert storage_bytes(graph.buffers[storage], {}) == tensor.nbytes
                file = str(Path(folder) / storage)
                Path(file).write_bytes(ctypes.string_at(tensor.data_ptr(), tensor.nbytes))
            arguments += [str(storage_bytes(graph.buffers[storage], {})), file]
        without, with_calls = (_counted(Path(folder), unit, info.function, called, arguments) for called in (0, 1))
    counted = [(with_calls[event] - without[event]) / _CALLS * _LINE for event in ("DLmr", "DLmw")]
    return {
        "kernel": info.function,
        "read": read,
        "written": written,
        "counted_read": counted[0],
        "counted_written": counted[1],
    }


def _counted(folder: Path, library: Path, function: str, called: int, arguments: list[str]) -> dict[str, int]:
    """Misses of the last cache by what missed, DLmr a load and DLmw a store, of a process that makes ``_CALLS`` calls, or none."""
    driver = folder / "driver"
    if not driver.exists():
        source = folder / "driver.c"
        source.write_text(_DRIVER)
        subprocess.run(["gcc", "-O1", "-w", f"-DCALLS={_CALLS}", "-o", driver, source, "-ldl"], check=True)
    out = folder / "counts"
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", *_CACHES, f"--cachegrind-out-file={out}"]
    command += [str(driver), str(library), function, str(called), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"valgrind ended with {done.returncode}: {done.stderr[-400:]}")
    text = out.read_text()
    names, counts = (
        next(line for line in text.splitlines() if line.startswith(head)) for head in ("events:", "summary:")
    )
    return dict(zip(names.split()[1:], map(int, counts.split()[1:]), strict=True))


def said_on_card(names: list[str], out: Path) -> None:
    """Calls the programs, one after the other, where ``ncu`` counts; what we say of the kernels of each goes to the file ``out``."""
    import fuselens

    cuda, said = torch.cuda.cudart(), {}
    torch.set_default_device("cuda")
    for name in names:
        function, inputs = PROGRAMS[name]
        given = inputs(_SCALE)
        kernels = fuselens.explain(function)(*given).kernels
        compiled = fuselens.compile(function)
        compiled(*given)
        torch.cuda.synchronize()
        cuda.cudaProfilerStart()
        compiled(*given)
        torch.cuda.synchronize()
        cuda.cudaProfilerStop()
        said[name] = [(k.name, k.bytes_read, k.bytes_written) for k in kernels]
        del given
        torch.cuda.empty_cache()
    out.write_text(json.dumps(said))


def measured_on_card(names: list[str]) -> dict[str, dict[str, Any]]:
    """The same of all programs, by the card's counters."""
    found = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not Path(found).exists():
        raise SystemExit("ncu is not installed: it reads a card's counters")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "said.json"
        command = [found, "--profile-from-start", "off", "--clock-control", "none", "--csv", "--print-units", "base"]
        command += ["--metrics", ",".join(_COUNTERS), sys.executable, "-m", "benchmarks.roofline", "--child", str(out)]
        command += ["--only", ",".join(names)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not out.exists():
            raise SystemExit(f"ncu ended with {done.returncode}: {done.stdout[-600:]} {done.stderr[-400:]}")
        said = json.loads(out.read_text())
    lines = done.stdout.splitlines()
    head = next(k for k, line in enumerate(lines) if line.startswith('"ID"'))
    launches: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines[head:]):
        launch = launches.setdefault(row["ID"], {})
        launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        launch[row["Kernel Name"]] = 0.0
    left, rows = list(launches.values()), {}
    for name, kernels in said.items():
        own, left = left[: len(kernels)], left[len(kernels) :]
        assert all(kernel in launch for (kernel, _, _), launch in zip(kernels, own, strict=True)), (kernels, own)
        rows[name] = {
            "kernel": ", ".join(kernel for kernel, _, _ in kernels),
            "read": sum(read for _, read, _ in kernels), "written": sum(written for _, _, written in kernels),
            "counted_read": sum(launch[_COUNTERS[0]] for launch in own),
            "counted_written": sum(launch[_COUNTERS[1]] for launch in own),
            "seconds": sum(launch[_COUNTERS[2]] for launch in own) / 1e9,
        }  # fmt: skip
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", help="names, with commas")
    options.add_argument("--json", type=Path)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    wanted = [name for name in PROGRAMS if not chosen.only or name in chosen.only.split(",")]
    if chosen.child is not None:
        said_on_card(wanted, chosen.child)
        return
    if chosen.device == "cuda":
        _told(measured_on_card(wanted).items(), chosen.json)
        return
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed: it counts the lines that kernels bring into a cache")
    os.environ |= {"FUSELENS_CPU_ISA": "avx2", "OMP_NUM_THREADS": "1"}  # what valgrind knows
    os.environ["FUSELENS_CACHE_DIR"] = cache = tempfile.mkdtemp()  # what is cached would not be generated
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    torch.set_num_threads(1)
    _told(((name, measured(name)) for name in wanted), chosen.json)


def _told(measured: Iterable[tuple[str, dict[str, Any]]], json_file: Path | None) -> None:
    rows, near = {}, 0
    print(f"{'':20} {'said':>15} {'counted':>15}   ratio  read  written")
    for name, row in measured:
        rows[name] = row
        said, counted = row["read"] + row["written"], row["counted_read"] + row["counted_written"]
        row["ratio"] = ratio = said / counted
        near += abs(ratio - 1) <= 0.05
        parts = [
            f"{a / b:.3f}" if b else "–"
            for a, b in ((row["read"], row["counted_read"]), (row["written"], row["counted_written"]))
        ]
        print(f"{name:20} {said:15,.0f} {counted:15,.0f}   {ratio:.3f}  {'  '.join(parts)}", flush=True)
    print(f"{near} of {len(rows)} within 5 %")
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
