"""Which implementation computes a matrix product faster on this machine: measured once, and remembered on disk.

Two libraries in torch's wheel compute products of matrices in f32: the one that ATen calls (MKL, which takes a slow path
on some processors) and oneDNN, which also takes weights in its own layout. Products in half precision have slow loops
where the processor has no instructions for them: there a product in f32 of converted operands is faster. By default a few
shapes are measured once per machine, number of threads and version of torch, and a gain that they promise is confirmed by
measuring the product itself; under ``mode="max-autotune"``, and where a weight is frozen, each shape that is compiled is.
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
from .cache.store import Cache, key_of

Product = tuple[str, int, int, int]  # form, rows, columns, summed
Seconds = Mapping[str, float]  # implementation → seconds of one call
FORMS = ("forward", "plain", "transposed")  # x @ w.t(), x @ w, x.t() @ w of contiguous operands
CALIBRATED = ((8, 512, 256), (128, 512, 256))
CALIBRATED_HALF = ((8, 512, 256), (64, 512, 256))
BUDGET = 0.25  # seconds after which a calibration gives up (it takes 0.05): the machine is busy with something else
LONG = 0.05  # seconds after which a measurement is not repeated
OVERHEAD = 5e-6  # seconds by which a call of oneDNN costs more than ATen's library, whatever the shape
LEAST_WORK = 1 << 20  # multiplications from which it may pay to leave ATen's library
LEAST_WORK_HALF = 1 << 15  # and from which operands in half precision may be converted
LEAST_GAIN = 0.9  # part of ATen's time that another implementation must stay below


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
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
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
    end = time.perf_counter() + LONG
    for turn in range(rounds):
        if turn and time.perf_counter() > end:
            break
        for name, call in candidates.items():
            start = time.perf_counter()
            call()
            found[name] = min(found[name], time.perf_counter() - start)
    return found


def remembered(config: Config, question: Mapping[str, Any], measure: Callable[[], Any], *, again: bool = False) -> Any:
    """What ``measure`` found (JSON-ready) when this question was first asked on this machine. None is asked ``again``."""
    stored = None if again else recalled(config, question)
    if stored is not None:
        return stored
    with torch.no_grad(), torch_private.autocast_off():
        found = measure()
    if found is not None:
        Cache(config.cache_dir).put("measured", _key(question), json.dumps(found).encode(), ".json")
    return found


def recalled(config: Config, question: Mapping[str, Any]) -> Any:
    """What is remembered of ``question``, None without."""
    stored = Cache(config.cache_dir).get("measured", _key(question), ".json")
    return None if stored is None else json.loads(stored)


def _key(question: Mapping[str, Any]) -> str:
    return key_of({"question": question, **machine()})


def measured_product(product: Product, dtype: torch.dtype = torch.float32, frozen: bool = False) -> dict[str, float]:
    """Seconds that each implementation takes for a product of matrices, ``frozen`` for one by a weight that may be packed."""
    form, rows, columns, summed = product

    def matrix(m: int, n: int) -> torch.Tensor:
        return torch.full((m, n), 0.5, dtype=dtype, device="cpu")

    x = matrix(summed, rows).t() if form == "transposed" else matrix(rows, summed)
    w = matrix(columns, summed).t() if form == "forward" else matrix(summed, columns)
    linear = torch_private.ONEDNN_LINEAR
    candidates: dict[str, Callable[[], Any]] = {"aten": lambda: torch.mm(x, w)}
    if dtype != torch.float32:
        candidates["single"] = lambda: torch.mm(x.float(), w.float()).to(dtype)
        return least_seconds(candidates)
    candidates["onednn"] = lambda: linear(x, w.t(), None, "none", [], None)
    if frozen:
        packed = torch_private.ONEDNN_PACK_LINEAR(w.t(), rows)
        candidates["packed"] = lambda: linear(x, packed, None, "none", [], None)
    return least_seconds(candidates)


def measured_convolution(c: Any, pack: Callable[[torch.Tensor, Any], torch.Tensor]) -> dict[str, float]:
    """Seconds of a convolution (``rewrite.convolutions.Convolution``) as ATen calls it, and with its weight packed."""
    last, dtype = torch.channels_last, getattr(torch, c.dtype)
    x = torch.full(c.input, 0.5, dtype=dtype, device="cpu")
    x = x.contiguous(memory_format=last) if c.input_last else x
    w = torch.full(c.weight, 0.5, dtype=dtype, device="cpu")
    channels = c.weight[1] * c.groups if c.transposed else c.weight[0]
    b = torch.zeros(channels, dtype=dtype, device="cpu") if c.bias else None
    made, before, after = pack(w, c), (c.stride, c.dilation, c.groups), ("none", [], None)

    def call() -> torch.Tensor:
        if c.transposed:
            out = torch_private.ONEDNN_TRANSPOSED_CONVOLUTION(x, made, b, c.padding, c.output_padding, *before, *after)
        else:
            out = torch_private.ONEDNN_CONVOLUTION(x, made, b, c.padding, *before, *after)
        return out if c.output_last else out.contiguous()

    others = (c.stride, c.padding, c.dilation, c.transposed, c.output_padding, c.groups)
    return least_seconds({"aten": lambda: torch.convolution(x, w, b, *others), "packed": call})


def _calibration(dtype: torch.dtype = torch.float32) -> dict[str, list[tuple[int, int, dict[str, float]]]] | None:
    """form → (rows, multiplications, seconds of each implementation) of the calibrated shapes; None when it took too long."""
    end = time.perf_counter() + BUDGET
    half = dtype != torch.float32
    forms = FORMS[:1] if half else FORMS
    table: dict[str, list[tuple[int, int, dict[str, float]]]] = {form: [] for form in forms}
    for shape in CALIBRATED_HALF if half else CALIBRATED:
        for form in forms:
            table[form].append((shape[0], math.prod(shape), measured_product((form, *shape), dtype)))
            if time.perf_counter() > end:
                return None
    return table


@functools.lru_cache(maxsize=16)
def _table(config: Config, threads: int, dtype: torch.dtype = torch.float32) -> Any:
    """The calibration of this machine, made when a process first asks for it."""
    del threads  # part of the key, as of the one on disk
    shapes = CALIBRATED if dtype == torch.float32 else CALIBRATED_HALF
    return remembered(config, {"calibration": shapes, "dtype": str(dtype)}, lambda: _calibration(dtype))


class Libraries:
    """Compares the implementations of a product: by the calibration, or by measuring that very product where its weight
    is frozen and with ``exhaustive``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.exhaustive = config.mode.startswith("max-autotune")

    def seconds(self, product: Product, frozen: bool = False) -> Seconds | None:
        """The time of "aten" and "onednn", and "packed" if ``frozen``, for a product in f32; None where nothing speaks
        for leaving ATen."""
        _, rows, columns, summed = product
        work = rows * columns * summed
        if not available() or not work or (work < LEAST_WORK and not self.exhaustive):
            return None
        if not (self.exhaustive or frozen):
            found = self._predicted(product, torch.float32)
            if found is None:
                return None
            seconds, scale = found
            aten, onednn = seconds["aten"] * scale, max(seconds["onednn"] - OVERHEAD, 0.0) * scale + OVERHEAD
            if onednn >= LEAST_GAIN * aten or aten > LONG / 4:
                return {"aten": aten, "onednn": onednn}
        question = {"product": product, "frozen": frozen}
        return remembered(self.config, question, lambda: measured_product(product, frozen=frozen))

    def convolution_seconds(self, convolution: Any, pack: Callable[[torch.Tensor, Any], torch.Tensor]) -> Seconds:
        """The time of "aten" and of "packed" for a convolution with a frozen weight, measured."""
        question = {"convolution": convolution._asdict()}
        return remembered(self.config, question, lambda: measured_convolution(convolution, pack))

    def half_seconds(self, product: Product, dtype: torch.dtype) -> Seconds | None:
        """The time of "aten", and of "single" with converted operands, for a product in half precision."""
        _, rows, columns, summed = product
        if rows * columns * summed < LEAST_WORK_HALF:
            return None
        found = self._predicted(product, dtype)
        return None if found is None else {name: t * found[1] for name, t in found[0].items()}

    def _predicted(self, product: Product, dtype: torch.dtype) -> tuple[dict[str, float], float] | None:
        """The seconds of the calibrated product with the most similar number of rows, and how much more work this one is."""
        form, rows, *others = product
        table = _table(self.config, torch.get_num_threads(), dtype)
        if table is None:
            return None
        near = min(table.get(form, table["forward"]), key=lambda row: abs(math.log2(row[0] / rows)))
        return near[2], rows * math.prod(others) / near[1]
