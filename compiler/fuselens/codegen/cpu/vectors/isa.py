"""Instruction sets as values: how wide a register is, and which compiler flags select it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Isa:
    """``register`` is a vector register's width in bytes; 0 stands for one lane at a time. ``fast`` is the option
    ``fast_math``: floats are computed as is fastest, not as exactly as IEEE's rules allow."""

    name: str
    register: int
    flags: tuple[str, ...]
    fuses: bool = False  # has an instruction for fma
    streams: int = 0  # bytes that one instruction stores past the caches, at most; 0 where none does
    fast: bool = False

    def lanes(self, wide: bool) -> int:
        """Lanes of a vector: registers hold 32-bit elements, or 64-bit elements in a ``wide`` kernel."""
        return max(1, self.register // (8 if wide else 4))


ISAS: dict[str, Isa] = {
    i.name: i
    for i in (
        Isa("scalar", 0, ()),
        Isa("sse2", 16, (), streams=16),
        Isa("neon", 16, (), True),
        Isa("avx2", 32, ("-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2"), True, 32),
        Isa(
            "avx512",
            64,
            (
                "-mavx2", "-mfma", "-mf16c", "-mbmi", "-mbmi2",
                "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mprefer-vector-width=512",
            ),
            True, 64,
        ),
    )
}  # fmt: skip
