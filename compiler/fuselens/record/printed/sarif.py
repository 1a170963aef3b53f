"""Findings as SARIF 2.1.0, which code hosts show at the lines of a pull request. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .. import diagnostics
from ..report import FileReport, Span
from ..views import SourceOf, characters, file_diagnostics, read_text, source_lines

_SARIF_LEVELS = {"error": "error", "warning": "warning", "information": "note", "hint": "note"}
SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(
    files: list[FileReport], source_of: SourceOf = read_text, version: str = "0", new: Collection[int] | None = None
) -> str:
    """SARIF 2.1.0. Columns are characters (``unicodeCodePoints``), so the sources are needed to count them. ``new`` are the
    identities of findings that a baseline does not have, where there is one."""
    results: list[dict[str, Any]] = []
    for file in files:
        for function, found in file_diagnostics(file):
            result: dict[str, Any] = {
                "ruleId": found.code,
                "level": _SARIF_LEVELS[found.severity],
                "message": {"text": found.message},
                "locations": [location(found.span, file.file, source_of, function)],
            }
            if new is not None:
                result["baselineState"] = "new" if id(found) in new else "unchanged"
            if len(found.stack) > 1:
                frames = [{"location": location(f.span, file.file, source_of, f.function)} for f in found.stack]
                result["stacks"] = [{"frames": frames[::-1]}]
            results.append(result)
    used = sorted({result["ruleId"] for result in results})
    driver = {
        "name": "fuselens",
        "version": version,
        "rules": [rule(code) for code in used],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1)


def rule(code: str) -> dict[str, Any]:
    entry = diagnostics.TABLE.get(code)
    if entry is None:
        return {"id": code}
    return {
        "id": code,
        "name": entry.title,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": entry.explanation},
        "help": {"text": "\n".join((entry.explanation, *(f"- {hint}" for hint in entry.hints)))},
        "defaultConfiguration": {"level": _SARIF_LEVELS[entry.severity]},
    }


def location(span: Span | None, file: str, source_of: SourceOf, function: str) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(span.file if span else file)}}
    if span is not None:
        lines = source_lines(span.file, source_of)
        physical["region"] = {
            "startLine": span.line,
            "startColumn": characters(lines, span.line, span.column) + 1,
            "endLine": span.end_line,
            "endColumn": characters(lines, span.end_line, span.end_column) + 1,
        }
    location: dict[str, Any] = {"physicalLocation": physical}
    if function:
        location["logicalLocations"] = [{"fullyQualifiedName": function, "kind": "function"}]
    return location


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else path.as_posix()
