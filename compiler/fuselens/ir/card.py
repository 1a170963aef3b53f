"""What those who choose a GPU's code know of the card."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    architecture: int  # the number in ``sm_90``
    processors: int  # multiprocessors
    bandwidth: float  # bytes a second that kernels read and write
    shared: int  # bytes of a multiprocessor's memory that a program may have

    @property
    def programs(self) -> int:
        """How many programs of 256 threads fill the card."""
        return 8 * self.processors


H100 = Card(90, 132, 3.0e12, 227 << 10)
KNOWN = (
    Card(80, 108, 1.4e12, 163 << 10),  # A100
    Card(86, 82, 0.84e12, 99 << 10),  # RTX 3090
    Card(89, 128, 0.91e12, 99 << 10),  # RTX 4090
    H100,
    Card(100, 148, 7.2e12, 227 << 10),  # B200
    Card(120, 170, 1.6e12, 99 << 10),  # RTX 5090
)


def usual(architecture: int) -> Card:
    """A card of this architecture, or of the newest one known before it."""
    return next((c for c in reversed(KNOWN) if c.architecture <= architecture), KNOWN[0])
