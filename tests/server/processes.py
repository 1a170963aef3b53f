"""What runs on this machine, as ``/proc`` tells it: a process or a file of one may be gone while that is read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False


def holders(path: Path) -> list[int]:
    """The processes that have a file open: programs that are checked may leave no other mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_target(link) == str(path) for link in os.scandir(process / "fd")):
                found.append(int(process.name))
    return sorted(found)


def _target(link: os.DirEntry[str]) -> str | None:
    with contextlib.suppress(OSError):
        return os.readlink(link)
    return None


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def marked(mark: str) -> set[int]:
    """The living processes that have ``mark`` in their environment, whoever is their parent by now."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.add(int(path.parent.name))
    return found
