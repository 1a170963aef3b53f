"""What a ledger heard, as the memory of one step: its peak, what is held then, and where it was made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..record.report import Held, MemoryPoint, Span, StepMemory
from .allocator import Caching, Exact
from .ledger import Block, Ledger

PHASES = ("forward", "backward", "optimizer")
_POINTS = 240  # of a curve


@dataclass(frozen=True, slots=True)
class Window:
    """The events of a ledger that are one step's."""

    first: int
    last: int


def step_memory(ledger: Ledger, window: Window, **about: Any) -> StepMemory:
    """The memory of the step in ``window``; ``about`` are the other fields."""
    allocator = Caching() if ledger.architecture else Exact()
    alive: dict[int, None] = {}
    begun: set[int] = set()
    peak, at = -1, window.first
    phases: dict[str, int] = {}
    points: list[MemoryPoint] = []
    for position, event in enumerate(ledger.events[: window.last]):
        number = abs(event)
        block = ledger.blocks[number - 1]
        if event < 0:
            allocator.free(number)
            continue
        allocator.allocate(number, block.bytes)
        if position < window.first:
            continue
        now = allocator.allocated
        if block.phase in PHASES:
            phases[block.phase] = max(phases.get(block.phase, 0), now)
            points.append(MemoryPoint(block.phase, now, _place(block)))
        if now > peak:
            peak, at = now, position
    if peak < 0:  # nothing is allocated: what is there is held
        peak = allocator.allocated
    for event in ledger.events[: at + 1]:
        if event > 0:
            alive[event] = None
        else:
            alive.pop(-event, None)
    begun.update(alive)
    made = ledger.blocks[ledger.events[at] - 1] if at < len(ledger.events) and ledger.events[at] > 0 else None
    kinds = _kinds(ledger, window, at)
    held = _held(ledger.blocks, alive, kinds)
    sums: dict[str, int] = defaultdict(int)
    for one in held:
        sums[one.kind] += one.bytes
    rest = peak - sum(sums.values())
    if rest > 0 and ledger.architecture:
        sums["rounding"] = rest
    return StepMemory(
        peak=peak,
        phase=made.phase if made is not None and made.phase in PHASES else "forward",
        span=None if made is None else _place(made),
        what="" if made is None else made.what,
        reserved=allocator.reserved,
        phases={p: phases[p] for p in PHASES if p in phases},
        kinds=dict(sorted(sums.items(), key=lambda item: -item[1])),
        held=tuple(held),
        curve=tuple(_thinned(points)),
        seconds=ledger.seconds,
        **about,
    )


def _kinds(ledger: Ledger, window: Window, at: int) -> Mapping[int, str]:
    """What blocks are for that are held at the event ``at``, where the ledger was not told: by when they were made and freed."""
    backwards = [
        position for position in range(window.first, window.last)
        if (event := ledger.events[position]) > 0 and ledger.blocks[event - 1].phase == "backward"
    ]  # fmt: skip
    backward, after = (backwards[0], backwards[-1]) if backwards else (window.last, window.last)
    freed = {-event: position for position, event in enumerate(ledger.events) if event < 0}
    made = {event: position for position, event in enumerate(ledger.events) if event > 0}
    found: dict[int, str] = {}
    for number, block in enumerate(ledger.blocks, start=1):
        end = freed.get(number, len(ledger.events))
        if block.kind or not made.get(number, at + 1) <= at < end:
            continue
        if block.phase == "before":
            found[number] = "other tensors"
        elif block.phase == "optimizer" and made[number] < window.first:
            found[number] = "optimizer state"
        elif block.phase == "backward" and end > after:
            found[number] = "gradients"
        elif block.phase == "forward" and backward < end and made[number] < backward:
            found[number] = "saved for backward"
        else:
            found[number] = "temporary"
    return found


def _held(blocks: list[Block], alive: Mapping[int, None], kinds: Mapping[int, str]) -> list[Held]:
    """By kind and line, the most first."""
    sums: dict[tuple[str, Any], int] = defaultdict(int)
    most: dict[tuple[str, Any], Block] = {}
    for number in alive:
        block = blocks[number - 1]
        kind = block.kind or kinds.get(number, "temporary")
        place = _place(block) if kind in ("saved for backward", "temporary") else None
        key = kind, None if place is None else (place.file, place.line)
        sums[key] += block.bytes
        if key not in most or most[key].bytes < block.bytes:
            most[key] = block
    found = [
        Held(kind, count, _place(most[kind, line]) if line else None, most[kind, line].what if line else "")
        for (kind, line), count in sums.items() if count
    ]  # fmt: skip
    return sorted(found, key=lambda h: -h.bytes)


def _place(block: Block) -> Span | None:
    return block.spans[0] if block.spans else None


def _thinned(points: list[MemoryPoint]) -> list[MemoryPoint]:
    """Not more than a picture shows: of neighbours of a phase the highest."""
    if len(points) <= _POINTS:
        return points
    width = -(-len(points) // _POINTS)
    groups = (points[k : k + width] for k in range(0, len(points), width))
    return [point for group in groups for phase in dict.fromkeys(p.phase for p in group)
            for point in [max((p for p in group if p.phase == phase), key=lambda p: p.bytes)]]  # fmt: skip
