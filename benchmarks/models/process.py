"""One system in a process of its own, with many programs one after the other: it does what standard input says, a line at a time.

    python -m benchmarks.models.process SYSTEM

``prepare NAME`` makes a program, calls it eagerly and compiled, and compares; ``queued`` and ``single`` take a turn; ``drop``
forgets it. Each answers with a line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from typing import Any

import torch

from benchmarks.gpu_process import Turns
from benchmarks.gpu_workloads import SYSTEMS, Call

from .families import Program, made

ALLOWED = {torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 4e-2}  # relative, in the norm of all elements
AS_CLOSE = 1.5  # times eager's own error


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a result, in order, inside of what holds them."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def distances(one: Any, other: Any) -> list[float]:
    """The relative distance of each tensor from that of ``one``; infinite where the results do not correspond.

    Distances are in the norm of all elements. Integers have none: which of two close ones is the largest is no error.
    """
    a, b = tensors(one), tensors(other)
    if [x.shape for x in a] != [x.shape for x in b]:
        return [float("inf")] * max(len(a), 1)
    found = []
    for x, y in zip(a, b, strict=True):
        if not x.dtype.is_floating_point:
            found.append(0.0)
            continue
        x, y = x.double(), y.double()
        same_places = torch.equal(x.isfinite(), y.isfinite())
        x, y = x.nan_to_num(0, 0, 0), y.nan_to_num(0, 0, 0)
        found.append((x - y).norm().item() / (x.norm().item() or 1.0) if same_places else float("inf"))
    return found


def agrees(program: Program, call: Call, eager: Any, result: Any, far: list[float]) -> bool | None:
    """``eager`` is what ``call``, uncompiled, gave; ``far``: how far each tensor of the result is from it.
    None for a program that draws random numbers: each call gives others.

    The results have the same dtypes, and each tensor is close to eager's, or as close as eager's to a computation
    in a wider precision: rounding in a half precision leads two right results far apart where they are chosen by it.
    """
    if [x.dtype for x in tensors(eager)] != [x.dtype for x in tensors(result)]:
        return False
    allowed = max(ALLOWED.get(t.dtype, 1e-3) for t in [*tensors(eager), torch.empty(0)])
    allowed = max(allowed, 1e-2 if program.tf32 or program.standard else 0)
    if max(far, default=0.0) <= allowed:
        return True
    torch.manual_seed(1)
    if max(distances(eager, call()), default=0.0) > allowed:
        return None
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    exact = program.call(lambda fn: fn, exact=True)()
    program.set_precision()
    errors = zip(far, distances(exact, eager), distances(exact, result), strict=True)
    return all(apart <= allowed or own <= AS_CLOSE * eagers for apart, eagers, own in errors)


class Session:
    def __init__(self, system: str) -> None:
        self.system = system
        self.wrap = SYSTEMS[system]()
        self.turns: Turns | None = None

    def prepare(self, name: str) -> dict[str, Any]:
        program: Program = made(name)
        program.set_precision()
        call = uncompiled = program.call(lambda fn: fn)
        eager = uncompiled()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        if self.system != "eager":
            call = program.call(self.wrap)
        start = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        far = distances(eager, result)
        agreed = agrees(program, uncompiled, eager, result, far)
        del uncompiled, eager, result
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        memory = torch.cuda.max_memory_allocated() - before
        self.turns = Turns(call)
        return {
            "first": first,
            "distance": max(far, default=0.0),
            "agrees": agreed,
            "memory": memory,
        }

    def answer(self, words: list[str]) -> dict[str, Any]:
        if words[0] == "prepare":
            return self.prepare(words[1])
        if words[0] == "drop":
            self.turns = None
            self.forget()
            return {}
        assert self.turns is not None, "prepare comes first"
        return {"ms": self.turns.queued() if words[0] == "queued" else self.turns.single()}

    def forget(self) -> None:
        if self.system.startswith("peer"):
            torch._dynamo.reset()
        elif self.system.startswith("own"):
            import fuselens

            fuselens.reset()
        gc.collect()
        torch.cuda.empty_cache()


def main(system: str) -> None:
    warnings.simplefilter("ignore")
    session = Session(system)
    torch.empty(1, device="cuda")
    print(json.dumps({"card": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        try:
            answer = session.answer(line.rstrip("\n").split(" ", 1))
        except Exception as error:  # noqa: BLE001 - whatever a program or a compiler does, the next one is measured
            answer = {"problem": f"{type(error).__name__}: {error}"[:300]}
            session.turns = None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
