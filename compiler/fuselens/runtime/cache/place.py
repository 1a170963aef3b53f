"""Where a process keeps what it compiles: the folder that was asked for or, where that cannot be trusted or written, a
private temporary one in its stead, which goes with the processes that use it. Why is one finding (FL916).

A folder that became full, or read-only, is still read: entries come into it whole or not at all.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...system import ownership

if TYPE_CHECKING:
    from ...record.report import Diagnostic
    from .remote import Remote

PREFIX = "fuselens-cache-"
TAG = "CACHEDIR.TAG"  # https://bford.info/cachedir/: backups leave a folder out that has one
SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
TAG_TEXT = SIGNATURE + b"\n# This folder is a cache that fuselens made: `fuselens cache clear` empties it.\n"
KINDS = {  # what entries are called: <kind>/<two digits>/<forty digits><suffix>
    "graph": (".forward", ".backward", ".sizes"), "results": ("",), "cpp": (".so",), "cubin": ("",), "measured": (".json",),
    "inputs": (".json",), "keys": (".json",), "varied": (".json",), "live": (), "report": ("",),
    "frame": (".0", ".1", ".2", ".3", ".s0", ".s1", ".s2", ".s3", ".s4", ".s5", ".s6", ".s7"),
}  # fmt: skip
SHARED = frozenset(
    {"graph", "results", "cpp", "cubin"}
)  # measured times and what runs were called with stay where they were made
SCRATCH = re.compile(r"\.making-[a-z0-9_]{8}")  # private folders, in which entries are made
ROOM = 1 << 20  # bytes that a temporary folder must take
ABANDONED_SECONDS = 600  # a process that was killed left its private folder behind: none is in use for so long
_LOCK = ".in-use"


class Place:
    """``root`` is where entries are written, ``readable`` where they are looked for. ``fixed``: it is never replaced."""

    def __init__(self, wanted: Path, fixed: bool = False) -> None:
        self.root, self.readable = wanted, [wanted]
        self.finding: Diagnostic | None = None
        self.remote: Remote | None = None  # where entries come from that are not here
        self.used: set[str] = set()  # entries that this process read or made, by kind, folder and name
        self._wanted, self._fixed, self._why = wanted, fixed, ""
        self._used: set[Path] = set()  # where temporary ones were made
        self._one_at_a_time = threading.Lock()
        self.refused = objection(wanted)
        if self.refused:
            self.readable = []
            self._replace(self.refused)

    def distrust(self, root: Path, error: ownership.Foreign) -> None:
        """Called where something in ``root`` is not this user's alone: from now on it is not read, either."""
        with self._one_at_a_time:
            if root in self.readable:
                self.readable = [r for r in self.readable if r != root]
                if root == self.root:
                    self._replace(reason(error, root))

    def give_up(self, root: Path, error: OSError) -> bool:
        """Called where ``root`` could not be written: whether there is another one now."""
        with self._one_at_a_time:
            if self.root != root:
                return True  # another thread was here
            if self._fixed:
                return False
            if isinstance(error, ownership.Foreign):
                self.readable = [r for r in self.readable if r != root]
            return self._replace(reason(error, root))

    def _replace(self, why: str) -> bool:
        from ...record.diagnostics import make  # Triton's worker, which is waited for, starts without

        parents = [] if self._fixed else [p for p in _temporary_parents() if p not in self._used]
        made = next(filter(None, map(_temporary, parents)), None)
        if made is not None:
            self._used.add(made.parent)
            self.root = made
            self.readable = [made, *(r for r in self.readable if r == self._wanted)]
            instead = f"A private temporary folder serves in its place, and goes with this process: {made}."
        else:
            instead = "No temporary folder with room was found, either, so graphs that need new kernels run eagerly."
        self._why = self._why or why
        self.finding = make("FL916", what=str(self._wanted), why=self._why, instead=instead)
        return made is not None

    def succeeded(self, root: Path) -> None:
        """Called where ``root`` was written: what stood in the way before, and had no replacement, does no more."""
        if self.finding is not None and root == self._wanted:
            self.finding, self._why = None, ""


_places: dict[Path, Place] = {}
_finding_places = threading.Lock()


def place_of(wanted: Path) -> Place:
    """The place of this process for a folder that was asked for."""
    wanted = wanted if str(wanted).startswith("~") else wanted.absolute()
    found = _places.get(wanted)
    if found is None or (found.refused and not objection(wanted)):  # somebody repaired it
        with _finding_places:
            if _places.get(wanted) is found:
                _places[wanted] = Place(wanted)
            found = _places[wanted]
    return found


def prepare(wanted: Path) -> None:
    """Settles the place before processes are forked, so that a temporary one is theirs together."""
    place = place_of(wanted)
    root = place.root
    try:
        make(root)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        if not place.give_up(root, error):
            place.succeeded(root)  # whoever writes may have more luck, or says why not


def objection(folder: Path) -> str:
    """Why a cache must not be read, nor written, at ``folder``; "" where it may."""
    if str(folder).startswith("~"):
        return "no home folder is known for this user, because HOME is not set"
    try:
        return ownership.objection(folder)
    except OSError as error:
        return reason(error, folder)


def reason(error: OSError, folder: Path) -> str:
    """What stands in the way at ``folder``, for readers."""
    if isinstance(error, ownership.Foreign):
        return error.strerror or str(error)
    name = error.filename or folder
    return f"{error.strerror or error} ({name})"


def require_room(folder: Path) -> None:
    """Raises OSError where a folder takes no more than a little. It is written, because not all file systems know quotas."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as trial:
        left = ROOM
        while left > 0:
            left -= trial.write(bytes(left))


def forbids_execution(folder: Path) -> bool:
    """Whether libraries in a folder cannot be loaded. Raises OSError."""
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))


def make(root: Path) -> None:
    """Makes the folder of a cache, and tags it. Raises OSError where it cannot be made, or is somebody else's."""
    ownership.make_folder(root)
    if not (root / TAG).exists() and KINDS.keys() >= {name for name in os.listdir(root) if not SCRATCH.fullmatch(name)}:
        write_tag(root)  # not beside what others put there: backups would leave that out


def write_tag(root: Path) -> None:
    """Says that what is in a folder is a cache. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(root / TAG, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(TAG_TEXT)


def has_tag(root: Path) -> bool:
    """Whether the folder is a cache that we made."""
    with contextlib.suppress(OSError):
        descriptor = ownership.opened(root / TAG)
        try:
            text = os.read(descriptor, len(TAG_TEXT))
        finally:
            os.close(descriptor)
        return text.startswith(SIGNATURE) and b"fuselens" in text
    return False


# --- temporary folders ------------------------------------------------------------------------------------------------


def _temporary_parents() -> Iterator[Path]:
    with contextlib.suppress(OSError):  # of several that it knows, it takes the first that can be written
        yield Path(tempfile.gettempdir())
    yield Path("/dev/shm")


def _temporary(parent: Path) -> Path | None:
    """A private folder below ``parent``, with room. It is removed when the last process that uses it has ended."""
    try:
        _remove_abandoned(parent)
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if not ownership.objection(made) and not forbids_execution(made):
            require_room(made)
            write_tag(made)
            atexit.register(_remove_own, made, _locked(made), os.getpid())
            return made
    shutil.rmtree(made, ignore_errors=True)
    return None


def _locked(folder: Path) -> int:
    """A descriptor that says that the folder is in use, as long as this process or one that it forks has it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(ImportError, OSError):  # not on Windows, nor on every file system
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def _remove_own(folder: Path, descriptor: int, pid: int) -> None:
    if pid == os.getpid():
        os.close(descriptor)
        _remove_unused(folder)


def _remove_unused(folder: Path) -> None:
    """Removes a temporary folder of ours, unless a process uses it."""
    with contextlib.suppress(OSError):
        descriptor = ownership.opened(folder / _LOCK)
        try:
            with contextlib.suppress(ImportError):
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _remove_abandoned(parent: Path) -> None:
    """Removes what processes left that were killed."""
    before = time.time() - ABANDONED_SECONDS
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_mtime < before and not ownership.foreign(str(folder), status):
                _remove_unused(folder)
