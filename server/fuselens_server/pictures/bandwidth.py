"""How fast this machine copies memory: the limit of kernels that compute little, which share bars are measured against."""

from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor

SIZE = 64 << 20  # bytes that are copied: more than caches hold
TIMES = 4  # the first of which has the system hand out the memory


def copied_bytes_per_second() -> float:
    """Bytes read and written in a second by a copy on all cores that this process may use, the fastest of a few."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    source, target = ctypes.create_string_buffer(SIZE), ctypes.create_string_buffer(SIZE)
    part = SIZE // cores
    pieces = [(ctypes.addressof(target) + k * part, ctypes.addressof(source) + k * part, part) for k in range(cores)]

    def once() -> float:
        start = time.perf_counter()
        list(pool.map(lambda piece: ctypes.memmove(*piece), pieces))  # which lets the other threads run
        return time.perf_counter() - start

    with ThreadPoolExecutor(cores) as pool:
        return 2 * part * cores / min(once() for _ in range(TIMES))
