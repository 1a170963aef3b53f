"""Ending a process together with all that it started, and whether it lives."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

_ROUNDS = 3  # what starts another process while it is being killed


def end_session(leader: int) -> None:
    """Kills the processes of the session that ``leader`` began, whichever groups they are in and whether or not it is
    alive. Without /proc, only those of its own group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for _ in range(_ROUNDS):
        members = list(_members(leader))
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not members:
            return


def alive(pid: int) -> bool:
    """Whether there is such a process, ours or not. POSIX only: elsewhere signal 0 is a real one."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # somebody else's
    return True


def _members(session: int) -> Iterator[int]:
    """The living processes of a session."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            # the name, in parentheses, may hold anything: state, parent, group and session come after it
            state, _, _, its = file.read().rpartition(b")")[2].split()[:4]
            if int(its) == session and state not in b"ZX":
                yield pid
