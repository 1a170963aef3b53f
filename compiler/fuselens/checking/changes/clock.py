"""The time that an experiment may take, and the processor time that it has used."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

_KEPT = 0.9  # of the processor time: what is under way then still ends in time


@dataclass(frozen=True, slots=True)
class Clock:
    """``end`` is a time of ``time.monotonic()``, ``processor`` are seconds of this process and of the compilers that it starts."""

    end: float
    processor: float

    @classmethod
    def until(cls, seconds: float, processor: float) -> Clock:
        return cls(time.monotonic() + seconds, processor * _KEPT or float("inf"))

    @staticmethod
    def used() -> float:
        """Processor seconds of this process since it began, and of the processes that it has started and that have ended."""
        return sum(os.times()[:4])

    @property
    def left(self) -> float:
        return min(self.end - time.monotonic(), self.processor - self.used())
