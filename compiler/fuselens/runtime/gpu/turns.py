"""How long calls take on a card that are alternatives to each other: in turns, by its own clock."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

ROUNDS = 5


def measured_in_turns(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """Median seconds of one call of each, after one that does not count. Raises what a call raises."""
    for call in calls:
        call()  # libraries choose algorithms
    times: list[list[float]] = [[] for _ in calls]
    events = []
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            events.append((k, start, end))
    torch.cuda.synchronize(device)
    for k, start, end in events:
        times[k].append(1e-3 * start.elapsed_time(end))
    return [statistics.median(t) for t in times]
