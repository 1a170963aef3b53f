"""Reads and parses the file that is checked. What is wrong with its text refuses the file as a whole."""

from __future__ import annotations

import types
from pathlib import Path

from ..record import diagnostics
from ..record.report import Diagnostic, Span
from ..source.discovery import SourceModule
from ..system import source_text


class FileRefused(Exception):
    """The file as a whole could not be read, parsed or imported; ``diagnostic`` says why."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


def read_source(path: str | Path) -> str:
    """The text of a Python file by its own coding line. Raises FileRefused (FL902, FL903)."""
    file = str(path)
    try:
        data = source_text.read_bytes(path)
    except OSError as error:
        raise FileRefused(diagnostics.make("FL903", None, why=f"{type(error).__name__}: {error}")) from error
    try:
        return source_text.decode(data)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1)
        why = f"the file is not {error.encoding} ({error.reason})"
        raise FileRefused(diagnostics.make("FL902", Span(file, line, column, line, column + 1), why=why)) from error
    except (SyntaxError, LookupError) as error:  # an unknown coding, or bytes in the first lines that it cannot mean
        raise FileRefused(diagnostics.make("FL902", Span(file, 1, 0, 1, 1), why=str(error))) from error


def parsed(source: str, path: str, preview: bool = False) -> SourceModule:
    """The functions of a text. Raises FileRefused (FL902)."""
    try:
        return SourceModule(source, path, preview)
    except SyntaxError as error:
        raise FileRefused(_syntax_diagnostic(error, source, path)) from error


def compiled(source: str, path: str, module: SourceModule) -> types.CodeType:
    """Compiling finds what parsing does not: ``return`` outside a function, duplicate arguments, … Raises FileRefused (FL902)."""
    try:
        return compile(module.tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise FileRefused(_syntax_diagnostic(error, source, path)) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise FileRefused(diagnostics.make("FL902", Span(path, 1, 0, 1, 1), why=str(error))) from error


def _syntax_diagnostic(error: SyntaxError, source: str, path: str) -> Diagnostic:
    """CPython gives 1-based character columns, 0 or -1 for unknown ends."""
    lines = source_text.lines(source) or [""]
    line = min(max(error.lineno or 1, 1), len(lines))
    text = lines[line - 1]
    start = min(max((error.offset or 1) - 1, 0), len(text))
    end_line, end = error.end_lineno or line, (error.end_offset or 0) - 1
    if end_line != line or end <= start:
        end_line, end = line, max(start + 1, len(text) if end_line != line else start + 1)
    span = Span(path, line, len(text[:start].encode()), end_line, len(text[:end].encode()) or 1)
    return diagnostics.make("FL902", span, why=error.msg)
