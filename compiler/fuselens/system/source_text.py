"""Reading Python files that somebody named: bounded, regular files only, as CPython decodes them and counts their lines."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
import tokenize
from pathlib import Path

LARGEST = 16 * 1024 * 1024  # bytes of a file that is read
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class UnreadableError(OSError):
    """What a name leads to is nothing to read a program from; the message says what it is."""

    def __init__(self, path: str | Path, why: str) -> None:
        super().__init__(errno.EINVAL, why, str(path))

    def __str__(self) -> str:
        return f"{self.filename} {self.strerror}"


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """A regular file's content. Neither waits for a writer nor reads without end. Raises OSError, UnreadableError for
    what is no regular file or has more than ``largest`` bytes, whatever size it says that it has (those in /proc say 0)."""
    _must_be_regular(path, os.stat(path).st_mode)  # some devices do something when they are opened
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    with open(os.open(path, flags), "rb", buffering=0) as file:
        _must_be_regular(path, os.fstat(file.fileno()).st_mode)
        parts, size = [], 0
        while part := file.read(min(1 << 20, largest + 1 - size)):
            parts.append(part)
            size += len(part)
            if size > largest:
                raise UnreadableError(path, f"has more than {largest} bytes, the largest file that is read")
    return b"".join(parts)


def _must_be_regular(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "no file")
        raise UnreadableError(path, f"is {kind}; only regular files are read")


def decode(data: bytes) -> str:
    """By the byte order mark or the coding line. Raises UnicodeDecodeError, SyntaxError or LookupError."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding)


def shown(path: str | Path) -> str | None:
    """The text for excerpts: with replacements for what cannot be decoded; None when there is nothing to read."""
    try:
        data = read_bytes(path)
    except (OSError, ValueError):
        return None
    try:
        return decode(data)
    except (SyntaxError, ValueError, LookupError):
        return data.decode("utf-8", "replace")


def lines(text: str, keepends: bool = False) -> list[str]:
    """As CPython counts them: ``str.splitlines`` would also end lines at form feeds and Unicode's separators."""
    found = _LINE.findall(text)
    return found if keepends else [line.rstrip("\r\n") for line in found]
