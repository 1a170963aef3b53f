"""A commit's files in a private folder, which becomes that of another commit by what differs between both.

Git's own working trees, index and settings take no part: contents are read as git stores them, without filters. Of a submodule
its commit's files are written where the working tree has its repository; files kept elsewhere (Git LFS) are what git has of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .git import Entry, GitError, Repository

_LARGEST = 1 << 20  # bytes of a file that nothing names
_MOST_BYTES = 2 << 30  # of a tree
_PREFIX = "fuselens-tree-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-\w+")
_AT_ONCE = 32 << 20  # bytes that are asked for together


class Folder:
    """The private folder; a context manager that removes it."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self._path: Path | None = None
        self._there: dict[str, Entry] = {}
        self._held: tuple[str, frozenset[str]] = "", frozenset()
        self.left_out: tuple[str, ...] = ()  # files of the tree that are too large

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        self._path, self._there, self._held = None, {}, ("", frozenset())

    def hold(self, commit: str, needed: Sequence[str]) -> Path:
        """The folder with the files of a commit: all that are ``needed``, and others that are not large. Raises GitError."""
        if self._path is not None and self._held[0] == commit:
            if self._held[1].issuperset(needed):
                return self._path
            needed = [*needed, *self._held[1]]
        made = self._become(self.repository.tree(commit), needed)
        self._held = commit, frozenset(needed)
        return made

    def _become(self, entries: Mapping[str, Entry], needed: Sequence[str]) -> Path:
        wanted = {n: e for n, e in entries.items() if _is_inside(n)}
        needs = set(needed)
        large = [n for n, e in wanted.items() if n not in needs and not n.endswith(".py") and e.bytes > _LARGEST]
        for name in large:
            del wanted[name]
        if sum(e.bytes for e in wanted.values()) > _MOST_BYTES:
            wanted = {n: e for n, e in wanted.items() if n in needs or n.endswith(".py")}
        self.left_out = tuple(sorted(entries.keys() - wanted.keys()))
        try:
            if self._path is None:
                _remove_abandoned()
                self._path = Path(os.path.realpath(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")))
                self._copy_ignored()
            for name in [n for n, e in self._there.items() if wanted.get(n) != e]:
                self._remove(name)
            self._write({n: e for n, e in wanted.items() if n not in self._there})
            return self._path
        except OSError as error:
            raise GitError(
                f"the files of a revision cannot be written to a temporary folder ({error.strerror or error}: "
                f"{error.filename or tempfile.gettempdir()}): make room there, or name another with TMPDIR"
            ) from None

    def _remove(self, name: str) -> None:
        assert self._path is not None
        path = self._path / name
        if self._there.pop(name).kind == "commit":
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        for folder in path.parents:
            if folder == self._path:
                break
            with contextlib.suppress(OSError):
                folder.rmdir()

    def _write(self, entries: Mapping[str, Entry]) -> None:
        waiting: list[tuple[str, Entry]] = []
        size = 0
        for name, entry in entries.items():
            self._there[name] = entry
            if entry.kind == "commit":
                self._submodule(name, entry)
                continue
            waiting.append((name, entry))
            size += entry.bytes
            if size > _AT_ONCE:
                self._write_blobs(waiting)
                waiting, size = [], 0
        self._write_blobs(waiting)

    def _write_blobs(self, waiting: list[tuple[str, Entry]]) -> None:
        assert self._path is not None
        for (name, entry), data in zip(waiting, self.repository.blobs([e.blob for _, e in waiting]), strict=True):
            path = self._path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():  # to a module of the working tree
                path.unlink()
            if entry.kind == "link":
                self._link(path, os.fsdecode(data))
            else:
                path.write_bytes(data)

    def _link(self, path: Path, target: str) -> None:
        """Only to what is in the folder: nothing of the user's is reached by way of it."""
        assert self._path is not None
        leads = os.path.normpath(os.path.join(path.parent, target))
        if not os.path.isabs(target) and Path(leads).is_relative_to(self._path):
            with contextlib.suppress(FileExistsError, NotImplementedError):
                path.symlink_to(target)

    def _submodule(self, name: str, entry: Entry) -> None:
        assert self._path is not None
        place = self.repository.top / name
        (self._path / name).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(GitError):  # its repository is not here, or lacks the commit
            inner = Repository.of(place)
            if inner.top == place:
                files = inner.tree(entry.blob)
                names = [n for n, e in files.items() if e.kind == "blob" and e.bytes <= _LARGEST and _is_inside(n)]
                for file, data in zip(names, inner.blobs([files[n].blob for n in names]), strict=True):
                    path = self._path / name / file
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)

    def _copy_ignored(self) -> None:
        """Modules that git ignores were made by a build, which a revision does not have: those of now serve."""
        assert self._path is not None
        for name in self.repository.ignored_modules():
            source, made = self.repository.top / name, self._path / name
            with contextlib.suppress(OSError):
                made.parent.mkdir(parents=True, exist_ok=True)
                if name.endswith(".py"):
                    shutil.copyfile(source, made)
                else:
                    made.symlink_to(source)


def _is_inside(name: str) -> bool:
    """Whether a name stays below the folder that it is joined to."""
    parts = name.split("/")
    return not name.startswith("/") and ".." not in parts and ".git" not in parts


def _remove_abandoned() -> None:
    """Removes the folders of processes that were killed."""
    parent = Path(tempfile.gettempdir())
    for folder in parent.glob(f"{_PREFIX}*"):
        match = _NAME.fullmatch(folder.name)
        with contextlib.suppress(OSError):
            if match and os.name == "posix" and not _is_alive(int(match[1])) and folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
