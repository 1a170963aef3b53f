"""What is in the folder of a cache, and how it is emptied: entries by their names, never a tree.

A link is not followed, and what has no name of an entry is not touched: it may be a person's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .place import ABANDONED_SECONDS, KINDS, SCRATCH, TAG

_PREFIX = re.compile(r"[0-9a-f]{2}")
_HOUR = 3600
_KEY = re.compile(r"[0-9a-f]{40}")


@dataclass(slots=True)
class Contents:
    """``entries`` with their bytes, and ``folders`` of entries, inner ones first; ``scratch`` of processes that were killed;
    ``others``: what is not known here, with endpoints of running editors and what is being made just now."""

    entries: dict[Path, int] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    scratch: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(self.entries.values())


def contents(root: Path) -> Contents:
    """What is in a cache. Raises OSError."""
    found = Contents()
    for path, status in _listed(root):
        if path.name == TAG and stat.S_ISREG(status.st_mode):
            continue
        if stat.S_ISDIR(status.st_mode) and path.name in KINDS:
            _look_into(path, KINDS[path.name], found)
        elif stat.S_ISDIR(status.st_mode) and SCRATCH.fullmatch(path.name) and _is_abandoned(status):
            found.scratch.append(path)
        else:
            found.others.append(path)
    return found


def clear(root: Path) -> Contents:
    """Removes the entries of a cache, folders that are empty then, and the cache itself if nothing else is in it. Gives what
    there was; what could not be removed is among the ``others``. Raises OSError."""
    found = contents(root)
    for path in [*found.entries]:
        try:
            path.unlink()
        except FileNotFoundError:
            pass
        except OSError:
            found.others.append(path)
            del found.entries[path]
    for path in found.scratch:  # whole: what compilers leave there has names of theirs; nobody else can write into it
        shutil.rmtree(path, ignore_errors=True)
    for folder in found.folders:
        with contextlib.suppress(OSError):  # there is something else in it
            folder.rmdir()
    if os.listdir(root) == [TAG] and not root.is_symlink():
        (root / TAG).unlink()
        root.rmdir()
    return found


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its kind, bytes, and when it was last used, in seconds since the epoch."""

    path: Path
    kind: str
    bytes: int
    used: float


def entries(root: Path) -> list[Entry]:
    """Every entry, the one that was used last first. Raises OSError."""
    found = []
    for path in contents(root).entries:
        with contextlib.suppress(FileNotFoundError):  # another process may be first
            status = path.lstat()
            found.append(Entry(path, path.relative_to(root).parts[0], status.st_size, status.st_mtime))
    return sorted(found, key=lambda e: -e.used)


def prune(root: Path, *, to: int | None = None, before: float | None = None) -> list[Entry]:
    """Removes entries that were last used ``before`` then, and of the others those that were not used for longest, until no
    more than ``to`` bytes are left. Gives what was removed. Raises OSError."""
    removed, left = [], 0
    for entry in entries(root):
        left += entry.bytes
        if (before is not None and entry.used < before) or (to is not None and left > to):
            with contextlib.suppress(FileNotFoundError):
                entry.path.unlink()
            removed.append(entry)
    return removed


def trim(root: Path, limit: int) -> None:
    """Keeps a cache below ``limit`` bytes, 0 for none: looked at once an hour, by whichever process comes first; the time of the
    cache's tag says when. What cannot be looked at or removed stays."""
    now = time.time()
    with contextlib.suppress(OSError):
        if limit and (root / TAG).stat().st_mtime < now - _HOUR:
            os.utime(root / TAG, (now, now))
            if sum(entry.bytes for entry in entries(root)) > limit:
                prune(root, to=limit * 4 // 5)


def _look_into(kind: Path, suffixes: tuple[str, ...], found: Contents) -> None:
    for folder, status in _listed(kind):
        if not stat.S_ISDIR(status.st_mode) or not _PREFIX.fullmatch(folder.name):
            found.others.append(folder)
            continue
        for path, status in _listed(folder):
            if stat.S_ISREG(status.st_mode) and is_entry(folder.name, path.name, suffixes):
                found.entries[path] = status.st_size
            else:
                found.others.append(path)
        found.folders.append(folder)
    found.folders.append(kind)


def is_entry(folder: str, name: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a file is called as entries of a kind are, in their folder."""
    stem, dot, end = name.partition(".")
    known = dot + end in suffixes and _KEY.fullmatch(stem) is not None
    return known and _PREFIX.fullmatch(folder) is not None and stem.startswith(folder)


def _is_abandoned(status: os.stat_result) -> bool:
    return stat.S_IMODE(status.st_mode) == 0o700 and status.st_mtime < time.time() - ABANDONED_SECONDS


def _listed(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            yield Path(entry.path), entry.stat(follow_symlinks=False)
