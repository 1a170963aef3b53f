"""Asks git, and changes nothing: no index is refreshed, no object is written, no hook or filter of the user's runs.

Names are taken as git gives them (NUL-terminated bytes), so a file may be called anything.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_FIELDS = "%H%x00%P%x00%an%x00%at%x00%s"
_QUIET = ("-c", "core.quotePath=false", "-c", "core.fsmonitor=false", "-c", "log.showSignature=false")
_UNSET = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE")
_SECONDS = 300.0
_RANGE = re.compile(r"(?P<left>.*?)(?P<dots>\.\.\.?)(?P<right>.*)", re.S)


class GitError(Exception):
    """git cannot answer; the message says what was asked, why not, and what to do."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit; ``identity`` is "" for what is not committed yet. ``time`` is when it was written, in seconds since the epoch."""

    identity: str
    author: str = ""
    time: int = 0
    subject: str = ""
    parents: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        return self.identity[:8]

    @property
    def text(self) -> str:
        """``1a2b3c4d (Ann, 2026-03-01, "Use item()")``."""
        if not self.identity:
            return "not committed yet"
        return f'{self.short} ({self.author}, {self.date}, "{self.subject}")'

    @property
    def date(self) -> str:
        import datetime

        return datetime.datetime.fromtimestamp(self.time, datetime.UTC).strftime("%Y-%m-%d")


NOT_COMMITTED = Commit("")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a tree. ``blob`` tells contents apart; that of a file which is only in the working tree may be no object of git."""

    blob: str
    kind: str = "blob"  # "blob" | "link" | "commit", a submodule
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sides:
    """What is compared: two commits; without ``new``, the working tree is the newer side."""

    old: Commit
    new: Commit | None = None


class Repository:
    """A repository with a working tree. ``top`` is its folder."""

    def __init__(self, top: Path) -> None:
        self.top = top

    @classmethod
    def of(cls, place: Path) -> Repository:
        """The repository that a file or folder is in. Raises GitError."""
        folder = place if place.is_dir() else place.parent
        done = _run(folder, ["rev-parse", "--show-toplevel"])
        if done.returncode:
            why = _said(done)
            if "must be run in a work tree" in why:
                raise GitError(f"{folder} is in a repository without a working tree: there is nothing to compile there")
            if "dubious ownership" in why:
                raise GitError(f"git does not trust the owner of {folder}: {why}")
            raise GitError(f"{folder} is in no repository of git ({why}): there are no revisions to compare with")
        return cls(Path(os.fsdecode(done.stdout.rstrip(b"\r\n"))))

    def run(self, *arguments: str, given: bytes | None = None, accepted: Sequence[int] = (0,)) -> bytes:
        """What git prints. Raises GitError."""
        done = _run(self.top, arguments, given)
        if done.returncode not in accepted:
            raise GitError(f"git {arguments[0]} failed in {self.top}: {_said(done)}")
        return done.stdout

    # --- commits ---

    def commit(self, revision: str) -> Commit:
        """The commit that a revision names. Raises GitError."""
        asked = f"{revision or 'HEAD'}^{{commit}}"
        done = _run(self.top, ["rev-parse", "--verify", "--quiet", "--end-of-options", asked])
        name = done.stdout.decode().strip()
        if done.returncode or not name:
            raise GitError(self._unknown(revision or "HEAD"))
        done = _run(self.top, ["log", "-1", f"--format={_FIELDS}", name, "--"])
        if done.returncode:
            raise GitError(f"git has no history of {revision} here: {_said(done)}{self._shallow()}")
        return _commit(done.stdout)

    def _unknown(self, revision: str) -> str:
        if not _run(self.top, ["rev-parse", "--verify", "--quiet", "HEAD"]).stdout:
            return f"{self.top} has no commit yet, so there is no {revision} to compare with"
        near = f": there is origin/{revision}" if self._exists(f"origin/{revision}") else ""
        path = ", but a file or folder: a revision comes first, such as HEAD~1" if os.path.exists(revision) else ""
        return f"{revision} names no commit in {self.top}{path or near}{self._shallow()}"

    def _exists(self, revision: str) -> bool:
        return _run(self.top, ["rev-parse", "--verify", "--quiet", "--end-of-options", revision]).returncode == 0

    def _shallow(self) -> str:
        shallow = _run(self.top, ["rev-parse", "--is-shallow-repository"]).stdout.strip() == b"true"
        fetch = "`git fetch --unshallow`, or `fetch-depth: 0` of actions/checkout, gets it"
        return f". This clone is shallow: its history ends early; {fetch}" if shallow else ""

    def sides(self, text: str) -> Sides:
        """``REV`` (compared with the working tree), ``A..B``, and ``A...B``, which starts where the two parted. Raises GitError."""
        match = _RANGE.fullmatch(text)
        if match is None or self._is_one(text):
            return Sides(self.commit(text))
        old, new = self.commit(match["left"]), self.commit(match["right"])
        return Sides(self.merge_base(old, new) if match["dots"] == "..." else old, new)

    def _is_one(self, text: str) -> bool:
        """Whether dots are of a name or a message, as in ``:/fix a..b``, and not of a range."""
        return ":/" in text or "^{/" in text

    def merge_base(self, one: Commit, other: Commit) -> Commit:
        """The best commit that both have behind them. Raises GitError."""
        done = _run(self.top, ["merge-base", one.identity, other.identity])
        if done.returncode:
            raise GitError(f"{one.short} and {other.short} have no commit in common{self._shallow()}")
        return self.commit(done.stdout.decode().strip())

    def default_base(self) -> Commit:
        """Where the work that is checked out left the default branch; HEAD on that branch itself. Raises GitError."""
        head = self.commit("HEAD")
        for name in ("origin/HEAD", "origin/main", "origin/master", "main", "master"):
            if self._exists(f"{name}^{{commit}}"):
                return self.merge_base(self.commit(name), head)
        return head

    def first_parents(self, old: Commit, new: Commit) -> list[Commit]:
        """The commits by which ``new`` came from ``old``, the newest first: first parents, until one that ``old`` has behind it.
        Raises GitError."""
        wanted = [f"^{old.identity}", new.identity, "--"]
        data = self.run("log", "-z", "--first-parent", f"--format={_FIELDS}", *wanted)
        return list(_commits(data))

    def last(self, count: int) -> list[Commit]:
        """The last commits. Raises GitError."""
        return list(_commits(self.run("log", "-z", f"-{count}", f"--format={_FIELDS}", "HEAD", "--")))

    def names(self) -> list[tuple[str, str]]:
        """Branches and tags, those that moved last first, each with the subject of its commit. Raises GitError."""
        form, kinds = "%(refname:short)%00%(subject)", ("refs/heads", "refs/remotes", "refs/tags")
        data = self.run("for-each-ref", "--count=50", "--sort=-creatordate", f"--format={form}", *kinds)
        rows = [line.partition("\0") for line in data.decode(errors="replace").splitlines()]
        return [(name, about) for name, _, about in rows if not name.endswith("/HEAD")]

    def renames(self, old: str, new: str | None) -> dict[str, str]:
        """Python files that have another name in ``new`` (None: the working tree): new name → old name. Raises GitError."""
        sides = [old] if new is None else [old, new]
        data = self.run(
            "diff", "-z", "-M", "--name-status", "--diff-filter=R", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all",
            *sides, "--",
        )  # fmt: skip
        names = [os.fsdecode(name) for name in data.split(b"\0")]
        moved = zip(names[1::3], names[2::3], strict=False)
        return {after: before for before, after in moved if after.endswith((".py", ".pyw"))}

    # --- files ---

    def tree(self, commit: str) -> dict[str, Entry]:
        """The files of a commit, by name from the top. Raises GitError."""
        out: dict[str, Entry] = {}
        for row in self.run("ls-tree", "-r", "-l", "-z", "--full-tree", commit).split(b"\0"):
            if row:
                about, _, name = row.partition(b"\t")
                mode, kind, blob, size = about.decode().split()
                kind = "link" if mode == "120000" else kind
                out[os.fsdecode(name)] = Entry(blob, kind, int(size) if size.isdigit() else 0)
        return out

    def working_tree(self) -> dict[str, Entry]:
        """The files as they are now: those that git knows, and new ones that it does not ignore. Raises GitError."""
        out: dict[str, Entry] = {}
        for row in self.run("ls-files", "-s", "-z").split(b"\0"):
            if row:
                about, _, name = row.partition(b"\t")
                mode, blob, _ = about.decode().split()
                kind = {"120000": "link", "160000": "commit"}.get(mode, "blob")
                out[os.fsdecode(name)] = Entry(blob, kind)
        changed = _names(self.run("diff-files", "-z", "--name-only", "--ignore-submodules=all"))
        added = _names(self.run("ls-files", "-o", "-z", "--exclude-standard"))
        for name in (*changed, *added):
            entry = self._on_disk(name)
            if entry is None:
                out.pop(name, None)
            else:
                out[name] = entry
        return out

    def _on_disk(self, name: str) -> Entry | None:
        """A file whose content git does not have, or perhaps has."""
        path = self.top / name
        try:
            status = path.lstat()
            if path.is_symlink():
                return Entry(f"link:{os.readlink(path)}", "link")
            if path.is_dir():
                return None  # another repository inside of this one
            if name.endswith((".py", ".pyw")) and status.st_size <= _LARGEST_HASHED:
                return Entry(_blob_of(path.read_bytes()), "blob", status.st_size)
        except OSError:
            return None
        return Entry(f"file:{status.st_size}:{status.st_mtime_ns}", "blob", status.st_size)

    def ignored_modules(self) -> list[str]:
        """Modules beside the program that git ignores, such as a generated ``_version.py`` or an extension that was built. Folders
        that are ignored as a whole, such as environments, are left out. Raises GitError."""
        found = _names(self.run("ls-files", "-o", "-i", "--directory", "-z", "--exclude-standard"))
        return [name for name in found if name.endswith((".py", ".so", ".pyd"))]

    def containing(self, word: str, commit: str | None) -> list[str]:
        """Python files that have ``word`` in them, in a commit or (None) the working tree. Raises GitError."""
        where = ["--untracked", "--exclude-standard"] if commit is None else [commit]
        asked = ["grep", "-l", "-z", "-I", "-F", "-e", word, *where, "--", "*.py", "*.pyw"]
        found = _names(self.run(*asked, accepted=(0, 1)))
        return [name if commit is None else name.partition(":")[2] for name in found]

    def blobs(self, wanted: Sequence[str]) -> Iterator[bytes]:
        """The contents of objects, in order; b"" for one that is not there. Raises GitError."""
        if not wanted:
            return
        data = self.run("cat-file", "--batch", given="".join(f"{blob}\n" for blob in wanted).encode())
        at = 0
        for _ in wanted:
            end = data.index(b"\n", at)
            header, at = data[at:end].split(), end + 1
            if header[-1] == b"missing" or len(header) < 3:
                yield b""
                continue
            size = int(header[2])
            yield data[at : at + size]
            at += size + 1


_LARGEST_HASHED = 16 << 20


def _blob_of(data: bytes) -> str:
    """The name that git gives to contents, where it changes none of them on their way in."""
    import hashlib

    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _names(data: bytes) -> list[str]:
    return [os.fsdecode(name) for name in data.split(b"\0") if name]


def _commits(data: bytes) -> Iterator[Commit]:
    fields = data.split(b"\0")
    for at in range(0, len(fields) - 4, 5):
        yield _commit(b"\0".join(fields[at : at + 5]))


def _commit(row: bytes) -> Commit:
    identity, parents, author, time, subject = row.rstrip(b"\n").decode(errors="replace").split("\0")
    return Commit(identity, author, int(time), subject, tuple(parents.split()))


def _run(folder: Path, arguments: Sequence[str], given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    environment = {k: v for k, v in os.environ.items() if k not in _UNSET}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    command = ["git", *_QUIET, "-C", str(folder), *arguments]
    try:
        return subprocess.run(
            command, input=given, stdin=subprocess.DEVNULL if given is None else None, capture_output=True, check=False,
            env=environment, timeout=_SECONDS,
        )  # fmt: skip
    except FileNotFoundError:
        raise GitError("there is no `git` on the search path: install it to compare with revisions") from None
    except subprocess.TimeoutExpired:
        raise GitError(f"git {arguments[0]} took more than {_SECONDS:.0f} s in {folder}") from None
    except OSError as error:
        raise GitError(f"git cannot be run: {error.strerror or error}") from None


def _said(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ").removeprefix("error: ") if lines else f"status {done.returncode}"
