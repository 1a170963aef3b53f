"""The content-addressed cache on disk, shared by every process of a user: the editor's worker and the user's own runs.

An entry is a file ``<kind>/<key prefix>/<key><suffix>``; its key is a hash over everything that determines its content.
Writers make a private file beside it and rename it into place, so a reader sees a whole entry or none; two writers of
one key write the same content, and the later rename wins. Every entry ends in a checksum: an entry that was damaged
is removed, counts as a miss and leaves an FL405 record, never an error (loading half a library kills the process).

**Whom it trusts.** Entries are code: libraries that are loaded, binaries for a GPU, and the texts of host programs, which are
executed. A checksum only tells damage, because whoever can write an entry can compute it. So an entry is believed for where
it is: in a folder of this user's alone (``ownership.py``), where only this user and root can put one. Cache, sub-folders and
entries are asked for their owner and mode; folders and files are made for this user alone (0700, 0600), whatever the umask.
An entry is opened once, and what was asked, read and compared is what is used: libraries are loaded from the descriptor, GPU
binaries and texts from the bytes. Nothing in it is unpickled or unmarshalled: what is not to be executed is plain data.
What is not ours alone is neither read nor written: ``place.py`` says what serves in its place.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...system import ownership
from . import place as cache_place
from .place import ABANDONED_SECONDS, SCRATCH, SHARED, Place

if TYPE_CHECKING:
    from ...config import Config
    from ...record.report import Diagnostic

T = TypeVar("T")
SCHEMA = 2  # raise it when the meaning of entries changes
_MARK = b"\nfuselens-sha256:"
_MAKING = ".making-"
_HOUR = 3600


def key_of(parts: Mapping[str, Any]) -> str:
    """A key over named parts: JSON-ready values, sorted by name, and the cache's schema."""
    text = json.dumps({"schema": SCHEMA, **parts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Opened:
    """An entry that was found whole, while its file is open."""

    path: Path
    content: bytes
    descriptor: int


class Cache:
    """Entries below ``root``, a directory of the user's own (mode 0700, made on first write).

    It is the one that was asked for, or the one that this process has in its stead; with ``fixed`` the former, always.
    """

    def __init__(self, root: Path, fixed: bool = False) -> None:
        self.place = Place(root, fixed=True) if fixed else cache_place.place_of(root)
        self.diagnostics: list[Diagnostic] = []
        self._told: Diagnostic | None = None

    @classmethod
    def of(cls, config: Config) -> Cache:
        """The cache of a configuration, with the one that machines share, if it names one: for all caches of this process."""
        found = cls(config.cache_dir)
        if config.remote_cache:
            from .remote import remote  # Triton's worker starts without

            found.place.remote = remote(config.remote_cache, config.remote_cache_secret)
        return found

    @property
    def root(self) -> Path:
        return self.place.root

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """Where the entry would be written."""
        return self.root / kind / key[:2] / (key + suffix)

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The content of an entry, or None. A damaged entry is removed and recorded."""
        with self.opened(kind, key, suffix) as found:
            return None if found is None else found.content

    def exists(self, kind: str, key: str, suffix: str = "") -> bool:
        """Whether there is such an entry, whole or not."""
        name = _name(kind, key, suffix)
        return any(os.path.exists(root / name) for root in self.place.readable) or self._fetched(kind, name)

    @contextlib.contextmanager
    def opened(self, kind: str, key: str, suffix: str = "") -> Iterator[Opened | None]:
        """An entry that is there and whole. A damaged one is removed and recorded."""
        name = _name(kind, key, suffix)
        found = self._found(name)
        if found is None and self._fetched(kind, name):
            found = self._found(name)
        if found is None:
            yield None
            return
        self.place.used.add(name)
        try:
            yield found
        finally:
            os.close(found.descriptor)

    def _found(self, name: str) -> Opened | None:
        return next(filter(None, (self._open(root, root / name) for root in self.place.readable)), None)

    def _fetched(self, kind: str, name: str) -> bool:
        """Whether the shared cache had an entry, which is here now."""
        remote = self.place.remote
        if remote is None or kind not in SHARED:
            return False
        data = remote.fetch(name)
        return data is not None and self.take(name, data)

    def take(self, name: str, sealed: bytes) -> bool:
        """Keeps an entry that was sealed elsewhere. Whether it is whole, and could be kept."""
        if _unsealed(sealed) is None:
            return False

        def write(directory: Path) -> None:
            made = directory / "entry"
            made.write_bytes(sealed)
            self._move(made, self.root / name)

        try:
            self.making(write)
        except OSError:
            return False
        self.place.used.add(name)
        return True

    def _open(self, root: Path, path: Path) -> Opened | None:
        try:
            for folder in (path.parent.parent, path.parent):
                _require_own(folder)
        except ownership.Foreign as error:
            self.place.distrust(root, error)
            return None
        except OSError:
            return None
        try:
            descriptor = ownership.opened(path)
        except OSError as error:
            if isinstance(error, ownership.Foreign) or error.errno == errno.ELOOP:
                self.discard(path, f" ({error.strerror})")
            return None
        try:
            data = ownership.content(descriptor)
        except OSError:
            data = b""
        content = _unsealed(data)
        if content is not None:
            _used(descriptor)
            return Opened(path, content, descriptor)
        os.close(descriptor)
        self.discard(path)
        return None

    def put(self, kind: str, key: str, content: bytes, suffix: str = "") -> Path:
        """Stores ``content``. Where nothing can be written, that is no error: the entry is then simply not kept."""

        def write(directory: Path) -> None:
            made = directory / "entry"
            made.write_bytes(content)
            self.adopt(made, self.path(kind, key, suffix))

        with contextlib.suppress(OSError):
            self.making(write)
        return self.path(kind, key, suffix)

    @staticmethod
    def sealed(content: bytes) -> bytes:
        """An entry's content with the checksum that it is believed for."""
        return content + _MARK + hashlib.sha256(content).hexdigest().encode()

    def adopt(self, made: Path, path: Path) -> None:
        """Seals a finished file with its checksum and moves it into place, whole or not at all. Raises OSError.

        Loaders of shared libraries ignore bytes after the last section, so libraries are sealed like the rest.
        """
        with made.open("r+b") as file:
            content = file.read()
            sealed = self.sealed(content)
            file.write(sealed[len(content) :])
        self._move(made, path)
        kind, name = path.parts[-3], os.path.join(*path.parts[-3:])
        self.place.used.add(name)
        if self.place.remote is not None and kind in SHARED:
            self.place.remote.give(name, sealed)

    def offer(self, kind: str, key: str, suffix: str = "") -> None:
        """Gives an entry, which another process of this machine made, to the shared cache, where there is one."""
        remote = self.place.remote
        if remote is not None and kind in SHARED:
            with contextlib.suppress(OSError):
                remote.give(_name(kind, key, suffix), self.path(kind, key, suffix).read_bytes())

    def _move(self, made: Path, path: Path) -> None:
        """Moves a finished file to its place, for this user alone. Raises OSError."""
        for folder in (path.parent.parent, path.parent):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            _require_own(folder)
        made.chmod(0o600)
        made.replace(path)

    def making(self, work: Callable[[Path], T]) -> T:
        """``work`` in a private directory on the cache's own file system; where that cannot be written, again in another
        place. Raises OSError where there is none. What ``work`` raises of OSErrors, it raises for want of a place."""
        vanished = False
        while True:
            root = self.root
            try:
                with self.scratch() as directory:
                    done = work(directory)
                self.place.succeeded(root)
                return done
            except FileNotFoundError as error:  # somebody removed the cache meanwhile
                if vanished and not self.place.give_up(root, error):
                    raise
                vanished = True
            except OSError as error:
                if not self.place.give_up(root, error):
                    raise

    def discard(self, path: Path, why: str = "") -> None:
        """Removes a damaged entry and records it."""
        from ...record.diagnostics import make  # Triton's worker, which is waited for, starts without

        self.diagnostics.append(make("FL405", what=f"{path}{why}"))
        with contextlib.suppress(OSError):
            path.unlink()

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A private directory on the cache's own file system, removed afterwards. Raises OSError."""
        cache_place.make(self.root)
        self._remove_abandoned()
        with tempfile.TemporaryDirectory(prefix=_MAKING, dir=self.root, ignore_cleanup_errors=True) as directory:
            yield Path(directory)

    def _remove_abandoned(self) -> None:
        before = time.time() - ABANDONED_SECONDS
        with os.scandir(self.root) as entries:
            for entry in entries:
                if SCRATCH.fullmatch(entry.name):
                    with contextlib.suppress(OSError):  # another process may be first
                        status = entry.stat(follow_symlinks=False)
                        if status.st_mtime < before and stat.S_IMODE(status.st_mode) == 0o700:
                            shutil.rmtree(entry.path, ignore_errors=True)

    def drain(self) -> list[Diagnostic]:
        """The records since the last call."""
        found, self.diagnostics = self.diagnostics, []
        remote = self.place.remote
        if remote is not None and (missing := remote.told()) is not None:
            found.append(missing)
        if self.place.finding is not None and self._told is not self.place.finding:
            self._told = self.place.finding
            found.append(self._told)
        return found


def _unsealed(data: bytes) -> bytes | None:
    """The content of an entry, None where its checksum is another."""
    content = data.rpartition(_MARK)[0]
    return content if Cache.sealed(content) == data else None


def _name(kind: str, key: str, suffix: str) -> str:
    """Where an entry is in every cache."""
    return os.path.join(kind, key[:2], key + suffix)


def _used(descriptor: int) -> None:
    """Lets an entry be known as used, once an hour: what was not used for longest is removed first."""
    now = time.time()
    with contextlib.suppress(OSError):  # what is read only stays as it is
        if os.fstat(descriptor).st_mtime < now - _HOUR and os.utime in os.supports_fd:
            os.utime(descriptor, (now, now))


def _require_own(folder: Path) -> None:
    """Raises Foreign for a folder within a cache that is not this user's alone."""
    status = folder.lstat()
    why = ownership.foreign(str(folder), status) if stat.S_ISDIR(status.st_mode) else f"{folder} is not a folder"
    if why:
        raise ownership.Foreign(errno.EPERM, why)
