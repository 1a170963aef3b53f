"""How many bytes allocations take: as asked for on the CPU, in blocks of torch's caching allocator on a GPU.

The numbers of the caching allocator are those of ``c10/cuda/CUDACachingAllocator.cpp``: sizes are multiples of 512 bytes; up to
1 MiB they come from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, and larger ones have segments of their own, in
multiples of 2 MiB. The smallest free block that is large enough is taken, and what is left over becomes a block where that is
512 bytes, or more than 1 MiB among large ones; else it counts as allocated. Freed neighbours become one.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

_UNIT = 512
_SMALL, _SMALL_SEGMENT = 1 << 20, 2 << 20
_MIDDLE, _MIDDLE_SEGMENT = 10 << 20, 20 << 20
_ROUND = 2 << 20


class Exact:
    """Bytes as they are asked for."""

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved: int | None = None
        self._sizes: dict[int, int] = {}

    def allocate(self, number: int, count: int) -> None:
        self._sizes[number] = count
        self.allocated += count

    def free(self, number: int) -> None:
        self.allocated -= self._sizes.pop(number)


@dataclass(slots=True, eq=False)
class _Block:
    segment: int
    start: int
    size: int
    small: bool
    before: _Block | None = None
    after: _Block | None = None
    free: bool = False

    @property
    def key(self) -> tuple[int, int, int]:
        return self.size, self.segment, self.start


class Caching:
    """Blocks of the caching allocator of one stream, which starts empty and gives nothing back to the driver."""

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved: int | None = 0
        self._segments = 0
        self._free: dict[bool, list[tuple[tuple[int, int, int], _Block]]] = {True: [], False: []}
        self._used: dict[int, _Block] = {}

    def allocate(self, number: int, count: int) -> None:
        size = max(_UNIT, -(-count // _UNIT) * _UNIT) if count else 0
        if not size:
            return
        small = size <= _SMALL
        block = self._found(size, small)
        left = block.size - size
        if left >= _UNIT if small else left > _SMALL:
            rest = _Block(block.segment, block.start + size, left, small, block, block.after)
            if block.after is not None:
                block.after.before = rest
            block.size, block.after = size, rest
            self._put(rest)
        self.allocated += block.size
        self._used[number] = block

    def free(self, number: int) -> None:
        block = self._used.pop(number, None)
        if block is None:
            return
        self.allocated -= block.size
        before, after = block.before, block.after
        if before is not None and before.free:
            self._take(before)
            block.start, block.size, block.before = before.start, before.size + block.size, before.before
            if block.before is not None:
                block.before.after = block
        if after is not None and after.free:
            self._take(after)
            block.size, block.after = block.size + after.size, after.after
            if block.after is not None:
                block.after.before = block
        self._put(block)

    def _found(self, size: int, small: bool) -> _Block:
        free = self._free[small]
        at = bisect.bisect_left(free, (size, -1, -1), key=lambda entry: entry[0])
        if at < len(free):
            block = free.pop(at)[1]
            block.free = False
            return block
        if small:
            total = _SMALL_SEGMENT
        else:
            total = _MIDDLE_SEGMENT if size < _MIDDLE else -(-size // _ROUND) * _ROUND
        self._segments += 1
        self.reserved = (self.reserved or 0) + total
        return _Block(self._segments, 0, total, small)

    def _put(self, block: _Block) -> None:
        block.free = True
        bisect.insort(self._free[block.small], (block.key, block), key=lambda entry: entry[0])

    def _take(self, block: _Block) -> None:
        block.free = False
        free = self._free[block.small]
        del free[bisect.bisect_left(free, block.key, key=lambda entry: entry[0])]
