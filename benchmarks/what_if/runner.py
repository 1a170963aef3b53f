"""One process of the benchmark: calls the function of one file as its ``case()`` does, and says what that took."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import sys
import time
from ctypes import CDLL
from pathlib import Path
from typing import Any

_WARM = 5
_SHORTEST = 2e-3  # seconds of calls in one measurement


def _case(path: str, rows: int = 1) -> Any:
    import torch

    torch.manual_seed(0)
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["program"] = module
    spec.loader.exec_module(module)
    return module.case(rows) if rows > 1 else module.case()


def _used() -> float:
    return sum(os.times()[:4])


def _first(path: str) -> float:
    """The processor time of all calls of the program, in a process that has compiled something else before."""
    import torch

    import fuselens

    fuselens.compile(lambda x: x * 3 + 1)(torch.ones(7))
    call = _case(path)
    begin = _used()
    call()
    return _used() - begin


def _time(call: Any) -> float:
    count, start = 0, time.thread_time()
    while not count or time.thread_time() - start < _SHORTEST:
        call()
        count += 1
    return (time.thread_time() - start) / count


def _held(path: str) -> float:
    """What a call holds at most. Freed memory is given back from the start, so that no gaps count."""
    from fuselens.runtime import memory
    from fuselens.runtime.program import without_pool

    memory.keep_freed()
    with contextlib.ExitStack() as exact:
        exact.enter_context(memory.given_back())
        call = _case(path)
        for _ in range(_WARM):
            call()
        exact.enter_context(without_pool())
        call()
        gc.collect()
        CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_bytes(b"5")
        before = _status("VmRSS")
        call()
        return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    what, path, *more = sys.argv[1:]
    if what == "first":
        print(_first(path))
        return
    if what == "bytes":
        print(_held(path))
        return
    call = _case(path, int(more[0]))
    for _ in range(_WARM):
        call()
    for _ in sys.stdin:
        print(_time(call), flush=True)


if __name__ == "__main__":
    main()
