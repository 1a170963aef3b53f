"""How many bytes a collective moves, and how long it takes on links of some bandwidth and latency.

Of ``n`` ranks, ``S`` is the size of what they all get or give together: the tensor of an all-reduce or a broadcast, the result of an
all-gather, the operand of a reduce-scatter or an all-to-all. With bandwidth ``B`` one way and latency ``a`` of a step:

- ring all-reduce: ``2 (n - 1) (a + S / (n B))``; ring all-gather and reduce-scatter: half of it. An all-to-all by pairs: the same half.
- tree all-reduce, reduced up and broadcast down at once: ``2 log2(n) a + 2 S / B``.
- broadcast and reduce: the faster of a pipelined ring, ``(n - 1) a + S / B``, and a binomial tree, ``log2(n) (a + S / B)``.
- gather and scatter by a binomial tree: ``log2(n) a + (n - 1) / n S / B``.
- barrier: ``log2(n) a``. A message: ``a + S / B``.

From Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in MPICH (2005). Trees as NCCL's model of them.
A group on several hosts moves its bytes at the bandwidth of the slower link, and a ring crosses hosts once for each, as in NCCL's
model (``src/graph/tuning.cc``), from which the default latencies are, too: those of rings with the Simple protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..config import Config, link_of


@dataclass(frozen=True, slots=True)
class Link:
    bandwidth: float  # bytes a second, one way
    latency: float  # seconds of a step


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts of ``per_host`` ranks, in the order of the ranks."""

    per_host: int
    host: Link
    between: Link

    @classmethod
    def of(cls, config: Config) -> Network:
        return cls(config.ranks_per_host, Link(*link_of(config.host_link)), Link(*link_of(config.network_link)))

    def hosts(self, ranks: Sequence[int]) -> int:
        return len({rank // self.per_host for rank in ranks})

    def seconds(self, name: str, size: int, ranks: Sequence[int]) -> float:
        """How long the collective takes in a group of these ``ranks``; ``size`` is ``S`` in bytes."""
        n, hosts = len(ranks), self.hosts(ranks)
        if n < 2:
            return 0.0
        near, far = self.host.latency, self.between.latency
        bandwidth = self.host.bandwidth if hosts == 1 else min(self.host.bandwidth, self.between.bandwidth)
        ring = (n - hosts) * near + (hosts - 1) * far
        tree = _levels(math.ceil(n / hosts)) * near + _levels(hosts) * far
        moved = size / bandwidth
        match name:
            case "all_reduce":
                return 2 * min(ring + (n - 1) / n * moved, tree + moved)
            case "all_gather" | "reduce_scatter":
                return ring + (n - 1) / n * moved
            case "all_to_all":
                near_ones = math.ceil(n / hosts) - 1
                own = near_ones * (near + size / n / self.host.bandwidth)
                return own + (n - 1 - near_ones) * (far + size / n / bandwidth)
            case "broadcast" | "reduce":
                return min(ring + moved, tree + _levels(n) * moved)
            case "gather" | "scatter":
                return tree + (n - 1) / n * moved
            case "barrier":
                return tree
        return (near if hosts == 1 else far) + moved  # a message


def _levels(n: int) -> int:
    return math.ceil(math.log2(n)) if n > 1 else 0


def sent_and_received(name: str, size: int, n: int, root: bool = False) -> tuple[int, int]:
    """Bytes that a rank sends and receives, where ``size`` is ``S``; ``root`` is the one that gathers, scatters or has what is
    broadcast. Of a ring its inner ranks count."""
    if n < 2:
        return 0, 0
    part = -(-size * (n - 1) // n)
    match name:
        case "all_reduce":
            return 2 * part, 2 * part
        case "all_gather" | "reduce_scatter" | "all_to_all":
            return part, part
        case "broadcast":
            return size, 0 if root else size
        case "reduce":
            return 0 if root else size, size
        case "gather":
            return (0, part) if root else (size // n, 0)
        case "scatter":
            return (part, 0) if root else (0, size // n)
        case "send":
            return size, 0
        case "recv":
            return 0, size
    return 0, 0
