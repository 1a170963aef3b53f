"""Which library computes a matrix product faster on this machine: measured once, and remembered on disk.

Two libraries in torch's wheel compute products of matrices in f32: the one that ATen calls (MKL, which takes a slow path
on some processors) and oneDNN. By default a few shapes are measured once per machine, number of threads and version of
torch; under ``mode="max-autotune"`` each shape that is compiled.
"""

from __future__ import annotations

import functools
import json
import math
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import torch_private
from ..config import Config
from .cache import Cache, key_of

Product = tuple[str, int, int, int]  # form, rows, columns, summed
Seconds = tuple[float, float]  # ATen's, oneDNN's
FORMS = ("forward", "plain", "transposed")  # x @ w.t(), x @ w, x.t() @ w of contiguous operands
CALIBRATED = ((8, 512, 256), (128, 512, 256))
BUDGET = 0.25  # seconds after which a calibration gives up (it takes 0.05): the machine is busy with something else
OVERHEAD = 10e-6  # seconds by which a call of oneDNN's operator costs more than ATen's, whatever the shape
LEAST_WORK = 1 << 20  # multiplications from which it may pay to leave ATen's library
LEAST_GAIN = 0.9  # part of ATen's time that oneDNN must stay below


def available() -> bool:
    """Whether torch was built with oneDNN, and may use it."""
    built = torch.backends.mkldnn.is_available() and torch_private.ONEDNN_LINEAR is not None
    return built and bool(torch.backends.mkldnn.enabled)


def machine() -> dict[str, Any]:
    """What measured times depend on, besides the question."""
    return {
        "processor": _processor(), "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    family = [line.partition(":")[2].strip() for line in lines if line.startswith(("cpu family", "model\t"))][:2]
    return " ".join([model or platform.processor() or platform.machine(), *family])


def least_seconds(candidates: Mapping[str, Callable[[], Any]], rounds: int = 5) -> dict[str, float]:
    """The least time of one call of each, taking turns, after one call that does not count."""
    for call in candidates.values():
        call()
    found = dict.fromkeys(candidates, math.inf)
    for _ in range(rounds):
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - start)
    return found


def remembered(config: Config, question: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
    """What ``measure`` found (JSON-ready) when this question was first asked on this machine. None is asked again."""
    cache = Cache(config.cache_dir)
    key = key_of({"question": question, **machine()})
    stored = cache.get("measured", key, ".json")
    if stored is not None:
        return json.loads(stored)
    with torch.no_grad(), torch_private.autocast_off():
        found = measure()
    if found is not None:
        cache.put("measured", key, json.dumps(found).encode(), ".json")
    return found


def measured_product(product: Product) -> Seconds:
    """Seconds that ATen and oneDNN take for a product of f32 matrices."""
    form, rows, columns, summed = product

    def matrix(m: int, n: int) -> torch.Tensor:
        return torch.full((m, n), 0.5, dtype=torch.float32, device="cpu")

    x = matrix(summed, rows).t() if form == "transposed" else matrix(rows, summed)
    w = matrix(columns, summed).t() if form == "forward" else matrix(summed, columns)
    linear = torch_private.ONEDNN_LINEAR
    found = least_seconds({"aten": lambda: torch.mm(x, w), "onednn": lambda: linear(x, w.t(), None, "none", [], "")})
    return found["aten"], found["onednn"]


def _calibration() -> dict[str, list[tuple[int, int, float, float]]] | None:
    """form → (rows, multiplications, ATen's and oneDNN's seconds) of the calibrated shapes; None when it took too long."""
    end = time.perf_counter() + BUDGET
    table: dict[str, list[tuple[int, int, float, float]]] = {form: [] for form in FORMS}
    for shape in CALIBRATED:
        for form in FORMS:
            table[form].append((shape[0], math.prod(shape), *measured_product((form, *shape))))
            if time.perf_counter() > end:
                return None
    return table


@functools.lru_cache(maxsize=16)
def _table(config: Config, threads: int) -> Any:
    """The calibration of this machine, made when a process first asks for it."""
    del threads  # part of the key, as of the one on disk
    return remembered(config, {"calibration": CALIBRATED}, _calibration)


class Libraries:
    """Compares the libraries for a product: by the calibration, or with ``exhaustive`` by measuring that very product."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.exhaustive = config.mode.startswith("max-autotune")

    def seconds(self, product: Product) -> Seconds | None:
        """ATen's and oneDNN's time, measured or predicted; None where nothing speaks for leaving ATen."""
        form, rows, columns, summed = product
        work = rows * columns * summed
        if not available() or not work:
            return None
        if self.exhaustive:
            question = {"product": product}
            first, second = remembered(self.config, question, lambda: measured_product(product))
            return first, second
        if work < LEAST_WORK:
            return None
        table = _table(self.config, torch.get_num_threads())
        if table is None:
            return None
        _, measured, aten, onednn = min(table[form], key=lambda row: abs(math.log2(row[0] / rows)))
        scale = work / measured
        return aten * scale, max(onednn - OVERHEAD, 0.0) * scale + OVERHEAD
