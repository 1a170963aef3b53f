"""Where a project keeps its kernels, and whose files are believed.

A project's root is the nearest folder above a file that has ``.fuselens``, ``.git`` or ``pyproject.toml``. Pins are in
``.fuselens/kernels``, which belongs into the repository; drafts are in ``.fuselens/drafts``, which keeps itself out of it.

Whoever owns the file of a function can have code executed by it. So a pin is believed that is theirs, this user's or root's,
and that not everybody may write. In a folder that all share, such as /tmp, nobody else can leave a kernel for others.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ..system import source_text

FOLDER, PINS, DRAFTS = ".fuselens", "kernels", "drafts"
LARGEST = 4 << 20  # bytes of a kernel, or of what is known about it
_MARKS = (FOLDER, ".git", "pyproject.toml")
_HAS_USERS = hasattr(os, "geteuid")


class Unreadable(Exception):
    """A file of a pin or of a draft cannot be read, or is not believed; the message says why."""


def root_of(file: str) -> Path | None:
    """The root of the project that a file belongs to, its own folder where no folder says so; None for what is no file."""
    path = Path(file).absolute()
    if not file or not path.is_file():
        return None
    return next((f for f in path.parents if any((f / mark).exists() for mark in _MARKS)), path.parent)


def pins_of(root: Path) -> Path:
    return root / FOLDER / PINS


def drafts_of(root: Path) -> Path:
    return root / FOLDER / DRAFTS


def is_kept(path: str) -> bool:
    """Whether a file is a pin or a draft, which is nothing to compile on its own."""
    parts = Path(path).parts
    return any(parts[k] == FOLDER and parts[k + 1] in (PINS, DRAFTS) for k in range(len(parts) - 2))


def is_draft(path: str) -> bool:
    parts = Path(path).parts
    return len(parts) > 4 and parts[-4] == FOLDER and parts[-3] == DRAFTS and ".ours." not in parts[-1]


def root_of_draft(path: Path) -> Path:
    return path.parents[3]


def read(path: Path, owner: str = "") -> str:
    """The text of a file, of a pin's where the file of its function, the ``owner``, is given. Raises Unreadable."""
    try:
        why = _objection(path, os.stat(owner).st_uid) if owner and _HAS_USERS else ""
        if why:
            raise Unreadable(why)
        return source_text.read_bytes(path, LARGEST).decode("utf-8")
    except FileNotFoundError:
        raise Unreadable(f"{path.name} is missing") from None
    except UnicodeDecodeError as error:
        raise Unreadable(f"{path.name} is not UTF-8: byte {error.start} cannot be decoded") from None
    except OSError as error:
        raise Unreadable(f"{path.name} {error.strerror or error}") from None


def _objection(path: Path, owner: int) -> str:
    """Why a file of a project is not believed, whose source is ``owner``'s; "" where it is."""
    for step in (*reversed([folder for folder in path.parents if FOLDER in folder.parts]), path):
        status = os.lstat(step)
        if stat.S_ISLNK(status.st_mode):
            return f"{step.name} is a link"
        if status.st_uid not in (os.geteuid(), 0, owner):
            return f"{step.name} is owned by user {status.st_uid}, who does not own the file of the function"
        if status.st_mode & stat.S_IWOTH:
            return f"everybody may write to {step.name} (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def write(path: Path, text: str) -> None:
    """Makes or replaces a file as a whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(made, 0o644)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
