"""How long calls take on a card that are alternatives to each other: in turns, by its own clock, and remembered on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ... import torch_private
from ...config import Config
from .. import measure

ROUNDS = 5
BUSY = 400_000  # cycles, 0.2 ms: what is measured is launched meanwhile, so that it does not wait for the host


def remembered_in_turns(
    question: Mapping[str, Any], calls: Callable[[], Sequence[Callable[[], Any]]], config: Config, device: torch.device
) -> list[float] | None:
    """Seconds of one call of each, measured when this question was first asked about such a card. None where it cannot be measured
    now: a recording is under way, no memory is left for it, or the library has no such operator."""
    question = {**question, "card": torch.cuda.get_device_name(device)}
    known = measure.recalled(config, question)
    if known is not None or torch.cuda.is_current_stream_capturing():
        return known

    def measured() -> list[float] | None:
        try:
            return measured_in_turns(calls(), device)
        except RuntimeError:
            return None

    return measure.remembered(config, question, measured)


def measured_in_turns(calls: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """The least seconds of one call of each, after one that does not count: whatever else the card does meanwhile makes a call
    longer, never shorter. Raises what a call raises."""
    for call in calls:
        call()  # libraries choose algorithms
    times: list[list[float]] = [[] for _ in calls]
    events = []
    for _ in range(ROUNDS):
        for k, call in enumerate(calls):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch_private.occupy(BUSY)
            start.record()
            call()
            end.record()
            events.append((k, start, end))
    torch.cuda.synchronize(device)
    for k, start, end in events:
        times[k].append(1e-3 * start.elapsed_time(end))
    return [min(t) for t in times]
