"""What a command prints, wherever that goes: to a locale of few characters, a full disk, a closed descriptor, or a reader that
has left."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

_OPENED = ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY))


class OutputError(Exception):
    """Standard output cannot be written; the message says why."""


def open_streams() -> None:
    """What a stream cannot spell is printed as escapes. In place of descriptors that are closed there is nothing to read,
    and standard output that cannot be written: the next file or pipe must not take their numbers."""
    for number, flags in _OPENED:
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # the lowest number that is free
    encoding = io.text_encoding(None)
    if sys.stdout is None:
        sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = sys.__stderr__ = open(2, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(text: str, end: str = "\n") -> None:
    """Prints to standard output. Raises OutputError, and BrokenPipeError where nobody reads any more."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"standard output cannot be written: {error.strerror or error}") from error


def complain(text: str, end: str = "\n") -> None:
    """Prints to standard error, if that can be written."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:
        discard(2)


def echo(data: bytes) -> None:
    """Writes what others printed to standard error, if that can be written."""
    try:
        sys.stderr.buffer.write(data)
        sys.stderr.flush()
    except OSError:
        discard(2)


def flush() -> None:
    """What was printed by others, too, before the interpreter does it, which has no better status for a failure."""
    complain("", end="")
    say("", end="")


def discard(number: int) -> None:
    """Whatever is written to the descriptor from now on goes nowhere."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What a program prints is not said."""
    with contextlib.redirect_stdout(_nowhere()), contextlib.redirect_stderr(_nowhere()):
        yield


@functools.cache
def _nowhere() -> TextIO:
    """Never closed: loggers of libraries keep it."""
    return open(os.devnull, "w", encoding="utf-8")
