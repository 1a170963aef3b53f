"""What is worth recording: which sizes, and whether recorded calls are faster."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol

WARM_CALLS = 3  # as the program is: the first loads kernels, the others are timed
RECORDED_CALLS = 6  # that are timed, but for the first
MOST_SIZES = 64  # of one graph with recordings
MOST_KNOWN = 1024  # sizes that calls are counted of
MOST_MISSES = 16  # calls that no recording fits, before a size is left alone for a while
NEVER = 1 << 62
ENOUGH = 0.995  # of a call's time, which recorded calls must not exceed with


class Mark(Protocol):
    """A point of a stream; torch.cuda.Event."""

    def query(self) -> bool: ...
    def elapsed_time(self, end: Any, /) -> float: ...  # milliseconds


class Trial:
    """Compares recorded calls with calls of the program as it is: their times on the stream, for which nobody waits."""

    def __init__(self, mark: Callable[[], Mark]) -> None:
        self.mark = mark
        self._plain: list[tuple[Mark, Mark]] = []
        self._recorded: list[tuple[Mark, Mark]] = []

    def took(self, start: Mark, *, recorded: bool) -> None:
        (self._recorded if recorded else self._plain).append((start, self.mark()))

    @property
    def complete(self) -> bool:
        """Whether enough recorded calls were made."""
        return len(self._recorded) >= RECORDED_CALLS

    def plain(self) -> float | None:
        """Milliseconds of a call; None where the device has not come to its end."""
        return _least(self._plain)

    def recorded(self) -> float | None:
        """Milliseconds of a recorded call; None until enough have ended."""
        return _least(self._recorded[1:]) if self.complete else None


def _least(marks: list[tuple[Mark, Mark]]) -> float | None:
    if not marks or not marks[-1][1].query():
        return None
    return min(start.elapsed_time(end) for start, end in marks)


@dataclass(slots=True, eq=False)
class Size:
    """What is known of the calls of one size."""

    calls: int = 0
    wanted: int = WARM_CALLS  # calls before a recording is made
    rest: int = 0  # calls for which nothing is tried
    misses: int = 0
    pauses: int = 0
    addresses: tuple[int, ...] = ()  # of the last call's tensors
    moved: set[int] = field(default_factory=set)  # tensors that have been in several places
    recordings: list[Any] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)  # results that recordings copy out
    kept: bool = False  # its results are held while other graphs run
    trial: Trial | None = None

    def forget(self, *, for_good: bool = False) -> None:
        """Its recordings are gone. It is recorded again, if at all, when it is called much more often than before."""
        self.recordings.clear()
        self.calls, self.wanted, self.trial = 0, NEVER if for_good else 4 * self.wanted, None

    def missed(self) -> bool:
        """No recording fits a call. Whether that has been so too often: then none is tried for a while, ever longer."""
        self.misses += 1
        if self.misses < MOST_MISSES:
            return False
        self.misses, self.rest = 0, 64 << min(self.pauses, 8)
        self.pauses += 1
        return True


class Sizes:
    """The sizes that a graph is called with. Those called again and again are recorded; of more than ``MOST_SIZES`` the ones
    that have not been called for longest are let go of."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Size] = OrderedDict()
        self._recorded: OrderedDict[int, Size] = OrderedDict()

    def of(self, key: Hashable) -> Size:
        """The size that is called now."""
        size = self._known.get(key)
        if size is None:
            if len(self._known) >= MOST_KNOWN:
                self._recorded.pop(id(self._known.popitem(last=False)[1]), None)
            size = self._known[key] = Size()
        elif len(self._known) > 1:
            self._known.move_to_end(key)
            if size.recordings:
                self._recorded.move_to_end(id(size))
        return size

    def recorded(self, size: Size) -> bool:
        """A recording of ``size`` was made. Whether another size lost its own for that."""
        self._recorded[id(size)] = size
        if len(self._recorded) <= MOST_SIZES:
            return False
        self._recorded.popitem(last=False)[1].forget()
        return True

    def forget(self, size: Size, *, for_good: bool = False) -> None:
        """The recordings of ``size`` are gone."""
        self._recorded.pop(id(size), None)
        size.forget(for_good=for_good)

    def clear(self) -> None:
        self._known.clear()
        self._recorded.clear()
