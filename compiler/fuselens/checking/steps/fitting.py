"""The largest size of an axis with which a step fits."""

from __future__ import annotations

from collections.abc import Callable

_MOST = 1 << 24
_GUESSES = 8  # by lines; then the range is halved


def largest(peak_of: Callable[[int], int], size: int, limit: int) -> int | None:
    """The largest size whose peak is at most ``limit``; 0 where not even 1 is; None where the size does not matter. ``size`` is one to
    begin with. A peak is taken to grow with the size, and between two sizes about in proportion."""
    known: dict[int, int] = {}

    def peak(n: int) -> int:
        if n not in known:
            known[n] = peak_of(n)
        return known[n]

    other = size // 2 or 2
    if peak(size) == peak(other):
        return None
    for _ in range(_GUESSES):
        fits, over = _bracket(known, limit)
        if over - fits <= 1:
            return fits
        peak(min(max(_between(known, limit), fits + 1), over - 1))
    while True:
        fits, over = _bracket(known, limit)
        if over - fits <= 1:
            return fits
        peak((fits + over) // 2)


def _bracket(known: dict[int, int], limit: int) -> tuple[int, int]:
    """The largest size that is known to fit, and the smallest that is known not to."""
    return (
        max((n for n, found in known.items() if found <= limit), default=0),
        min((n for n, found in known.items() if found > limit), default=_MOST),
    )


def _between(known: dict[int, int], limit: int) -> int:
    """Where the line through the two sizes nearest to the limit meets it."""
    (a, low), (b, high) = sorted(sorted(known.items(), key=lambda item: abs(item[1] - limit))[:2])
    if low == high:
        return 2 * b
    return a + (limit - low) * (b - a) // (high - low)
