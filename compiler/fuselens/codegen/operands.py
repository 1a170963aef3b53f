"""What an operation reads, as both code generators see it: its text, and its number where it is a literal.

C++ and Triton have tables of their own, but the entries of both take the same values and round constants the same way.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Value:
    """An operand: its text, its loop-IR dtype, and the number when it is a literal (text is then a vector of it)."""

    text: str
    dtype: str
    number: float | int | bool | None = None
    literal: str = ""

    @property
    def infix(self) -> str:
        """Text for an arithmetic expression whose other operand is a vector: a literal stays a scalar."""
        return self.literal or self.text


def rounded(value: float, dtype: str) -> float:
    """``value`` rounded to nearest in ``dtype``; beyond its range, infinity."""
    if math.isnan(value) or math.isinf(value):
        return value
    try:
        if dtype == "f16":
            return struct.unpack("e", struct.pack("e", value))[0]
        single = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype != "bf16":
        return single
    (bits,) = struct.unpack("I", struct.pack("f", single))
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return struct.unpack("f", struct.pack("I", bits))[0]
