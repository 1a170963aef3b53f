"""What the person whose program runs is told without asking: that something stands in the way of compiling at all.

A graph break is no such thing: it is in the report. A missing compiler is, because then every graph runs eagerly. Each
cause is one Python warning in a process, of a category of its own, so that a program can silence it, log it or make it
an exception. In the editor's own processes nothing is said: there the findings are shown.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types
import warnings

from .report import Diagnostic

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_said: set[tuple[str, str]] = set()
_one_at_a_time = threading.Lock()
_off = False


class FuselensWarning(UserWarning):
    """Something stands in the way of compiling. The message begins with the code, which ``fuselens codes`` explains."""

    __module__ = "fuselens"  # where programs find it: filters name it so


def warn(diagnostic: Diagnostic, cause: str = "") -> None:
    """Warns of a finding, once in this process for each code and ``cause`` (its message where none is given).

    The warning is attributed to the user's line that is running, which is where a filter looks. Raises FuselensWarning
    where the program's filters say that such a warning is an error.
    """
    key = diagnostic.code, cause or diagnostic.message
    with _one_at_a_time:
        if _off or key in _said:
            return
        _said.add(key)
    file, line, module = _place(diagnostic)
    warnings.warn_explicit(text(diagnostic), FuselensWarning, file, line, module)


def text(diagnostic: Diagnostic) -> str:
    """A finding as its reader needs it, in one line: code, what happened, where, why, and what to do."""
    where = f", at {diagnostic.span}" if diagnostic.span is not None else ""
    parts = [f"{diagnostic.code}: {diagnostic.message}{where}.", diagnostic.explanation, *diagnostic.hints]
    return " ".join(filter(None, parts))


def switch_off() -> None:
    """Nothing is said in this process, nor in those that it forks: it is an editor's own."""
    global _off
    _off = True


def _place(diagnostic: Diagnostic) -> tuple[str, int, str | None]:
    """File, line and module of the user's frame that is running; of the finding in a thread that has no such frame.

    Python's own ``skip_file_prefixes`` came with 3.12. It also leaves its mark in the globals of the user's module, which
    guards watch.
    """
    frame: types.FrameType | None = sys._getframe()
    skipped = (
        _OURS,
        contextlib.__file__,
        *_folders("torch"),
    )  # a context manager of ours runs below contextlib's frame
    while frame is not None and frame.f_code.co_filename.startswith(skipped):
        frame = frame.f_back
    if frame is not None and not frame.f_code.co_filename.startswith("<frozen"):
        return frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__")
    span = diagnostic.span
    return (span.file, span.line, None) if span is not None else ("fuselens", 1, "fuselens")


def _folders(package: str) -> tuple[str, ...]:
    """Where a package's files are, if it is imported."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return (os.path.dirname(file) + os.sep,) if file else ()
