"""What a report comes to, as one compares it with others: how far a function is compiled, its bytes, the names of its findings.

Standard library only.
"""

from __future__ import annotations

from . import live_memory
from .report import Diagnostic, Report, Status

STATUSES: tuple[Status, ...] = ("whole", "with breaks", "eager in part", "not compiled")
_RECOMPILED = ("FL201", "FL202", "FL205")
_EAGER = ("FL301", "FL402", "FL403", "FL404", "FL406")


def key(found: Diagnostic) -> str:
    """What tells a finding apart from others, wherever it stands."""
    return f"{found.code} {found.message}"


def counts(found: Diagnostic) -> bool:
    """Whether a finding is one that a program can get worse by."""
    return found.severity in ("error", "warning") or found.code in (*_RECOMPILED, *_EAGER)


def moved_bytes(report: Report) -> int | None:
    """What the kernels of a function read and write in a call; None where that is not known."""
    moved = [(k.bytes_read, k.bytes_written) for k in report.kernels]
    if any(read is None or written is None for read, written in moved):
        return None
    return sum((read or 0) + (written or 0) for read, written in moved)


def saved_bytes(report: Report) -> int:
    """What the graphs of a function keep from the forward for the backward."""
    return sum(live_memory.saved_bytes(g) * max(1, g.runs) for g in report.graphs if g.id not in report.in_parts)


def peak_bytes(report: Report) -> int:
    """The most bytes that one of its graphs holds."""
    return max((step.bytes for graph in report.graphs for step in graph.memory), default=0)
