"""The content-addressed cache on disk, shared by every process of a user: the editor's worker and the user's own runs.

An entry is a file ``<kind>/<key prefix>/<key><suffix>``; its key is a hash over everything that determines its content.
Writers make a private file beside it and rename it into place, so a reader sees a whole entry or none; two writers of
one key write the same content, and the later rename wins. Every entry ends in a checksum: an entry that was damaged
is removed, counts as a miss and leaves an FL405 record, never an error (loading half a library kills the process).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..report import Diagnostic

SCHEMA = 2  # raise it when the meaning of entries changes
ABANDONED_SECONDS = 600  # a process that was killed left its private directory behind: none is in use for so long
_MARK = b"\nfuselens-sha256:"
_MAKING = ".making-"


def key_of(parts: Mapping[str, Any]) -> str:
    """A key over named parts: JSON-ready values, sorted by name, and the cache's schema."""
    text = json.dumps({"schema": SCHEMA, **parts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kind of entry takes up."""

    kind: str
    entries: int
    bytes: int


class Cache:
    """Entries below ``root``, a directory of the user's own (mode 0700, made on first write)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.diagnostics: list[Diagnostic] = []

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """Where the entry is or would be."""
        return self.root / kind / key[:2] / (key + suffix)

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The content of an entry, or None. A damaged entry is removed and recorded."""
        return self._read(self.path(kind, key, suffix))

    def holds(self, path: Path) -> bool:
        """True when the entry is there and whole. A damaged one is removed and recorded."""
        return self._read(path) is not None

    def _read(self, path: Path) -> bytes | None:
        try:
            data = path.read_bytes()
        except OSError:
            return None
        content, mark, digest = data.rpartition(_MARK)
        if not mark or hashlib.sha256(content).hexdigest().encode() != digest:
            self.discard(path)
            return None
        return content

    def put(self, kind: str, key: str, content: bytes, suffix: str = "") -> Path:
        """Stores ``content``. A directory that cannot be written is no error: the entry is then simply not kept."""
        path = self.path(kind, key, suffix)
        with contextlib.suppress(OSError), self.scratch() as directory:
            made = directory / "entry"
            made.write_bytes(content)
            self.adopt(made, path)
        return path

    def adopt(self, made: Path, path: Path) -> None:
        """Seals a finished file with its checksum and moves it into place, whole or not at all. Raises OSError.

        Loaders of shared libraries ignore bytes after the last section, so libraries are sealed like the rest.
        """
        digest = hashlib.sha256(made.read_bytes()).hexdigest().encode()
        with made.open("ab") as file:
            file.write(_MARK + digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        made.replace(path)

    def discard(self, path: Path) -> None:
        """Removes a damaged entry and records it."""
        from ..diagnostics import make  # Triton's worker, which is waited for, starts without

        self.diagnostics.append(make("FL405", what=str(path)))
        with contextlib.suppress(OSError):
            path.unlink()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private directory on the cache's own file system, removed afterwards. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._remove_abandoned()
        with tempfile.TemporaryDirectory(prefix=_MAKING, dir=self.root, ignore_cleanup_errors=True) as directory:
            yield Path(directory)

    def _remove_abandoned(self) -> None:
        before = time.time() - ABANDONED_SECONDS
        with os.scandir(self.root) as entries:
            for entry in entries:
                if entry.name.startswith(_MAKING):
                    with contextlib.suppress(OSError):  # another process may be first
                        if entry.stat().st_mtime < before:
                            shutil.rmtree(entry.path, ignore_errors=True)

    def drain(self) -> list[Diagnostic]:
        """The records since the last call."""
        found, self.diagnostics = self.diagnostics, []
        return found

    def usage(self) -> list[Usage]:
        """Entries and bytes of each kind, largest first."""
        out = []
        for kind in self._kinds():
            sizes = [e.stat().st_size for e in kind.rglob("*") if e.is_file()]
            out.append(Usage(kind.name, len(sizes), sum(sizes)))
        return sorted(out, key=lambda u: -u.bytes)

    def clear(self) -> int:
        """Removes every entry; returns the bytes freed. Libraries that are loaded stay usable."""
        freed = sum(u.bytes for u in self.usage())
        for kind in self._kinds():
            shutil.rmtree(kind, ignore_errors=True)
        return freed

    def _kinds(self) -> list[Path]:
        try:
            return [d for d in self.root.iterdir() if d.is_dir() and not d.name.startswith(".")]
        except OSError:
            return []
