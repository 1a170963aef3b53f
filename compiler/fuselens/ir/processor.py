"""What those who choose a CPU's code know of the processor: as a small one has it, since code runs on larger ones, too."""

from __future__ import annotations

LINE_BYTES = 64  # of a cache line
L1_BYTES = 32 << 10  # of a core's first-level cache for data
L1_CROWDED_BYTES = 2048  # lines at multiples of them share few sets of that cache
L2_BYTES = 256 << 10  # of a core's second-level cache
