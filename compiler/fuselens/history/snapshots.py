"""The program at one time: a commit or the working tree, with what its files depend on, and the reports that were made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ..record.report import FileReport
from ..record.wire import Revision
from .dependencies import Facts, Tree
from .folder import Folder
from .git import Entry, Repository
from .slim import relocated


@dataclass(frozen=True, slots=True)
class Wanted:
    """A check that is needed: the file to look at, and when. Without a folder only a kept report is asked for; without one that is
    kept the answer is None then."""

    path: str
    revision: Revision
    about: str  # for who waits: "model.py at 1a2b3c4d"
    run: str = ""  # a function that is to be called, and timed, in place of a check; the answer is a result of that

    def placed(self, file: FileReport | None) -> FileReport | None:
        """What was answered, of files below the top: a child that died could not say so."""
        return relocated(file, self.revision.folder, self.revision.top) if file is not None else None


Reports = Generator[list[Wanted], list[FileReport | None], "dict[str, FileReport]"]


@dataclass(slots=True)
class Snapshot:
    """``commit`` is the name of a commit; None is the working tree."""

    commit: str | None
    tree: Tree
    reports: dict[str, FileReport] = field(default_factory=dict)
    _behind: dict[str, list[str]] = field(default_factory=dict)

    def behind(self, name: str) -> list[str]:
        if name not in self._behind:
            self._behind[name] = self.tree.behind(name)
        return self._behind[name]

    def meaning(self, name: str) -> str:
        return self.tree.meaning(self.behind(name)) if name in self.tree.entries else ""


class Snapshots:
    """Those of one repository. One folder holds the files of one commit at a time."""

    def __init__(self, repository: Repository, folder: Folder, facts: dict[str, Facts] | None = None) -> None:
        """``facts`` are what is known of sources, by their blobs; what is found out is added."""
        self.repository = repository
        self.folder = folder
        self._facts = {} if facts is None else facts
        self._made: dict[str | None, Snapshot] = {}
        self._built: str | None = None

    def at(self, commit: str | None) -> Snapshot:
        """Raises GitError."""
        if commit not in self._made:
            of_git = self.repository.tree(commit) if commit is not None else self.repository.working_tree()
            entries = {name: entry for name, entry in of_git.items() if entry.kind == "blob"}
            tree = Tree(entries, lambda names: self._read(commit, names, entries), self._facts)
            self._made[commit] = Snapshot(commit, tree)
        return self._made[commit]

    def _read(self, commit: str | None, names: Sequence[str], entries: dict[str, Entry]) -> Iterable[bytes]:
        if commit is not None:
            return self.repository.blobs([entries[name].blob for name in names])
        return [_content(self.repository, name) for name in names]

    def annotated(self, commit: str | None, wanted: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Files that compile functions, with their names, or that cannot be parsed; of those below ``wanted``, where something is.
        Raises GitError."""
        snapshot = self.at(commit)
        found = [n for n in self.repository.containing("compile", commit) if n in snapshot.tree.entries]
        names = sorted(n for n in found if _is_below(n, wanted))
        said = snapshot.tree.facts(names)
        return {name: of.annotated for name, of in zip(names, said, strict=True) if of.annotated or of.broken}

    def reports(self, commit: str | None, names: Sequence[str]) -> Reports:
        """The reports of files, from the cache or made. Raises GitError."""
        snapshot = self.at(commit)
        missing = [n for n in names if n not in snapshot.reports and n in snapshot.tree.entries]
        for folder in (False, True):
            if not missing:
                break
            found = yield [self._wanted(snapshot, n, folder) for n in missing]
            snapshot.reports |= {n: r for n, r in zip(missing, found, strict=True) if r is not None}
            missing = [n for n in missing if n not in snapshot.reports]
        return {n: snapshot.reports[n] for n in names if n in snapshot.reports}

    def wanted_run(self, commit: str | None, name: str, function: str) -> Wanted:
        """A call of a function as it is, or was. Raises GitError."""
        return replace(self._wanted(self.at(commit), name, whole=True), run=function)

    def _wanted(self, snapshot: Snapshot, name: str, whole: bool) -> Wanted:
        top, behind = str(self.repository.top), snapshot.behind(name)
        key = hashlib.sha256(
            f"{name}\0{snapshot.tree.exact(behind)}\0{self._modules()}".encode(errors="surrogateescape")
        )
        folder = ""
        if whole:
            folder = top if snapshot.commit is None else self._folder(snapshot, behind)
        when = f" at {snapshot.commit[:8]}" if snapshot.commit is not None else ""
        return Wanted(f"{folder or top}/{name}", Revision(top, folder, key.hexdigest()), name + when)

    def _folder(self, snapshot: Snapshot, needed: Sequence[str]) -> str:
        assert snapshot.commit is not None
        return str(self.folder.hold(snapshot.commit, needed))

    def _modules(self) -> str:
        """Tells apart what a build made, which git does not have."""
        if self._built is None:
            rows = []
            for name in self.repository.ignored_modules():
                status = (self.repository.top / name).stat() if (self.repository.top / name).exists() else None
                rows.append(f"{name}\0{status.st_size if status else 0}\0{status.st_mtime_ns if status else 0}")
            self._built = "\0".join(rows)
        return self._built


def _content(repository: Repository, name: str) -> bytes:
    try:
        return (repository.top / name).read_bytes()
    except OSError:
        return b""


def _is_below(name: str, wanted: Sequence[str]) -> bool:
    return not wanted or any(name == w or w == "." or name.startswith(w.rstrip("/") + "/") for w in wanted)
