"""What ``fuselens check`` prints without further wishes: a line for each function, and what stands in its way.

Pure functions of file reports. Standard library only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from .. import views
from ..figures import STATUSES
from ..report import Diagnostic, FileReport, Report, Span

_LISTED = ("error", "warning")
_ASKED_FOR = ("FL931", "FL933")  # what ranks do, where they were asked for
_LONGEST_NAME = 40
_LEVELS = {"error": "error", "warning": "warning", "information": "notice", "hint": "notice"}
DECORATE = "no function of it is compiled: decorate one with @fuselens.compile"


def listed(report: Report) -> list[Diagnostic]:
    """The findings that a reader must see: what breaks, is likely to, or prevents, and why a function is not compiled at all."""
    found = [d for d in report.diagnostics if d.severity in _LISTED]
    if report.status == "not compiled" and not found and not report.breaks:
        found = report.diagnostics[:1]
    found += [d for d in report.diagnostics if (d.predicted or d.code in _ASKED_FOR) and d not in found]
    return _by_place([*report.breaks, *found])


def _by_place(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    return sorted(found, key=lambda d: (d.span is not None, d.span or Span("", 0, 0, 0, 0)))


def text(files: Sequence[FileReport], nothing: Callable[[str], str] = lambda file: "", here: str = "") -> str:
    """Each file with its functions, and a last line that counts them. ``nothing`` says what else could be done with a file
    that compiles nothing; paths below the folder ``here`` are relative to it."""
    blocks = [_file_text(file, nothing, here) for file in files]
    return "\n".join([*blocks, summary(files)])


def _file_text(file: FileReport, nothing: Callable[[str], str], here: str) -> str:
    out = [shown(file.file, here)]
    found = [d for d in file.diagnostics if d.severity in _LISTED or not file.functions]
    out += [line for d in _by_place(found) for line in _finding_lines(d, file.file)]
    width = max((min(len(r.function), _LONGEST_NAME) for r in file.functions), default=0)
    rows = [_columns(report) for report in file.functions]
    widths = [max(map(len, column)) for column in zip(*(row for row in rows if len(row) > 1), strict=True)]
    for report, row in zip(file.functions, rows, strict=True):
        cells = row if len(row) == 1 else [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        out.append(f"  {report.function.ljust(width)}  {'  '.join(cells)}".rstrip())
        out += [line for d in listed(report) for line in _finding_lines(d, file.file, "  ")]
    if not file.functions and not found:
        out.append(f"  {DECORATE}{nothing(file.file)}")
    return "\n".join(out)


def _columns(report: Report) -> list[str]:
    if report.status == "not compiled":
        why = ": it computes nothing with torch" if not (report.breaks or report.diagnostics) else ""
        return [f"not compiled{why}"]
    eager = sum(graph.fallback for graph in report.captured)
    seconds = sum(t.seconds for t in report.timings if t.stage == "total")
    return [
        _count(len(report.captured), "graph"),
        _count(len(report.breaks), "break") if report.breaks else "",
        _count(len(report.kernels), "kernel"),
        views.seconds_text(seconds) if seconds else "",
        f"{eager} eager" if eager else "",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _finding_lines(found: Diagnostic, file: str, indent: str = "") -> list[str]:
    """``13:8  FL101  what`` and, below it, the first thing to do about it."""
    place = ""
    if found.span is not None:
        line = f"{found.span.line}:{found.span.column + 1}"
        place = line if found.span.file == file else f"{os.path.basename(found.span.file)}:{line}"
    start = f"  {indent}{place}{'  ' if place else ''}{found.code}  "
    message = found.message.removeprefix("graph break: ")
    lines = [start + message.replace("\n", "\n" + " " * len(start))]
    return lines + [f"{' ' * len(start)}{hint}" for hint in found.hints[:1]]


def summary(files: Sequence[FileReport]) -> str:
    """``12 functions: 10 whole, 1 with breaks, 1 not compiled. Details: fuselens explain FILE``"""
    reports = [report for file in files for report in file.functions]
    counts = Counter(report.status for report in reports)
    parts = ", ".join(f"{counts[name]} {name}" for name in STATUSES if counts[name])
    failed = sum(any(d.severity == "error" for d in file.diagnostics) for file in files)
    notes = sum(len(r.breaks) + len(r.diagnostics) - len(listed(r)) for r in reports)
    more = f" {_count(failed, 'file')} with errors." if failed else ""
    more += f" {_count(notes, 'note')} with -v." if notes else ""
    more += " Details: fuselens explain FILE" if reports else ""
    return f"{_count(len(reports), 'function')}{f': {parts}' if parts else ''}.{more}"


def shown(path: str, here: str) -> str:
    """``path`` as a person in the folder ``here`` would type it."""
    return os.path.relpath(path, here) if here and path.startswith(here.rstrip(os.sep) + os.sep) else path


def github(files: Sequence[FileReport], source_of: views.SourceOf = views.read_text, here: str = "") -> str:
    """Findings as commands of a workflow, which GitHub shows at the lines of a pull request. Columns are characters."""
    return "\n".join(
        github_line(found, function, file.file, source_of, here)
        for file in files
        for function, found in views.file_diagnostics(file)
    )


def github_line(found: Diagnostic, function: str, file: str, source_of: views.SourceOf, here: str) -> str:
    fields = [f"file={_escaped(shown(found.span.file if found.span else file, here), ',:')}"]
    if found.span is not None:
        lines = views.source_lines(found.span.file, source_of)
        fields += [f"line={found.span.line}", f"endLine={found.span.end_line}"]
        fields.append(f"col={views.characters(lines, found.span.line, found.span.column) + 1}")
        fields.append(f"endColumn={views.characters(lines, found.span.end_line, found.span.end_column) + 1}")
    fields.append("title=" + _escaped(f"{found.code} in {function}" if function else found.code, ",:"))
    return github_command(_LEVELS[found.severity], fields, "\n".join((found.message, *found.hints)))


def github_command(level: str, fields: Sequence[str], text: str) -> str:
    return f"::{level} {','.join(fields)}::{_escaped(text)}"


def _escaped(text: str, also: str = "") -> str:
    for character in "%\r\n" + also:
        text = text.replace(character, f"%{ord(character):02X}")
    return text
