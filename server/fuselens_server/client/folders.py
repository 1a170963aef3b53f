"""Whether files lie below folders, by what is on the disk. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def lies_in(path: str, folders: Iterable[str]) -> bool:
    """Whether a file is below one of ``folders``, by what is on the disk: where links lead, and however a name is written."""
    allowed: set[tuple[int, int]] = set()
    for folder in folders:
        allowed |= _identity(folder)
    try:
        real = Path(path).resolve()
    except (OSError, ValueError, RuntimeError):
        return False
    return any(not allowed.isdisjoint(_identity(place)) for place in real.parents)


def _identity(folder: str | Path) -> set[tuple[int, int]]:
    """Nothing for a folder that is not there."""
    try:
        status = os.stat(folder)
    except (OSError, ValueError):
        return set()
    return {(status.st_dev, status.st_ino)}
