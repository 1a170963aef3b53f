"""What those who choose a GPU's code know of the card: what differs between cards most, and, as of an H100, the rest."""

from __future__ import annotations

from dataclasses import dataclass

LINE_BYTES = 128  # at whose multiples memory is best read
LOAD_BYTES = 16  # that a thread loads at once
THREADS, REGISTERS, PROGRAMS = 2048, 65536, 32  # of a multiprocessor
STATIC_SHARED_BYTES = 48 << 10  # of shared memory that a program has unless it asks for more
CLUSTERS = 90  # the architecture from which on programs form clusters
OPERATIONS = {2: 6.5e12, 4: 0.35e12}  # a second, of a multiprocessor, by bytes of a number: tensor cores, and without
OPERATIONS_TF32 = 3.2e12
L2_BANDWIDTH = 98e9  # bytes a second from the second-level cache to a multiprocessor
PROGRAM_BANDWIDTH = 25e9  # bytes a second that one program reads: 64 of them 1578e9 where memory gives 3000e9
PROGRAM_OPERATIONS = 50e9  # scalar operations a second of one program, and
PROCESSOR_OPERATIONS = 190e9  # of a multiprocessor, by the weights of ``schedule.items.COSTS``
IN_FLIGHT_BYTES = 32 << 10  # that a multiprocessor has to have asked for at a time
LATENCY_SECONDS = 0.8e-6  # from a load to its value when memory is busy
PROGRAM_SECONDS = 0.5e-6  # that a program takes to begin and end
KERNEL_SECONDS = 4e-6  # that one more kernel takes
PERSISTENT = 8192  # longest reduction that stays in the registers of one program
KERNEL_BYTES = 4 << 20  # that are moved in about the time that a launch takes
REPLAY_MILLISECONDS = 0.003  # that the launch of a recording takes where events do not see it
COPIED_A_MILLISECOND = 1e9  # bytes that copies within the card's memory move


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
