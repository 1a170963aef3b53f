"""One system with one workload on a GPU, in a process of its own: it does what standard input says, a line at a time.

    python -m benchmarks.gpu_process WORKLOAD SYSTEM

``prepare`` compiles and makes some calls; ``queued`` and ``single`` take a turn; each answers with a line of JSON. A copy of
1 GiB is the workload ``copy``, whose only system is eager.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch

from .gpu_workloads import MORE, SYSTEMS, WORKLOADS, Call, Compile, Workload

TURN_SECONDS = 0.02
MOST_CALLS = 30  # of a queued turn; fewer where the driver's queue, which is short, has no room for all their kernels
SINGLE_CALLS = 10
IDLE = 1e-3  # seconds that a process may take longer than before, when it has its next turn
LONGEST = 0.5  # seconds that the card may wait, at most: some calls wait for the card
CYCLES = 2e9  # a second, of the card's clock: not exactly, for the wait only has to be long enough


def copy(wrap: Compile) -> Call:
    a, b = (torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(2))
    return lambda: b.copy_(a)


ALL = WORKLOADS | MORE | {"copy": Workload(copy, 2 << 30)}


class Turns:
    """A compiled workload and how it is timed."""

    def __init__(self, call: Call) -> None:
        self.call = call
        for _ in range(5):
            call()
        torch.cuda.synchronize()
        once = statistics.median(self.singles(3))
        self.calls = max(1, min(MOST_CALLS, round(TURN_SECONDS / once)))
        start = time.perf_counter()
        for _ in range(self.calls):
            call()
        self.host = time.perf_counter() - start
        torch.cuda.synchronize()

    def queued(self) -> float:
        """Milliseconds a call, of calls that are all waiting when the card begins with the first: the host costs nothing."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        wait = 1.5 * self.host + IDLE
        while True:
            torch.cuda._sleep(int(wait * CYCLES))
            self.call()  # whatever an idle card, or an idle process, needs to get going
            start.record()
            for _ in range(self.calls):
                self.call()
            waited = not start.query()
            end.record()
            end.synchronize()
            if waited or (self.calls == 1 and wait > LONGEST):
                return start.elapsed_time(end) / self.calls
            # the card began before the host was done: the driver's queue was full, or others use the machine, too
            self.calls = max(1, self.calls // 2)
            wait *= 2

    def singles(self, calls: int) -> list[float]:
        """Seconds from each call until the card has done it, with nothing else under way."""
        found = []
        for _ in range(calls):
            torch.cuda.synchronize()
            start = time.perf_counter()
            self.call()
            torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
        return found

    def single(self) -> float:
        return 1e3 * statistics.median(self.singles(SINGLE_CALLS))


def main(name: str, system: str) -> None:
    wrap = SYSTEMS[system]()
    call = ALL[name].make(wrap)
    torch.cuda.synchronize()
    turns: Turns | None = None
    say(card=torch.cuda.get_device_name(), torch=torch.__version__)
    for line in sys.stdin:
        if line.strip() == "prepare":
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            first = time.perf_counter() - start
            turns = Turns(call)
            say(first=first)
        else:
            assert turns is not None, "prepare comes first"
            say(ms=turns.queued() if line.strip() == "queued" else turns.single())


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
