"""Edits written into their file: its encoding, byte order mark and line ends stay, and the file is replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
import shutil
import tempfile
import tokenize
from collections.abc import Sequence
from pathlib import Path

from ...record.report import Edit
from ...system import source_text
from .source import applied


class ChangedError(Exception):
    """The file is not the one any more that the edits are for."""


def encoded(data: bytes, edits: Sequence[Edit]) -> bytes:
    """The new content of a file that has ``data``. Raises UnicodeEncodeError where its encoding lacks a character."""
    source = source_text.decode(data).removeprefix("\ufeff")
    newline = "\r\n" if "\r\n" in source else "\n"
    fitting = [dataclasses.replace(edit, replacement=edit.replacement.replace("\n", newline)) for edit in edits]
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return applied(source, fitting).encode(encoding)


def write(path: str | Path, before: bytes, after: bytes) -> None:
    """Puts ``after`` in the place of ``before``, by a rename. Raises OSError, or ChangedError; the file is as it was then."""
    real = os.path.realpath(path)
    if not os.access(real, os.W_OK):
        raise PermissionError(errno.EACCES, "it must not be written", str(path))
    written = ""
    try:
        descriptor, written = tempfile.mkstemp(prefix=".fuselens-", suffix=".tmp", dir=os.path.dirname(real))
        with os.fdopen(descriptor, "wb") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(real, written)
        if source_text.read_bytes(path) != before:
            raise ChangedError
        os.replace(written, real)
        written = ""
    finally:
        if written:
            with contextlib.suppress(OSError):
                os.unlink(written)
