"""Whose a file is: what is executed or believed must be this user's own, on a path that nobody else can change.

Trusted are this user (the effective one) and root. A folder on the way to a file must be one of theirs, and closed to
writers other than its owner; only in a sticky folder, such as /tmp, everybody may write, for there nobody can move what is
another's. The folder itself, and what is in it, must be this user's. Then no other user can change what its path means.
A symbolic link is a step on the way like a folder: whose link it is counts, and then each step of what it says.

Systems without user ids (Windows) keep users' folders private by other means: there everything passes.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS = 40  # as in the kernel
_HAS_USERS = hasattr(os, "geteuid")
_Step = tuple[str, os.stat_result]


class Foreign(PermissionError):
    """The file is somebody else's, or others may write to it."""


def objection(path: Path) -> str:
    """Why a folder is not this user's alone; "" where it is, or could be made so because it does not exist yet.
    Raises OSError where that cannot be found out."""
    if not _HAS_USERS:
        return ""
    steps, found = _way(path)
    trusted = {os.geteuid(), 0, steps[0][1].st_uid}  # whoever has / has everything: in a container not always user 0
    folders: list[_Step] = []
    for step, status in steps:
        if stat.S_ISDIR(status.st_mode):
            folders.append((step, status))
        elif not stat.S_ISLNK(status.st_mode):
            return f"{step} is not a folder"
        elif status.st_uid not in trusted:
            return f"the link {step} is owned by {_user(status.st_uid)}"
    for step, status in folders[: -1 if found else None]:
        if status.st_uid not in trusted:
            return f"{step} is owned by {_user(status.st_uid)}"
        if not status.st_mode & stat.S_ISVTX and (why := _writers(step, status)):
            return why
    return foreign(*folders[-1]) if found else ""


def foreign(name: str, status: os.stat_result) -> str:
    """Why a file or folder is not this user's alone; "" where it is."""
    if not _HAS_USERS:
        return ""
    if status.st_uid != os.geteuid():
        return f"{name} is owned by {_user(status.st_uid)}, and this process is {_user(os.geteuid())}'s"
    return _writers(name, status)


def opened(path: Path) -> int:
    """A descriptor of a regular file that is this user's alone; not of what a link leads to. Its folder is known to be so.

    Raises :class:`Foreign`, and other OSErrors.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _BINARY)
    try:
        status = os.fstat(descriptor)
        why = foreign(str(path), status) if stat.S_ISREG(status.st_mode) else f"{path} is not a regular file"
        if why:
            raise Foreign(errno.EPERM, why)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_BINARY = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def content(descriptor: int) -> bytes:
    """Everything in an open file, from its beginning."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return file.readall()


def make_folder(path: Path) -> None:
    """Makes a folder of this user's alone, and those above it that are missing. Raises OSError where there is another one."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was first: whose it is, is asked below
            os.mkdir(folder, 0o700)
    if why := objection(missing[0] if missing else path):
        raise Foreign(errno.EPERM, why)


def _way(path: Path) -> tuple[list[_Step], bool]:
    """Each folder and link on the way to ``path``, and whether it exists itself. Raises OSError."""
    waiting, here, links = [*reversed(path.absolute().parts[1:])], os.sep, 0
    steps = [(here, os.lstat(here))]
    while waiting:
        part = waiting.pop()
        step = os.path.dirname(here) if part == os.pardir else os.path.join(here, part)
        try:
            status = os.lstat(step)
        except FileNotFoundError:
            return steps, False
        steps.append((step, status))
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(step))
        here = os.sep if target.is_absolute() else here
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
    return steps, True


def _writers(name: str, status: os.stat_result) -> str:
    if status.st_mode & stat.S_IWOTH:
        return f"everybody may write to {name} (mode {stat.S_IMODE(status.st_mode):o})"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"its group may write to {name} (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _is_own_group(group: int) -> bool:
    """Whether a group is this user's private one, as many systems give each user one of the user's name, and let it write."""
    try:
        import grp
        import pwd

        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except (ImportError, KeyError):
        return False
    return (
        user.pw_uid != 0
        and user.pw_gid == group
        and entry.gr_name == user.pw_name
        and set(entry.gr_mem) <= {user.pw_name}
    )


def _user(number: int) -> str:
    try:
        import pwd

        return f"user {pwd.getpwuid(number).pw_name}"
    except (ImportError, KeyError):
        return f"user {number}"
