"""Fixes of the text of an installed library: what a project keeps as a patch."""

from __future__ import annotations

import ast
import dataclasses
import functools
import logging
from collections.abc import Iterator

from ...capture.program import overlays
from ...patches import distributions
from ...record.report import Diagnostic, Edit, Fix, Report
from ...source import fixes
from ...source.discovery import Definition
from ...source.fixes import Source
from ...system import source_text

log = logging.getLogger(__name__)


class LibrarySource(Source):
    """A library's file. What a fix has to import, it imports in the function, because a patch changes bodies of functions only."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text, path)
        self.given = text

    def spelled(self, name: str, used_at: ast.AST) -> tuple[str, tuple[Edit, ...]]:
        said, imports = super().spelled(name, used_at)
        if not imports:
            return said, ()
        functions = [n for n in (used_at, *self.above(used_at)) if isinstance(n, Definition)]
        if not functions:
            return said, imports
        body = functions[0].body
        first = body[1] if len(body) > 1 and ast.get_docstring(functions[0], clean=False) is not None else body[0]
        return said, tuple(self.inserted(first, [edit.replacement.strip()]) for edit in imports)


def with_library_fixes(report: Report) -> Report:
    """``report``, whose breaks in files of installed libraries have fixes."""
    return dataclasses.replace(report, breaks=[_with_fixes(d) for d in report.breaks])


def may_have(report: Report) -> bool:
    return any(is_in_library(d) for d in report.breaks)


def is_in_library(finding: Diagnostic) -> bool:
    return finding.span is not None and overlays.is_library(finding.span.file)


def _with_fixes(finding: Diagnostic) -> Diagnostic:
    if not is_in_library(finding) or finding.fixes:
        return finding
    assert finding.span is not None
    return dataclasses.replace(finding, fixes=tuple(proposed(finding.span.file, finding)))


def proposed(path: str, finding: Diagnostic) -> Iterator[Fix]:
    """The fixes of one break that change nothing but bodies of the library's functions."""
    source = source_of(path)
    if source is None:
        return
    for fix in fixes.propose(source, finding):
        after = fixes.applied(source.given, fix.edits)
        try:
            if overlays.changed(path, source.given, after):
                yield dataclasses.replace(fix, library=path)
        except overlays.DoesNotFit as error:
            log.debug("%s: %s: %s", path, fix.title, error)


@functools.lru_cache(maxsize=16)
def source_of(path: str) -> LibrarySource | None:
    """None for a file that no distribution lists, or that cannot be read."""
    if distributions.installed(path) is None:
        return None
    try:
        return LibrarySource(source_text.decode(source_text.read_bytes(path)), path)
    except (OSError, ValueError, SyntaxError, LookupError, RecursionError):
        return None
