"""Memory that recordings share, and when a recording may run in it.

All recordings of a stream take their memory from few pools of torch's allocator. What lies in a pool are results; the rest
is scratch, which every recording of the pool may write. A recording never writes what was held while it was made, for the
allocator did not give it away. All else that the pool had by then it may write, results of other recordings included:
it may run when nobody holds results there.

Results belong to the allocator (*owned*) until the next recording is made: what nobody holds then is given back, so that
sizes of a graph, and graphs that take turns, lie in the same memory. From then on results there are *lent*: tensors over
an address that only we know to be in use. While somebody holds those, no recording is made in that pool, but in another.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ... import torch_private

Range = tuple[int, int]  # of addresses, the second exclusive
_GRAIN = 512  # the allocator's: what it gives away begins and ends at multiples
_serials = itertools.count()


@dataclass(slots=True)
class Block:
    """Memory of one or more results of a recording."""

    storage: torch.UntypedStorage
    start: int
    end: int
    positions: tuple[int, ...]  # of the results that lie here
    owned: bool = True


class Part:
    """A recording's part of a pool: its results, and where it writes."""

    def __init__(self, results: list[Any], graph: Any = None) -> None:
        self.results = results
        self.graph: Any = graph  # what keeps the pool's memory from being given back
        self.writes: list[Range] = []
        self.blocks = list(_blocks(results))
        self.recording: Callable[[], Any] = _nobody
        self.dropped = False
        self.serial = next(_serials)
        self._conflicts: dict[int, list[int]] = {}
        self._storages = [b.storage._cdata for b in self.blocks]
        self._uses = list(map(torch_private.STORAGE_USES, self._storages))

    def held(self) -> list[Block]:
        """The blocks that somebody else refers to."""
        now = list(map(torch_private.STORAGE_USES, self._storages))
        if now == self._uses:
            return []
        return [b for b, count, alone in zip(self.blocks, now, self._uses, strict=True) if count != alone]

    def overwrites(self, other: Part) -> list[int]:
        """Which blocks of ``other`` this recording writes to."""
        found = self._conflicts.get(other.serial)
        if found is None:
            found = [k for k, b in enumerate(other.blocks) if _overlaps(self.writes, b.start, b.end)]
            self._conflicts[other.serial] = found
        return found

    def held_of(self, which: Sequence[int]) -> list[Block]:
        if len(which) == len(self.blocks):
            return self.held()
        uses = torch_private.STORAGE_USES
        return [self.blocks[k] for k in which if uses(self._storages[k]) != self._uses[k]]

    def intact(self) -> bool:
        """Whether results are where they were: who holds one may resize its storage."""
        return [b.storage.data_ptr() for b in self.blocks] == [b.start for b in self.blocks]

    def lend(self) -> None:
        """Gives blocks that nobody holds back to the allocator; their results become tensors over the address."""
        held = {b.start for b in self.held()}
        for block in self.blocks:
            if block.owned and block.start not in held:
                lent = torch_private.storage_over(block.start, block.end - block.start, block.storage.device)
                for k in block.positions:
                    self.results[k] = _moved(self.results[k], lent)
                block.storage, block.owned = lent, False
        uses = dict(zip((b.start for b in self.blocks), self._uses, strict=True))
        self._storages = [b.storage._cdata for b in self.blocks]
        now = map(torch_private.STORAGE_USES, self._storages)
        self._uses = [uses[b.start] if b.start in held else n for b, n in zip(self.blocks, now, strict=True)]

    def drop(self) -> None:
        """The recording will not run again: lets go of it, unless somebody holds its results."""
        self.dropped = True
        if not self.held():
            self.blocks, self.results, self.graph, self._storages, self._uses = [], [], None, [], []


class Pool:
    """A pool of the allocator, known by ``handle``. ``out`` are parts whose results may be held.

    ``kept`` says for whom: for recordings whose results are held while others run. Apart, they are in nobody's way.
    """

    def __init__(self, handle: Any, kept: bool = False) -> None:
        self.handle = handle
        self.kept = kept
        self.parts: list[Part] = []
        self.out: dict[Part, None] = {}
        self.segments: list[Range] = []
        self.full = False  # no more recordings are made here
        self.closed = False  # and none runs
        self.streams: list[tuple[int, int, Any]] = []  # ranges that other streams were said to use
        self.used = 0  # when one ran last: the larger the later

    @property
    def bytes(self) -> int:
        return sum(end - start for start, end in self.segments)

    def sweep(self) -> None:
        """Forgets recordings that are gone and whose results are."""
        for part in self.parts:
            if part.dropped or part.recording() is None:
                part.drop()
        self.parts = [p for p in self.parts if p.graph is not None]
        self.out = {p: None for p in self.out if p.graph is not None}

    def open(self) -> bool:
        """Whether a recording can be made here: nobody holds what the allocator would give away."""
        if self.full or not all(p.intact() for p in self.parts):
            return False
        return not any(not b.owned for p in self.parts for b in p.held())

    def give_back(self) -> list[Range]:
        """Before a recording is made: gives back what nobody holds. Returns what is held."""
        for part in self.parts:
            part.lend()
        return [(b.start, _up(b.end)) for p in self.parts for b in p.blocks if b.owned]

    def add(
        self, part: Part, kept: Iterable[Range], segments: Iterable[Range], recording: Any,
        gone: Callable[[Any], None] | None = None,
    ) -> None:  # fmt: skip
        """``part`` was made while ``kept`` was held; the pool has these segments now. ``gone`` is called when the recording
        dies. Raises ValueError for results that lie elsewhere."""
        self.segments = _merged(segments)
        if not all(_inside(self.segments, b.start, b.end) for b in part.blocks):
            raise ValueError("a result is not in memory of its own")
        part.writes = _without(self.segments, _merged(kept))
        part.recording = weakref.ref(recording, gone)
        self.parts.append(part)
        self.used = next(_serials)

    def handed_out(self, part: Part) -> None:
        """Results of ``part`` may be held from now on."""
        self.out[part] = None
        self.used = next(_serials)

    def streams_of(self, part: Part) -> list[Any]:
        """The streams that used what ``part`` is going to write over, which nobody holds any more."""
        found = [note for note in self.streams if _overlaps(part.writes, *note[:2])]
        self.streams = [note for note in self.streams if note not in found]
        return [stream for _, _, stream in found]

    def in_the_way(self, part: Part) -> Iterator[tuple[Part, list[Block]]]:
        """Whose held results, perhaps its own, ``part`` would write over."""
        for other in tuple(self.out):
            if which := part.overwrites(other):
                if held := other.held_of(which):
                    yield other, held
                elif not other.held():
                    self.out.pop(other, None)

    def close(self) -> None:
        """No recording of this pool runs again; results stay what they are for as long as they are held."""
        self.full = self.closed = True
        for part in self.parts:
            part.drop()


@dataclass(slots=True)
class Group:
    """The pools of one stream of a device. Whoever looks whether a recording may run, and runs it, has the lock."""

    device: int
    stream: int
    new_handle: Callable[[], Any]
    side: Any = None  # the stream on which recordings are made
    pools: list[Pool] = field(default_factory=list)
    left: bool = False  # whether a recording died since the pools were looked at
    lock: Any = field(default_factory=threading.Lock)

    def pool(self, kept: bool = False) -> Pool:
        """Where the next recording is made."""
        self.sweep()
        found = next((p for p in self.pools if p.kept == kept and p.open()), None)
        if found is None:
            found = Pool(self.new_handle(), kept)
            self.pools.append(found)
        return found

    def sweep(self) -> None:
        self.left = False
        for pool in self.pools:
            pool.sweep()
        self.pools = [p for p in self.pools if p.parts]

    def has(self, address: int) -> bool:
        return any(_inside(p.segments, address, address + 1) for p in self.pools)

    def used_by(self, tensor: torch.Tensor, stream: Any) -> None:
        """A program says that ``stream`` uses ``tensor``, and may let go of it before that has ended."""
        storage = tensor.untyped_storage()
        start, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        for pool in self.pools:
            if _overlaps(pool.segments, start, end):
                pool.streams.append((start, end, stream))

    def gone(self, _: Any = None) -> None:
        """A recording died. Who is at work with the pools then is left to look."""
        self.left = True
        if self.lock.acquire(blocking=False):
            try:
                self.sweep()
            finally:
                self.lock.release()

    @property
    def bytes(self) -> int:
        return sum(p.bytes for p in self.pools)


def _nobody() -> None:
    return None


def _blocks(results: Sequence[Any]) -> Iterator[Block]:
    found: dict[int, tuple[torch.UntypedStorage, list[int]]] = {}
    for k, r in enumerate(results):
        if type(r) is torch.Tensor:
            storage = r.untyped_storage()
            found.setdefault(storage._cdata, (storage, []))[1].append(k)
    for storage, positions in found.values():
        if storage.nbytes():
            yield Block(storage, storage.data_ptr(), storage.data_ptr() + storage.nbytes(), tuple(positions))


def _moved(result: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    with torch.inference_mode(result.is_inference()):
        made = torch.empty(0, dtype=result.dtype, device=result.device)
        made.set_(storage, result.storage_offset(), result.shape, result.stride())  # type: ignore[call-overload]
    return made


# --- ranges of addresses


def _up(address: int) -> int:
    return -(-address // _GRAIN) * _GRAIN


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """In order, neighbours as one."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _without(ranges: Sequence[Range], taken: Sequence[Range]) -> list[Range]:
    """What is left of ``ranges``; both merged."""
    found: list[Range] = []
    for start, end in ranges:
        for low, high in taken:
            if low < end and start < high:
                if start < low:
                    found.append((start, low))
                start = max(start, high)
        if start < end:
            found.append((start, end))
    return found


def _overlaps(ranges: Sequence[Range], start: int, end: int) -> bool:
    k = bisect_right(ranges, (start, start))
    return (k > 0 and ranges[k - 1][1] > start) or (k < len(ranges) and ranges[k][0] < end)


def _inside(ranges: Sequence[Range], start: int, end: int) -> bool:
    k = bisect_right(ranges, (start + 1,))
    return k > 0 and ranges[k - 1][0] <= start and end <= ranges[k - 1][1]
