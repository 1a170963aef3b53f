"""``fuselens memory``: what a step of training holds, line by line, whether it fits, and what would make it fit."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..record import views
from ..record.plain import to_plain
from ..record.printed import steps
from ..record.report import FileReport, Report
from ..system import console
from .compiled import compiled
from .progress import say
from .targets import UsageError, named


def memory(arguments: argparse.Namespace) -> int:
    """Status 1 where a step does not fit, or nothing is known of it."""
    chosen = named(arguments.target)
    if not chosen:
        raise UsageError(f"{arguments.target} has no annotated functions")
    arguments.step_memory, arguments.step_sizes = True, ",".join(arguments.size)
    reports = compiled(chosen, arguments)
    if arguments.format == "json":
        console.say(json.dumps([_plain(one) for report in reports for one in report.functions], indent=1))
    else:
        for report in reports:
            _print(report)
    return int(any(not _is_well(report) for report in reports))


def _print(report: FileReport) -> None:
    for found in report.diagnostics:
        if found.severity == "error":
            say(views.diagnostic_text(found, full=True))
    for one in report.functions:
        if one.step is not None:
            say(steps.text(one.function, one.file, one.step))
            continue
        failed = [d for d in one.diagnostics if d.severity in ("error", "warning")]
        say("\n".join(views.diagnostic_text(d, full=True) for d in failed) or f"{one.file}::{one.function}: not called")


def _plain(report: Report) -> dict[str, Any]:
    """The step, or why it is not known."""
    found = [d for d in report.diagnostics if d.code.startswith("FL63") or d.severity == "error"]
    return {
        "file": report.file,
        "function": report.function,
        "step": to_plain(report.step),
        "diagnostics": to_plain(found),
    }


def _is_well(report: FileReport) -> bool:
    return bool(report.functions) and all(one.step is not None and one.step.fits for one in report.functions)
